"""A random program: commands in the order they are sent, which of them share a moment, and where time passes.

A program is made batch by batch while it runs, so that later commands can use what the server answered to
earlier ones. What was sent is kept, so that a program that fails can be run again in parts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

from tests.differential import programs_plain, programs_streams
from tests.differential.words import STREAMS, pick, random_state

BATCH = 120  # commands that go out in one packet
PLAIN = 0.2  # how many programs are about plain keys
PROBE_EVERY = 40  # commands between two looks at the whole state


@dataclass(slots=True)
class Step:
    """One command of a program."""

    argv: list[bytes]
    joined: bool = False  # runs at the same moment as the step before it
    pause_ms: int = 0  # time that passes before it
    now_ms: int = 0  # when it ran
    made: bytes | None = None  # the id that the server made for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a program asks of the server before it begins."""

    protocol: int = 2
    node_max_entries: int = 100
    node_max_bytes: int = 4096


class Source(Protocol):
    """Where the commands of a program come from."""

    def opening(self) -> list[list[bytes]]: ...
    def command(self) -> list[bytes]: ...
    def probes(self) -> list[list[bytes]]: ...
    def closing(self) -> list[list[bytes]]: ...
    def learn(self, argv: list[bytes], reply: bytes) -> None: ...
    def set_time(self, now_ms: int) -> None: ...


class StreamSource:
    """Commands on streams."""

    def __init__(self, rng: random.Random, *, new_words: bool, orderly: bool) -> None:
        self._rng = rng
        self.state = random_state(rng, new_words=new_words, orderly=orderly)

    def opening(self) -> list[list[bytes]]:
        return programs_streams.opening(self._rng, self.state)

    def command(self) -> list[bytes]:
        return programs_streams.random_command(self._rng, self.state)

    def probes(self) -> list[list[bytes]]:
        return programs_streams.probes((pick(self._rng, STREAMS),))

    def closing(self) -> list[list[bytes]]:
        return programs_streams.closing(new_words=self.state.new_words)

    def learn(self, argv: list[bytes], reply: bytes) -> None:
        self.state.learn(argv, reply)

    def set_time(self, now_ms: int) -> None:
        self.state.now_ms = now_ms


class PlainSource:
    """Commands on plain keys, and some on the streams that live beside them."""

    LOOKS = (
        (b"GET",),
        (b"HGETALL",),
        (b"SMEMBERS",),
        (b"LRANGE", b"0", b"-1"),
        (b"ZRANGE", b"0", b"-1", b"WITHSCORES"),
        (b"PTTL",),
    )

    def __init__(self, rng: random.Random, *, new_words: bool, orderly: bool) -> None:
        self._rng = rng
        self._streams = StreamSource(rng, new_words=new_words, orderly=orderly)

    def opening(self) -> list[list[bytes]]:
        return [[b"XADD", key, b"1-0", b"f", b"v"] for key in programs_plain.STREAM_KEYS]

    def command(self) -> list[bytes]:
        if self._rng.random() < 0.1:
            return self._streams.command()
        argv = programs_plain.random_command(self._rng)
        return [b"DBSIZE"] if self._parts_the_servers(argv) else argv

    def _parts_the_servers(self, argv: list[bytes]) -> bool:
        """Whether two servers could not be compared after this command.

        RANDOMKEY, and SCAN with a cursor it accepts, remove the expired keys they meet, which are not the same ones.
        SET IFDEQ with a bad digest and GET is answered twice by Redis 8.10.2: all that follows is off by one.
        """
        name, words = argv[0].upper(), {word.upper() for word in argv}
        if name == b"SCAN":
            return argv[1:2] == [b"0"]
        return name == b"RANDOMKEY" or (name == b"SET" and b"GET" in words and bool(words & {b"IFDEQ", b"IFDNE"}))

    def probes(self) -> list[list[bytes]]:
        return self._look_at([pick(self._rng, programs_plain.PLAIN_KEYS)])

    def closing(self) -> list[list[bytes]]:
        return [*self._look_at(programs_plain.PLAIN_KEYS), [b"KEYS", b"*"]]

    def _look_at(self, keys: list[bytes]) -> list[list[bytes]]:
        """Each key read as every type; one of them fits."""
        return [[look[0], key, *look[1:]] for key in keys for look in self.LOOKS]

    def learn(self, argv: list[bytes], reply: bytes) -> None:
        self._streams.learn(argv, reply)

    def set_time(self, now_ms: int) -> None:
        self._streams.set_time(now_ms)


@dataclass
class Program:
    """A program that is being made."""

    seed: int
    settings: Settings
    source: Source
    length: int  # random commands, not counting the looks at the state
    rng: random.Random
    share: float = 0.5  # how often a command runs at the moment of the one before it
    slow: bool = False  # time passes between the packets, too
    sent: list[Step] = field(default_factory=list)
    made: int = 0

    def next_batch(self) -> list[Step]:
        """The next commands, or none at the end of the program."""
        if self.made >= self.length:
            return []
        commands = self.source.opening() if not self.made else []
        for _ in range(min(BATCH, self.length - self.made)):
            commands.append(self.source.command())
            self.made += 1
            if self.made % PROBE_EVERY == 0:
                commands += self.source.probes()
        if self.made >= self.length:
            commands += self.source.closing()
        steps = [Step(argv, joined=self.rng.random() < self.share) for argv in commands]
        steps[0].joined = False
        steps[0].pause_ms = pick(self.rng, (0, 0, 0, 1, 2, 4) if self.slow else (0,))
        self.sent += steps
        return steps


def random_program(seed: int, *, new_words: bool = True, orderly: bool = False) -> Program:
    """The program of this seed; an orderly one is about what workers do all day."""
    rng = random.Random(seed)
    settings = Settings(
        protocol=2 + seed % 2,
        node_max_entries=pick(rng, (100, 100, 10, 4, 3, 2, 1, 0)),
        node_max_bytes=pick(rng, (4096, 4096, 4096, 200, 64, 0)),
    )
    # plain commands are compared with Redis only: Valkey's have too many small differences of their own
    kind = PlainSource if rng.random() < PLAIN and new_words and not orderly else StreamSource
    source = kind(rng, new_words=new_words, orderly=orderly)
    return Program(
        seed,
        settings,
        source,
        length=rng.randint(80, 900 if orderly else 500),
        rng=rng,
        share=pick(rng, (0.0, 0.5, 0.7)),
        slow=rng.random() < 0.5,
    )
