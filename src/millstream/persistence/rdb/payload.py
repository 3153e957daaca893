"""One value in RDB form, and as the payload of DUMP and RESTORE.

value     type byte │ body
payload   type byte │ body │ version u16 LE │ CRC-64 of all before it, LE; zero means unchecked
"""

from __future__ import annotations

from typing import Final

from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import KeyspaceSettings
from millstream.engine.streams.stream import Stream
from millstream.errors import BadFormat
from millstream.persistence.rdb.codec import Reader, Writer
from millstream.persistence.rdb.crc64 import crc64
from millstream.persistence.rdb.stream import read_stream, write_stream
from millstream.persistence.rdb.values import read_value, type_of, write_value
from millstream.persistence.rdb.versions import (
    FOREIGN_VERSIONS,
    RELEASED_TO,
    STREAM_TYPES,
    VERSION,
    VERSION_OF,
    ReadOptions,
    WriteOptions,
)

WRONG_CHECKSUM: Final = "ERR DUMP payload version or checksum are wrong"
BAD_DATA: Final = "ERR Bad data format"

_TRAILER: Final = 10


def dump_value(
    value: object,
    *,
    stream_type: int = STREAM_TYPES[-1],
    compress: bool = True,
    now_ms: int | None = None,
    released_to: bytes = RELEASED_TO,
) -> bytes:
    """Return a value with its type byte.

    Streams can be written in an older type for older servers; `stream` says what is lost. With `now_ms`, expired
    idempotency records are left out, as in Redis.
    """
    options = WriteOptions.of(stream_type, None, now_ms, released_to)
    out = Writer(compress=compress)
    out.put(bytes((type_byte(value, options),)))
    write_body(out, value, options)
    return out.gathered()


def type_byte(value: object, options: WriteOptions) -> int:
    """Return the type under which a value is written."""
    return options.stream_type if isinstance(value, Stream) else type_of(value, options.version)


def write_body(out: Writer, value: object, options: WriteOptions) -> None:
    """Write a value without its type byte."""
    if isinstance(value, Stream):
        write_stream(out, value, options)
    else:
        write_value(out, value, type_of(value, options.version))


def load_value(
    kind: int, reader: Reader, settings: KeyspaceSettings, now_ms: int, *, sanitize: bool = False, lenient: bool = False
) -> object:
    """Read a value of this type; BadFormat if it is damaged or cannot be read.

    With `sanitize`, readable bodies that no server writes are refused. With `lenient`, streams are accepted that Redis
    can write but refuses to read.
    """
    if kind not in STREAM_TYPES:
        return read_value(reader, kind)
    options = ReadOptions(settings=settings, now_ms=now_ms, sanitize=sanitize, lenient=lenient)
    return read_stream(reader, kind, options)


def dump_payload(
    value: object,
    *,
    stream_type: int = STREAM_TYPES[-1],
    version: int | None = None,
    compress: bool = True,
    now_ms: int | None = None,
    released_to: bytes = RELEASED_TO,
) -> bytes:
    """Return the payload of DUMP. For Valkey and Redis 7.2 use `stream_type=21`, whose version is 11."""
    body = dump_value(value, stream_type=stream_type, compress=compress, now_ms=now_ms, released_to=released_to)
    if version is None:
        version = VERSION_OF[stream_type]
    body += version.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")


def restore_payload(payload: bytes, settings: KeyspaceSettings, now_ms: int, *, sanitize: bool = False) -> object:
    """Return the value of a payload. Raises the error that RESTORE answers."""
    version = int.from_bytes(payload[-_TRAILER:-8], "little")
    if len(payload) < _TRAILER or (version > VERSION and version not in FOREIGN_VERSIONS):
        raise fault(WRONG_CHECKSUM)
    checksum = int.from_bytes(payload[-8:], "little")
    if checksum and checksum != crc64(payload[:-8]):
        raise fault(WRONG_CHECKSUM)
    # Redis does not stop reading at the trailer, and ignores bytes left over before it.
    reader = Reader(payload)
    try:
        return load_value(reader.byte(), reader, settings, now_ms, sanitize=sanitize)
    except BadFormat as error:
        raise fault(BAD_DATA) from error
