"""Compares the engine with a real server over many random programs.

    python -m tests.differential.run --commands 500000
    python -m tests.differential.run --commands 50000 --effects     log lines and events as well
    python -m tests.differential.run --commands 50000 --direct      the broker's direct Python calls
    python -m tests.differential.run --server valkey --commands 20000
    python -m tests.differential.run --seed 1234 --programs 1       a failing program again

Exit code 1 if a difference was found that the tables do not explain. Every program has a seed of its own,
printed when it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.differential import differences, direct, effects
from tests.differential.duel import Duel, Mismatch
from tests.differential.program import Program, Settings, Step, random_program
from tests.differential.shrink import shortest
from tests.support import servers
from tests.support.wire import parse


@dataclass
class Result:
    """What a campaign found."""

    commands: int = 0  # random commands, not counting those that only look at the state
    compared: int = 0  # replies
    programs: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)  # a kind of failure to its first report
    repeated: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        rate = self.commands / self.seconds if self.seconds else 0
        return (
            f"{self.commands} commands in {self.programs} programs, {self.compared} replies compared, "
            f"{self.seconds:.0f} s, {rate:.0f} commands/s, {len(self.failures)} kinds of difference"
        )


def campaign(
    server: servers.RealServer,
    commands: int,
    seed: int,
    *,
    valkey: bool = False,
    most_failures: int = 1,
    programs: int | None = None,
    progress: bool = False,
    duel: Duel | None = None,
    orderly: bool = False,
) -> Result:
    """Run programs until so many commands have been compared, or so many kinds of difference were found."""
    duel = duel or Duel(server, differences.VALKEY if valkey else differences.REDIS)
    result = Result()
    started = time.monotonic()
    with contextlib.closing(duel):
        for program in seeds(seed, valkey=valkey, orderly=orderly):
            if result.commands >= commands or result.programs == programs:
                break
            if len(result.failures) >= most_failures:
                break
            one(duel, program, result)
            result.seconds, result.compared = time.monotonic() - started, duel.compared
            if progress and result.programs % 200 == 0:
                print(result.summary(), file=sys.stderr, flush=True)
    return result


def seeds(seed: int, *, valkey: bool, orderly: bool) -> Iterator[Program]:
    """The programs of a campaign; the first has the campaign's own seed."""
    while True:
        yield random_program(seed, new_words=not valkey, orderly=orderly)
        seed += 1


def one(duel: Duel, program: Program, result: Result) -> None:
    """Run a program; make it short and note it if it fails in a new way."""
    try:
        duel.run(program)
    except Mismatch as mismatch:
        kind = kind_of(mismatch)
        result.repeated[kind] += 1
        if kind not in result.failures:
            steps, failure = shortest(duel, program.settings, program.sent[: mismatch.at + 1], mismatch)
            result.failures[kind] = report(program, steps, failure)
    result.programs += 1
    result.commands += program.made


def kind_of(mismatch: Mismatch) -> str:
    """What failures of one cause have in common, most of the time."""
    words = 2 if mismatch.argv[0].upper() in (b"XGROUP", b"XINFO") else 1
    name = b" ".join(mismatch.argv[:words]).upper().decode("latin-1")
    if mismatch.why.startswith("Traceback"):
        return f"{name} {mismatch.why.strip().splitlines()[-1][:80]}"
    if "differ" in mismatch.why and "replies" not in mismatch.why:
        name, what = "", mismatch.why
    elif b"-" in (mismatch.ours[:1], mismatch.theirs[:1]):
        replies = (re.sub(rb"'[^']*('|\r)", b"'..'", reply)[:60] for reply in (mismatch.ours, mismatch.theirs))
        what = " ".join(map(repr, replies))
    else:
        what = first_difference(mismatch.ours, mismatch.theirs)[:70]
    return re.sub(r"\d+", "#", f"{name} {what}")


def report(program: Program, steps: list[Step], mismatch: Mismatch) -> str:
    """A failing program and both replies, for people."""
    lines = [f"seed {program.seed}, {shown_settings(program.settings)}: {mismatch.why.strip()}"]
    for step in steps:
        wait = f"  (after {step.pause_ms} ms)" if step.pause_ms else ""
        lines.append(f"  {'+' if step.joined else ' '} {shown(step.argv)}{wait}")
    lines.append(f"  at {mismatch.now_ms}")
    lines.append(f"  engine: {cut(mismatch.ours)}")
    lines.append(f"  server: {cut(mismatch.theirs)}")
    if mismatch.ours and mismatch.theirs and "replies" in mismatch.why:
        lines.append(f"  first difference: {first_difference(mismatch.ours, mismatch.theirs)}")
    return "\n".join(lines)


def shown_settings(settings: Settings) -> str:
    return (
        f"RESP{settings.protocol}, stream-node-max-entries {settings.node_max_entries}, "
        f"stream-node-max-bytes {settings.node_max_bytes}"
    )


def shown(argv: list[bytes]) -> str:
    """A command as one would type it."""
    return " ".join(word.decode() if re.fullmatch(rb"[!-&(-~]{1,80}", word) else cut(word) for word in argv)


def cut(raw: bytes, most: int = 700) -> str:
    text = repr(raw)[1:]
    return text if len(text) <= most else f"{text[:most]}… ({len(raw)} bytes)"


def first_difference(ours: bytes, theirs: bytes) -> str:
    """Where in the reply the two part: the path there and both values."""
    try:
        return _difference(parse(ours), parse(theirs), "reply")
    except (ValueError, IndexError):
        return "one of the two is no reply"


def _difference(ours: object, theirs: object, path: str) -> str:
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and ours[0] == theirs[0]:
        return _difference(ours[1], theirs[1], path)
    if isinstance(ours, list) and isinstance(theirs, list):
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
            if mine != other:
                label = ours[index - 1] if index % 2 and isinstance(ours[index - 1], bytes) else index
                return _difference(mine, other, f"{path}[{label!r}]")
        return f"{path}: {len(ours)} items, server {len(theirs)}"
    return f"{path}: engine {ours!r:.200}, server {theirs!r:.200}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", type=int, default=500_000)
    parser.add_argument("--programs", type=int, help="stop after so many programs")
    parser.add_argument("--seed", type=int, default=random.randrange(2**40))
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    parser.add_argument("--direct", action="store_true", help="use the broker's direct calls where there are some")
    parser.add_argument("--effects", action="store_true", help="compare log lines and events, too")
    parser.add_argument("--failures", type=int, default=1, help="stop at so many kinds of difference")
    options = parser.parse_args()
    valkey = options.server == "valkey"
    binary = servers.valkey_binary() if valkey else servers.redis_binary()
    if binary is None:
        print(f"there is no {options.server} server here; `make oracle` builds Redis", file=sys.stderr)
        return 1
    what = "log lines and events" if options.effects else "direct calls" if options.direct else "replies"
    print(f"comparing the engine's {what} with {options.server}, seed {options.seed}", flush=True)
    with servers.running(binary, *(effects.AOF_OPTIONS if options.effects else ())) as server:
        duel = None
        if options.effects:
            duel = effects.EffectsDuel(server, differences.REDIS)
        elif options.direct:
            duel = Duel(server, differences.REDIS, direct.DirectSide)
        result = campaign(
            server,
            options.commands,
            options.seed,
            valkey=valkey,
            most_failures=options.failures,
            programs=options.programs,
            progress=True,
            duel=duel,
            orderly=options.direct,
        )
    for kind, text in result.failures.items():
        print(f"\n{result.repeated[kind]} x {kind}\n{text}")
    print(result.summary())
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
