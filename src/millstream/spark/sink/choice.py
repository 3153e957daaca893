"""Chooses the way of writing that a server allows."""

from __future__ import annotations

from millstream.delivery.keys import Keys
from millstream.errors import ConfigError, ServerReplied
from millstream.spark.options import Write
from millstream.spark.runtime.errors import patiently
from millstream.spark.sink.fence import FenceWriter, fence_script
from millstream.spark.sink.writer import Identity, IdmpWriter, PlainWriter
from millstream.spark.wire.socket import open_for

KINDS = {"none": PlainWriter, "fence": FenceWriter, "idmp": IdmpWriter}


def make_writer(options: Write, stream: str, identity: Identity) -> PlainWriter:
    """Make the writer of the chosen way."""
    return KINDS[chosen_way(options, stream)](options, stream, identity)


def chosen_way(options: Write, stream: str) -> str:
    """Return the way that the option names; `auto` is the fence, or IDMP where the user may not run scripts."""
    if options.idempotence != "auto":
        return options.idempotence
    return patiently(options.connection.retry_s, lambda: _best_way(options, stream))


def _best_way(options: Write, stream: str) -> str:
    with open_for(options.connection, stream) as wire:
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


def _idmp_question(stream: str) -> tuple[str, ...]:
    """Return a command that changes nothing and that only a server with IDMP understands."""
    beside = Keys(stream.encode()).base.decode() + ":no-such-key"
    return ("XADD", beside, "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v")
