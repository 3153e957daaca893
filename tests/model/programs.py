"""Random stream commands: few keys, groups and consumers, ids that mostly exist, options of every kind.

A function makes one command. It asks a chooser for every decision, so that hypothesis can shrink what it chose and
a seeded generator can repeat it, and it looks into the model to name ids that are there. Simple choices come first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .naive import NaiveRedis
from .naive_ids import I64, TOP, Id, after, text
from .naive_stream import Stream

T = TypeVar("T")
Argv = list[bytes]


class Chooser(Protocol):
    """Decides; earlier options are the simpler ones."""

    def __call__(self, options: Sequence[T]) -> T: ...


class RandomChooser:
    """Decides by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


@dataclass
class Scene:
    """What a command is made for."""

    choose: Chooser
    world: NaiveRedis
    now: int
    real_clock: bool = False  # the server forgets idempotent ids by itself: make none that are about to go

    def rarely(self, one_in: int = 8) -> bool:
        return self.choose([False] * (one_in - 1) + [True])

    def often(self) -> bool:
        return self.choose([False, True])

    def key(self) -> bytes:
        return self.choose([b"s"] * 12 + [b"t"] * 5 + [b"none", b"text"])

    def group(self) -> bytes:
        return self.choose([b"g"] * 14 + [b"h"] * 8 + [b"nog"])

    def consumer(self) -> bytes:
        return self.choose([b"a", b"b", b"c", b"a", b"b", b"c", b"a", b""])

    def stream(self, key: bytes) -> Stream | None:
        value = self.world.values.get(key)
        return value if isinstance(value, Stream) else None

    def pool(self, key: bytes) -> list[Id]:
        """Ids worth naming: entries, dead or alive, pending ones, and some that never were."""
        found: list[Id] = []
        stream = self.stream(key)
        if stream is not None:
            found = [slot.id for node in stream.nodes for slot in node.slots]
            found += [p.id for group in stream.groups.values() for p in group.pending]
            found += [group.last for group in stream.groups.values()]
            found += [stream.last]
        return found or [(1, 0)]

    def id(self, key: bytes) -> bytes:
        """An id that mostly exists."""
        entry_id = self.choose(self.pool(key))
        if self.rarely(12):
            return self.choose(
                [text(after(entry_id)) if entry_id != TOP else b"1-0", b"0", b"1-1", b"%d" % entry_id[0]]
            )
        return text(entry_id)

    def pending_id(self, key: bytes, name: bytes) -> bytes:
        """An id that is mostly pending."""
        stream = self.stream(key)
        group = stream.groups.get(name) if stream else None
        if group is None or not group.pending or self.rarely(5):
            return self.id(key)
        return text(self.choose(group.by_id()).id)

    def some(self, make: Callable[[], bytes]) -> Argv:
        return [make() for _ in range(self.choose([1, 1, 1, 2, 3, 5]))]

    def maybe(self, make: Callable[[], Argv], one_in: int = 3) -> Argv:
        return make() if self.rarely(one_in) else []

    def fields(self) -> Argv:
        return list(
            self.choose(
                [
                    (b"f", b"v"),
                    (b"f", b"w"),
                    (b"f", b"v", b"n", b"42"),
                    (b"n", b"-70000", b"f", b"v"),
                    (b"f", b"v", b"f", b"v"),
                    (b"", b""),
                    (b"f", b"x" * 70),
                    (b"f", b"v" * 1500),
                    (b"g", b"9" * 19, b"h", b"00"),
                ]
            )
        )

    def range_bounds(self, key: bytes) -> Argv:
        start = self.choose([b"-", self.id(key), b"(" + self.id(key), b"(" + text(TOP)])
        end = self.choose([b"+", self.id(key), b"(" + self.id(key), b"(0"])
        if self.rarely(6):
            start = end
        return [start, end]

    def min_idle(self) -> bytes:
        return b"%d" % self.choose([0, 0, 1, 2, 5, 20, 1000, self.now, self.now + 1, I64])

    def settle_strategy(self) -> Argv:
        return self.choose([[], [b"KEEPREF"], [b"DELREF"], [b"ACKED"], [b"acked"], [b"DELREF"]])


