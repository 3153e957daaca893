"""The settings that DUMP and RESTORE follow."""

from __future__ import annotations

from millstream.persistence.rdb import dump_payload
from tests.server.support import START_MS, World

SID = (1).to_bytes(8, "big") + (0).to_bytes(8, "big")  # of the entry 1-0


def without_zone(payload: bytes) -> bytes:
    """The payload of a stream with one released entry, which is pending, nobody's and in no zone: no server writes it.

    A checksum of zeros is one that is not looked at.
    """
    body = payload[:-8]
    at = body.rindex(b"\x01" + SID)
    return body[:at] + b"\x00" + body[at + 17 :] + bytes(8)


def test_what_dump_answers_is_compressed_or_not(world: World) -> None:
    peer = world.peer()
    value = b"abc" * 100
    peer([b"SET", b"k", value])
    assert len(peer("DUMP k")) < 100
    peer("CONFIG SET rdbcompression no")
    plain = dump_payload(value, compress=False, now_ms=START_MS)
    assert peer("DUMP k") == b"$%d\r\n%b\r\n" % (len(plain), plain)
    peer("CONFIG SET rdbcompression yes")
    assert len(peer("DUMP k")) < 100


def test_what_no_server_writes_is_refused_on_request(world: World) -> None:
    peer = world.peer()
    read = "XREADGROUP GROUP g c STREAMS s >"
    for request in ("XADD s 1-0 f v", "XGROUP CREATE s g 0", read, "XNACK s g FAIL IDS 1 1-0"):
        peer(request)
    stream = world.hub.keyspace.databases[0].values[b"s"]
    payload = without_zone(dump_payload(stream, compress=False, now_ms=START_MS))
    assert peer([b"RESTORE", b"t", b"0", payload]) == b"+OK\r\n"
    peer("CONFIG SET sanitize-dump-payload clients")
    assert peer([b"RESTORE", b"u", b"0", payload]) == b"-ERR Bad data format\r\n"
    peer("CONFIG SET sanitize-dump-payload no")
    assert peer([b"RESTORE", b"u", b"0", payload]) == b"+OK\r\n"
