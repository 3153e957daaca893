"""Which way rows are written to a stream: what the options say, what the server knows, what its user may do."""

from __future__ import annotations

import hiredis

from millstream.delivery.keys import Keys
from millstream.errors import ConfigError, ServerReplied
from millstream.spark.faults import patiently
from millstream.spark.options import Write
from millstream.spark.watching import WatchWriter
from millstream.spark.wire import Wire, open_for, packed
from millstream.spark.writing import FenceWriter, Identity, IdmpWriter, PlainWriter, fence_script

KINDS = {"none": PlainWriter, "watch": WatchWriter, "fence": FenceWriter, "idmp": IdmpWriter}


def make_writer(options: Write, stream: str, identity: Identity, *, has_ids: bool = False) -> PlainWriter:
    """The way that the option names; `auto` is a fence, or IDMP where the user may not run scripts."""
    way = options.idempotence
    if way in ("auto", "fence"):
        way = patiently(options.connection.retry_s, lambda: _best_way(options, stream, has_ids))
    return KINDS[way](options, stream, identity)


def _best_way(options: Write, stream: str, has_ids: bool) -> str:
    with open_for(options.connection, stream) as wire:
        if not has_ids and can_count(wire, _beside(stream)):
            return "watch"
        if options.idempotence == "fence":
            return "fence"
        for way, words in (("fence", ("SCRIPT", "LOAD", fence_script())), ("idmp", _idmp_question(stream))):
            try:
                wire.ask(*words)
                return way
            except ServerReplied as error:
                if error.is_retryable:
                    raise
    raise ConfigError(
        "rows cannot be written just once here, as the user may not run scripts: allow SCRIPT LOAD and EVALSHA, or set "
        "option 'idempotence' to none"
    )


def can_count(wire: Wire, beside: str) -> bool:
    """Whether a transaction can count what was appended in it, and is quicker than a script.

    A stream counts since Redis 7. In our own server a command in a transaction takes the long way.
    """
    questions = (
        ("INFO", "server"), ("WATCH", beside), ("XINFO", "STREAM", beside), ("EVAL", "return 1", 0), ("MULTI",),
        ("EXEC",),
    )  # fmt: skip
    wire.send(b"".join(packed(words) for words in questions))
    about, *others = wire.replies(len(questions))
    errors = [str(each) for each in others if isinstance(each, hiredis.ReplyError)]
    if not isinstance(about, bytes) or any(text.startswith("NOPERM") for text in errors):
        return False
    lines = dict(line.split(b":", 1) for line in about.splitlines() if b":" in line)
    return b"millstream_version" not in lines and int(lines[b"redis_version"].split(b".")[0]) >= 7


def _beside(stream: str) -> str:
    """A key that is not there, in the stream's slot."""
    return Keys(stream.encode()).base.decode() + ":no-such-key"


def _idmp_question(stream: str) -> tuple[str, ...]:
    """A command that changes nothing, and that only a server with IDMP understands."""
    return ("XADD", _beside(stream), "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v")
