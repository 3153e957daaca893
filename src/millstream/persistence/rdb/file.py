"""Whole RDB files, read and written piece by piece.

    REDIS0015                            magic and version
    FA key value …                       facts about the file (AUX)
    F5 library …                         functions
    FE db │ FB keys expiring             a database and its number of keys
      [FC ms] type key value …           its keys; FC: expires at, F8: idle time, F9: frequency
    FF │ CRC-64 of all before it, LE     zero means unchecked

The reader also accepts files of Valkey (VALKEY080) and expiry in seconds (FD). It skips the slots of a cluster (F4) and
data of modules (F7). Values of modules and hashes with expiring fields cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.engine.keys.keyspace import Database, Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import BadFormat, NewerFormat
from millstream.persistence.rdb.codec import Reader, Writer
from millstream.persistence.rdb.payload import load_value, type_byte, write_body
from millstream.persistence.rdb.values import EmptyValue
from millstream.persistence.rdb.versions import FOREIGN_VERSIONS, RELEASED_TO, STREAM_TYPES, VERSION, WriteOptions

_FIRST_OPCODE: Final = 240  # above every type
_FIRST_CHECKED: Final = 5  # older files have no checksum


class Op:
    """Operation codes: bytes that can appear where a key's type is expected."""

    SLOTS: Final = 0xF4
    FUNCTION: Final = 0xF5
    MODULE_AUX: Final = 0xF7
    IDLE_S: Final = 0xF8
    FREQUENCY: Final = 0xF9
    AUX: Final = 0xFA
    SIZES: Final = 0xFB
    EXPIRES_MS: Final = 0xFC
    EXPIRES_S: Final = 0xFD
    SELECT: Final = 0xFE
    END: Final = 0xFF


# Writing


def write_rdb(
    keyspace: Keyspace,
    write: Callable[[bytes], None],
    *,
    now_ms: int,
    stream_type: int = STREAM_TYPES[-1],
    version: int | None = None,
    aux: Mapping[bytes, bytes] | None = None,
    functions: Iterable[bytes] = (),
    compress: bool = False,
    released_to: bytes = RELEASED_TO,
) -> None:
    """Write all databases. `write` gets the file in pieces of a megabyte, or of one node if that is larger.

    For Valkey and Redis 7.2: `stream_type=21`, whose version is 11. Compressing makes files smaller and takes ten
    times as long: LZF is a loop over bytes.
    """
    options = WriteOptions.of(stream_type, version, now_ms, released_to)
    out = Writer(write, compress=compress)
    out.put(b"REDIS%04d" % options.version)
    for name, value in (aux or {}).items():
        out.put(bytes((Op.AUX,)))
        out.string(name)
        out.string(value)
    for library in functions:
        out.put(bytes((Op.FUNCTION,)))
        out.string(library)
    for database in keyspace:
        if database.values:
            _write_database(out, database, options)
    out.put(bytes((Op.END,)))
    out.flush()
    write(out.crc.to_bytes(8, "little"))


def _write_database(out: Writer, database: Database, options: WriteOptions) -> None:
    out.put(bytes((Op.SELECT,)))
    out.length(database.index)
    out.put(bytes((Op.SIZES,)))
    out.length(len(database.values))
    out.length(len(database.expires))
    for key, value in database.values.items():
        at_ms = database.expires.get(key)
        if at_ms is not None:
            out.put(bytes((Op.EXPIRES_MS,)) + at_ms.to_bytes(8, "little", signed=True))
        out.put(bytes((type_byte(value, options),)))
        out.string(key)
        write_body(out, value, options)


# Reading


@dataclass(slots=True)
class Loaded:
    """The content of a file."""

    keyspace: Keyspace
    version: int = 0
    aux: dict[bytes, bytes] = field(default_factory=dict)
    functions: list[bytes] = field(default_factory=list)  # libraries in the form of FUNCTION LOAD
    keys: int = 0
    expired: int = 0  # expired keys that were left out
    empty: int = 0  # keys without elements, which only a faulty server writes; also left out
    rest: bytes = b""  # bytes after the end that were read already and belong to the following data


def read_rdb(
    read: Callable[[int], bytes], now_ms: int, *, keyspace: Keyspace | None = None, keep_expired: bool = False
) -> Loaded:
    """Read a file into a keyspace (a new one if none is given); BadFormat says what is wrong and where.

    `read(count)` returns at most `count` bytes, none at the end. Expired keys are left out, unless they are kept for
    a log that continues from this file.
    """
    if keyspace is None:
        keyspace = Keyspace()
    return _Loading(read, now_ms, keyspace, keep_expired=keep_expired).run()


