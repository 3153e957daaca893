"""RESP for the model: a reply value to bytes, as plainly as it can be done.

The model has its own encoder because MAXSIZE counts encoded bytes and because replies are compared as bytes.
"""

from __future__ import annotations

from millstream.engine.outcome import ByKey, Members, NilArray, Pairs, Reply, Simple
from millstream.errors import CommandError


def encode(reply: Reply, version: int) -> bytes:
    """A reply as it goes over the wire in protocol 2 or 3."""
    if isinstance(reply, CommandError):
        return b"-" + reply.wire + b"\r\n"
    if reply is None:
        return b"$-1\r\n" if version == 2 else b"_\r\n"
    if isinstance(reply, NilArray):
        return b"*-1\r\n" if version == 2 else b"_\r\n"
    if isinstance(reply, Simple):
        return b"+" + reply + b"\r\n"
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, ByKey) and version == 2:
        return encode([list(pair) for pair in zip(reply[0::2], reply[1::2], strict=True)], version)
    items = b"".join(encode(item, version) for item in reply)
    if isinstance(reply, (Pairs, ByKey)) and version == 3:
        return b"%%%d\r\n%s" % (len(reply) // 2, items)
    sign = b"~" if isinstance(reply, Members) and version == 3 else b"*"
    return b"%s%d\r\n%s" % (sign, len(reply), items)