def xadd(scene: Scene) -> Argv:
    key = scene.key()
    last = stream.last if (stream := scene.stream(key)) else (0, 0)
    head = scene.maybe(lambda: [b"NOMKSTREAM"], 8)
    producer = scene.maybe(
        lambda: scene.choose(
            [
                [b"IDMP", scene.choose([b"p", b"q"]), scene.choose([b"1", b"2", b"3", b"4"])],
                [b"IDMPAUTO", scene.choose([b"p", b"q"])],
            ]
        ),
        4,
    )
    ms, seq = last
    explicit = [
        b"%d-*" % ms,
        b"%d-%d" % (ms, min(seq + 1, TOP[1])),
        b"%d-*" % (ms + 1),
        b"%d" % (ms + 1),
        text(last),
        b"%d-%d" % (max(ms - 1, 0), 5),
        b"0-0",
    ]
    id_word = b"*" if producer and not scene.rarely(20) else scene.choose([b"*"] * 8 + explicit)
    if scene.rarely(1500):
        id_word = text(TOP)
    trim = scene.maybe(
        lambda: trim_clause(scene, key) + scene.maybe(lambda: [scene.choose([b"KEEPREF", b"DELREF", b"ACKED"])], 2), 5
    )
    return [b"XADD", key, *head, *producer, *trim, id_word, *scene.fields()]


def trim_clause(scene: Scene, key: bytes) -> Argv:
    approximate = scene.often()
    sign = [b"~"] if approximate else scene.choose([[], [b"="]])
    if scene.often():
        length = len(stream.entries()) if (stream := scene.stream(key)) else 3
        most = scene.choose([0, 1, 2, 4, 8, 16, max(length - 1, 0), max(length - 3, 0)])
        clause = [b"MAXLEN", *sign, b"%d" % most]
    else:
        clause = [b"MINID", *sign, scene.id(key)]
    return clause + (scene.maybe(lambda: [b"LIMIT", scene.choose([b"0", b"1", b"3", b"8"])]) if approximate else [])


def xtrim(scene: Scene) -> Argv:
    key = scene.key()
    strategy = scene.settle_strategy()
    clause = trim_clause(scene, key)
    return [b"XTRIM", key, *(strategy + clause if scene.often() else clause + strategy)]


def xdel(scene: Scene) -> Argv:
    key = scene.key()
    return [b"XDEL", key, *scene.some(lambda: scene.id(key))]


def ids_clause(scene: Scene, make: Callable[[], bytes]) -> Argv:
    words = scene.some(make)
    return [b"IDS", b"%d" % len(words), *words]


def xdelex(scene: Scene) -> Argv:
    key = scene.key()
    return [b"XDELEX", key, *scene.settle_strategy(), *ids_clause(scene, lambda: scene.id(key))]


def xsetid(scene: Scene) -> Argv:
    key = scene.key()
    last = stream.last if (stream := scene.stream(key)) else (1, 0)
    added = stream.added if stream else 0
    target = scene.choose(
        [text(last), text(after(last)) if last != TOP else b"1", b"%d-3" % (last[0] + 1), scene.id(key)]
    )
    options = scene.maybe(lambda: [b"ENTRIESADDED", b"%d" % scene.choose([added, added + 2, max(0, added - 2), 0])], 2)
    options += scene.maybe(lambda: [b"MAXDELETEDID", scene.choose([b"0-0", scene.id(key)])], 2)
    return [b"XSETID", key, target, *options]


def xcfgset(scene: Scene) -> Argv:
    durations = [b"100", b"200", b"86400"] + ([] if scene.real_clock else [b"1", b"3"])
    options = scene.maybe(lambda: [b"IDMP-DURATION", scene.choose(durations)], 2)
    options += scene.maybe(lambda: [b"IDMP-MAXSIZE", scene.choose([b"100", b"2", b"1", b"3"])], 2)
    return [b"XCFGSET", scene.key(), *options]


def xidmprecord(scene: Scene) -> Argv:
    key = scene.key()
    entry_id = scene.choose(scene.pool(key))
    if scene.real_clock and entry_id[0] < scene.now - 50_000:
        entry_id = TOP
    return [b"XIDMPRECORD", key, scene.choose([b"p", b"q", b""]), scene.choose([b"1", b"2", b"7"]), text(entry_id)]