class _Loading:
    """The state of reading a file: the reader, and the attributes of the next key."""

    def __init__(self, read: Callable[[int], bytes], now_ms: int, keyspace: Keyspace, *, keep_expired: bool) -> None:
        self._reader = Reader(more=read)
        self._now_ms = now_ms
        self._keep_expired = keep_expired
        self._loaded = Loaded(keyspace)
        self._database = keyspace.databases[0]
        self._at_ms: int | None = None
        self._idle_s: int | None = None

    def run(self) -> Loaded:
        reader = self._reader
        self._read_magic()
        while (code := reader.byte()) != Op.END:
            if code < _FIRST_OPCODE:
                self._read_key(code)
            else:
                self._read_opcode(code)
        self._check()
        self._loaded.rest = reader.data[reader.at :]
        return self._loaded

    def _read_magic(self) -> None:
        magic = self._reader.take(9)
        digits = magic[5:] if magic.startswith(b"REDIS") else magic[6:] if magic.startswith(b"VALKEY") else b""
        if not digits.isdigit():
            raise BadFormat("this is not an RDB file", 0)
        version = self._loaded.version = int(digits)
        if version > VERSION and version not in FOREIGN_VERSIONS:
            raise NewerFormat(
                f"RDB version {version} was written by a newer server, {VERSION} is the last one known", 0
            )
        if version < 1:
            raise BadFormat(f"an RDB file of version {version} cannot be read", 0)

    def _read_opcode(self, code: int) -> None:
        reader, loaded = self._reader, self._loaded
        match code:
            case Op.AUX:
                name = reader.string()
                loaded.aux[name] = reader.string()
            case Op.SELECT:
                self._select(reader.length())
            case Op.SIZES:
                reader.length()
                reader.length()
            case Op.EXPIRES_MS:
                self._at_ms = reader.time()
            case Op.EXPIRES_S:
                self._at_ms = 1000 * int.from_bytes(reader.take(4), "little", signed=True)
            case Op.FREQUENCY:
                reader.byte()
            case Op.IDLE_S:
                self._idle_s = reader.length()
            case Op.FUNCTION:
                loaded.functions.append(reader.string())
            case Op.SLOTS:
                for _ in range(3):
                    reader.length()
            case Op.MODULE_AUX:
                self._pass_module()
            case _:
                raise reader.bad(f"what an opcode {code} means is not known")

    def _select(self, index: int) -> None:
        databases = self._loaded.keyspace.databases
        if index >= len(databases):
            raise self._reader.bad(f"database {index} is beyond the {len(databases)} there are")
        self._database = databases[index]

    def _pass_module(self) -> None:
        """Skip the data of a module besides keys: numbers, doubles and strings, each after its kind."""
        reader = self._reader
        reader.length()
        while (kind := reader.length()) != 0:
            match kind:
                case 1 | 2:
                    reader.length()
                case 3:
                    reader.take(4)
                case 4:
                    reader.take(8)
                case 5:
                    reader.string()
                case _:
                    raise reader.bad("a module's data of an unknown kind")

    def _read_key(self, kind: int) -> None:
        reader, loaded = self._reader, self._loaded
        key = reader.string()
        at_ms, self._at_ms = self._at_ms, None
        idle_s, self._idle_s = self._idle_s, None
        try:
            value = load_value(kind, reader, loaded.keyspace.settings, self._now_ms, lenient=True)
        except EmptyValue:
            loaded.empty += 1
            return
        except BadFormat as error:
            raise BadFormat(f"key {key!r}: {error.what}", error.at) from error
        if at_ms is not None and at_ms < self._now_ms and not self._keep_expired:
            loaded.expired += 1
            return
        if key in self._database.values:
            raise reader.bad(f"key {key!r} is there twice")
        self._put(key, value, at_ms, idle_s)

    def _put(self, key: bytes, value: object, at_ms: int | None, idle_s: int | None) -> None:
        database = self._database
        database.values[key] = value
        if database.order is not None:
            database.order.add(key, database.values)
        if at_ms is not None:
            database.expires[key] = at_ms
        if isinstance(value, Stream) and value.producers:
            database.idempotent.add(key)
        if idle_s is not None:
            database.accessed[key] = self._now_ms - 1000 * idle_s
        self._loaded.keys += 1

    def _check(self) -> None:
        reader = self._reader
        if self._loaded.version < _FIRST_CHECKED:
            return
        reader.pass_on()
        crc = reader.crc
        stored = int.from_bytes(reader.take(8), "little")
        if stored not in (0, crc):
            raise BadFormat("the checksum of an RDB file is wrong", reader.offset)
