"""An engine to try plain-key commands on, with a clock that stands still.

e("SET k v EX 10")              the reply; words are split at blanks, further arguments are one word each
e.error("INCR k")               the text of the error that must come
e.did("SET k v EX 10")          what it did, as `Did`: words joined by blanks, so that a test reads like a log
e.wire("ZSCORE z m", 3)         the bytes of the reply
e.now_ms += 5                   time
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.engine import invariants
from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.outcome import Outcome, Reply, Wait
from millstream.errors import CommandError
from millstream.server.protocol.resp import encode

NOW_MS = 1_767_225_600_000


@dataclass(frozen=True)
class Did:
    """What one command did."""

    reply: Reply | Wait
    log: list[str]
    events: list[str]  # "class name key", with "@db" behind it for another database than 0
    touched: list[str]
    ready: list[str]
    dirty: int

    def nothing(self) -> bool:
        """Whether it had no effect at all."""
        return not (self.log or self.events or self.touched or self.ready or self.dirty)


class Plain:
    """Commands on an empty keyspace."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self.now_ms = NOW_MS
        self.db = 0

    def __call__(self, line: str, *words: bytes | str) -> Reply | Wait:
        """The reply of a command that must not fail."""
        reply = self.outcome(line, *words).reply
        assert not isinstance(reply, CommandError), reply
        return reply

    def outcome(self, line: str, *words: bytes | str) -> Outcome:
        argv = [word.encode() if isinstance(word, str) else word for word in (*line.split(" "), *words)]
        outcome = execute(self.keyspace, self.db, argv, self.now_ms)
        invariants.check(self.keyspace)
        return outcome

    def error(self, line: str, *words: bytes | str) -> str:
        """The text of the error of a command, which must have done nothing."""
        before = self.state()
        did = self.did(line, *words)
        assert isinstance(did.reply, CommandError), did.reply
        assert self.state() == before
        assert not did.log
        return did.reply.wire.decode("latin-1")

    def did(self, line: str, *words: bytes | str) -> Did:
        """The reply and the effects of a command."""
        outcome = self.outcome(line, *words)
        return Did(
            outcome.reply,
            [_shown(b" ".join(argv), db) for db, argv in outcome.log],
            [_shown(b"%s %s %s" % (e.kind.encode(), e.name, e.key), e.db) for e in outcome.events],
            [_shown(key, db) for db, key in outcome.touched],
            sorted({_shown(key, db) for db, key in outcome.ready}),
            outcome.dirty,
        )

    def wire(self, line: str, protocol: int) -> bytes:
        """The bytes of the reply."""
        reply = self.outcome(line).reply
        assert not isinstance(reply, Wait)
        return encode(reply, protocol)

    def state(self) -> list[tuple[dict[bytes, str], dict[bytes, int]]]:
        """All keys, comparable."""
        return [({key: repr(value) for key, value in db.values.items()}, dict(db.expires)) for db in self.keyspace]


def _shown(words: bytes, db: int) -> str:
    return words.decode("latin-1") + (f"@{db}" if db else "")