def xlen(scene: Scene) -> Argv:
    return [b"XLEN", scene.key()]


def xrange(scene: Scene) -> Argv:
    key = scene.key()
    bounds = scene.range_bounds(key)
    words = [b"XREVRANGE", key, *bounds[::-1]] if scene.often() else [b"XRANGE", key, *bounds]
    return words + scene.maybe(lambda: [b"COUNT", scene.choose([b"1", b"2", b"5", b"0", b"-1"])])


def budgets(scene: Scene) -> Argv:
    count = scene.maybe(lambda: [b"COUNT", scene.choose([b"1", b"2", b"3", b"0"])], 2)
    count += scene.maybe(lambda: [b"MAXCOUNT", scene.choose([b"1", b"3", b"4", b"7"])], 4)
    count += scene.maybe(lambda: [b"MAXSIZE", b"%d" % scene.choose([1, 40, 75, 120, 171, 200, 300, 2000])], 4)
    return count + scene.maybe(lambda: [b"BLOCK", b"5"], 12)


def stream_keys(scene: Scene) -> list[bytes]:
    return scene.choose(
        [[b"s"]] * 6 + [[b"t"], [b"s", b"t"], [b"t", b"s"], [b"s", b"t"], [b"s", b"s"], [b"s", b"none"]]
    )


def xread(scene: Scene) -> Argv:
    keys = stream_keys(scene)
    starts = [scene.choose([b"0", scene.id(key), b"+", b"$", b"0-0"]) for key in keys]
    return [b"XREAD", *budgets(scene), b"STREAMS", *keys, *starts]


def xreadgroup(scene: Scene) -> Argv:
    keys = [key for key in stream_keys(scene) if key != b"none"] or [b"s"]
    starts = [scene.choose([b">"] * 7 + [b"0", scene.id(key)]) for key in keys]
    options = scene.maybe(lambda: [b"CLAIM", scene.min_idle()], 2) + scene.maybe(lambda: [b"NOACK"], 6)
    words = [b"GROUP", scene.group(), scene.consumer()]
    return [b"XREADGROUP", *words, *budgets(scene), *options, b"STREAMS", *keys, *starts]


def xgroup_create(scene: Scene) -> Argv:
    key = scene.key()
    start = scene.choose([b"0", b"$", scene.id(key), scene.id(key)])
    options = scene.maybe(lambda: [b"MKSTREAM"], 4) + entries_read(scene, key)
    return [b"XGROUP", b"CREATE", key, scene.group(), start, *options]


def entries_read(scene: Scene, key: bytes) -> Argv:
    added = stream.added if (stream := scene.stream(key)) else 2
    return scene.maybe(lambda: [b"ENTRIESREAD", b"%d" % scene.choose([0, 1, added, added + 5, -1])], 3)


def xgroup_setid(scene: Scene) -> Argv:
    key = scene.key()
    start = scene.choose([scene.id(key), b"0", scene.id(key), b"$", b"-", scene.id(key), b"+"])
    return [b"XGROUP", b"SETID", key, scene.group(), start, *entries_read(scene, key)]


def xgroup_destroy(scene: Scene) -> Argv:
    return [b"XGROUP", b"DESTROY", scene.key(), scene.group()]


def xgroup_createconsumer(scene: Scene) -> Argv:
    return [b"XGROUP", b"CREATECONSUMER", scene.key(), scene.group(), scene.consumer()]


def xgroup_delconsumer(scene: Scene) -> Argv:
    return [b"XGROUP", b"DELCONSUMER", scene.key(), scene.group(), scene.consumer()]


def xack(scene: Scene) -> Argv:
    key, group = scene.key(), scene.group()
    return [b"XACK", key, group, *scene.some(lambda: scene.pending_id(key, group))]


def xackdel(scene: Scene) -> Argv:
    key, group = scene.key(), scene.group()
    block = ids_clause(scene, lambda: scene.pending_id(key, group))
    return [b"XACKDEL", key, group, *scene.settle_strategy(), *block]


def xnack(scene: Scene) -> Argv:
    key, group = scene.key(), scene.group()
    block = ids_clause(scene, lambda: scene.pending_id(key, group))
    options = scene.maybe(lambda: [b"RETRYCOUNT", scene.choose([b"0", b"3", b"%d" % I64])], 4)
    options += scene.maybe(lambda: [b"FORCE"], 2)
    mode = scene.choose([b"FAIL", b"SILENT", b"FATAL", b"fail"])
    return [b"XNACK", key, group, mode, *block, *options]


def xpending(scene: Scene) -> Argv:
    key, group = scene.key(), scene.group()
    if scene.rarely(3):
        return [b"XPENDING", key, group]
    idle = scene.maybe(lambda: [b"IDLE", scene.min_idle()])
    count = scene.choose([b"10", b"1", b"3", b"100", b"0", b"-1"])
    owner = scene.maybe(lambda: [scene.consumer()])
    return [b"XPENDING", key, group, *idle, *scene.range_bounds(key), count, *owner]


def xclaim(scene: Scene) -> Argv:
    key, group = scene.key(), scene.group()
    times = [0, 5, scene.now - 7, scene.now - 3, scene.now, scene.now + 1000, -1, -9]
    options = scene.maybe(lambda: [b"IDLE", b"%d" % scene.choose([0, 3, 10, 1000, -4, I64])], 5)
    options += scene.maybe(lambda: [b"TIME", b"%d" % scene.choose(times)], 5)
    options += scene.maybe(lambda: [b"RETRYCOUNT", scene.choose([b"0", b"7", b"%d" % I64, b"-1"])], 5)
    options += scene.maybe(lambda: [b"FORCE"], 3) + scene.maybe(lambda: [b"JUSTID"], 3)
    options += scene.maybe(lambda: [b"LASTID", scene.id(key)], 8)
    words = scene.some(lambda: scene.pending_id(key, group))
    return [b"XCLAIM", key, group, scene.consumer(), scene.min_idle(), *words, *options]


def xautoclaim(scene: Scene) -> Argv:
    key, group = scene.key(), scene.group()
    start = scene.choose([b"0", b"-", scene.id(key), b"(" + scene.id(key), b"+"])
    options = scene.maybe(lambda: [b"COUNT", scene.choose([b"1", b"2", b"5"])], 2)
    options += scene.maybe(lambda: [b"JUSTID"], 3)
    return [b"XAUTOCLAIM", key, group, scene.consumer(), scene.min_idle(), start, *options]


def xinfo_stream(scene: Scene) -> Argv:
    full = scene.choose(
        [[], [b"FULL"], [b"FULL", b"COUNT", b"0"], [b"FULL", b"COUNT", b"2"], [b"FULL", b"COUNT", b"-1"]]
    )
    return [b"XINFO", b"STREAM", scene.key(), *full]


def xinfo_groups(scene: Scene) -> Argv:
    return [b"XINFO", b"GROUPS", scene.key()]


def xinfo_consumers(scene: Scene) -> Argv:
    return [b"XINFO", b"CONSUMERS", scene.key(), scene.group()]


def a_string(scene: Scene) -> Argv:
    return [b"SET", b"text", b"a string"]


def delete_key(scene: Scene) -> Argv:
    return [b"DEL", scene.key()]


WEIGHTS: dict[Callable[[Scene], Argv], int] = {
    xadd: 30,
    xtrim: 3,
    xdel: 4,
    xdelex: 4,
    xsetid: 1,
    xcfgset: 1,
    xidmprecord: 2,
    xlen: 1,
    xrange: 3,
    xread: 4,
    xreadgroup: 22,
    xgroup_create: 6,
    xgroup_setid: 3,
    xgroup_destroy: 1,
    xgroup_createconsumer: 2,
    xgroup_delconsumer: 2,
    xack: 5,
    xackdel: 5,
    xnack: 9,
    xpending: 5,
    xclaim: 9,
    xautoclaim: 6,
    xinfo_stream: 3,
    xinfo_groups: 2,
    xinfo_consumers: 2,
    a_string: 1,
}

ALL = [make for make, weight in WEIGHTS.items() for _ in range(weight)]


def command(scene: Scene) -> Argv:
    """Any command, the more useful ones more often; a key is deleted once in a long while."""
    if scene.rarely(200):
        return delete_key(scene)
    return scene.choose(ALL)(scene)
