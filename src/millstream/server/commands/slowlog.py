"""SLOWLOG and LATENCY: what took long."""

from __future__ import annotations

from typing import Final

from millstream.engine.faults import fault
from millstream.engine.outcome import OK, Pairs, Reply, Verbatim
from millstream.engine.text.args import as_integer
from millstream.server.commands.common import add_help
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.core.stats import CommandStats
from millstream.server.features.slowlog import Peaks

COMMANDS = ServerRegistry("server")
COMMANDS.contains("slowlog", since="2.2.12", summary="A container for slow log commands.")
COMMANDS.contains("latency", since="2.8.13", summary="A container for latency diagnostics commands.")
_SLOWLOG: Final = "admin loading stale"
_LATENCY: Final = "admin noscript loading stale"
_GRAPH_ROWS: Final = 4
_MARKS: Final = "_o#"  # how far a bar reaches into the topmost of its rows


@COMMANDS.serves("slowlog|get", -2, _SLOWLOG, since="2.2.12", summary="Returns the latest slow commands.")
def slowlog_get(call: ServerCall, argv: list[bytes]) -> Reply:
    """SLOWLOG GET [count]"""
    count = as_integer(argv[2]) if len(argv) > 2 else 10
    if count is None or count < -1:
        raise fault("ERR count should be greater than or equal to -1")
    return [
        [entry.number, entry.at_s, entry.microseconds, [*entry.argv], entry.address, entry.name, entry.words]
        for entry in call.hub.watchman.latest(count)
    ]


@COMMANDS.serves("slowlog|len", 2, _SLOWLOG, since="2.2.12", summary="Returns the length of the slow log.")
def slowlog_len(call: ServerCall, argv: list[bytes]) -> Reply:
    """SLOWLOG LEN"""
    return len(call.hub.watchman.entries)


@COMMANDS.serves("slowlog|reset", 2, _SLOWLOG, since="2.2.12", summary="Clears the slow log.")
def slowlog_reset(call: ServerCall, argv: list[bytes]) -> Reply:
    """SLOWLOG RESET"""
    call.hub.watchman.entries.clear()
    return OK


@COMMANDS.serves("latency|latest", 2, _LATENCY, since="2.8.13", summary="Returns the latest latency samples.")
def latency_latest(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY LATEST"""
    return [[event.encode(), *peaks.samples[-1], peaks.highest] for event, peaks in call.hub.watchman.peaks.items()]


@COMMANDS.serves("latency|history", 3, _LATENCY, since="2.8.13", summary="Returns latency samples of an event.")
def latency_history(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY HISTORY event"""
    peaks = call.hub.watchman.peaks.get(argv[2].decode("latin-1"))
    return [] if peaks is None else [[*sample] for sample in peaks.samples]


@COMMANDS.serves("latency|reset", -2, _LATENCY, since="2.8.13", summary="Clears latency samples.")
def latency_reset(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY RESET [event [event ...]]"""
    watchman = call.hub.watchman
    return watchman.forget_peaks([word.decode("latin-1") for word in argv[2:]] or list(watchman.peaks))


@COMMANDS.serves("latency|graph", 3, _LATENCY, since="2.8.13", summary="Draws the latency samples of an event.")
def latency_graph(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY GRAPH event"""
    event = argv[2].decode("latin-1")
    peaks = call.hub.watchman.peaks.get(event)
    if peaks is None:
        raise fault(b"ERR No samples available for event '" + argv[2] + b"'")
    return Verbatim(_drawn(event, peaks, call.now_ms // 1000).encode("latin-1"))


def _drawn(event: str, peaks: Peaks, now_s: int) -> str:
    """Bars from left (old) to right, each with its age below it."""
    times = [ms for _, ms in peaks.samples]
    low, high = min(times), max(times)
    title = f"{event} - high {high} ms, low {low} ms (all time high {peaks.highest} ms)"
    steps = _GRAPH_ROWS * len(_MARKS)
    heights = [(ms - low) * (steps - 1) // max(high - low, 1) for ms in times]
    lines = ["".join(_mark(height - row * len(_MARKS)) for height in heights) for row in reversed(range(_GRAPH_ROWS))]
    ages = [_age(now_s - at_s) for at_s, _ in peaks.samples]
    depth = max(map(len, ages))
    below = ["".join(age[at] if at < len(age) else " " for age in ages) for at in range(depth)]
    return "\n".join([title, "-" * 80, *lines, "", *below, ""])


def _mark(height: int) -> str:
    """Return the character of a bar that ends this far above the bottom of a row."""
    if height < 0:
        return " "
    return _MARKS[height] if height < len(_MARKS) else "|"


def _age(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


@COMMANDS.serves("latency|doctor", 2, _LATENCY, since="2.8.13", summary="Reports on latency samples in words.")
def latency_doctor(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY DOCTOR"""
    watchman = call.hub.watchman
    if not call.hub.config.number("latency-monitor-threshold"):
        text = "The latency monitor is off. Turn it on with CONFIG SET latency-monitor-threshold <milliseconds>.\n"
    elif not watchman.peaks:
        text = "No latency spike was seen since the start or the last LATENCY RESET.\n"
    else:
        lines = [
            f"{event}: {len(peaks.samples)} latency spikes (average "
            f"{sum(ms for _, ms in peaks.samples) // len(peaks.samples)}ms, worst of all {peaks.highest}ms). "
            "SLOWLOG GET names the commands.\n"
            for event, peaks in watchman.peaks.items()
        ]
        text = "".join(lines)
    return Verbatim(text.encode())


@COMMANDS.serves("latency|histogram", -2, _LATENCY, since="7.0.0", summary="Returns latency histograms.")
def latency_histogram(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY HISTOGRAM [command [command ...]]"""
    asked = {word.lower().decode("latin-1") for word in argv[2:]}
    flat = Pairs()
    for name, counters in call.hub.stats.by_command.items():
        if counters.calls and (not asked or name in asked or name.partition("|")[0] in asked):
            flat += [name.encode(), _histogram(counters)]
    return flat


def _histogram(counters: CommandStats) -> Pairs:
    steps = Pairs()
    for microseconds, calls in counters.cumulative():
        steps += [microseconds, calls]
    return Pairs([b"calls", counters.calls, b"histogram_usec", steps])


for _container in ("slowlog", "latency"):
    add_help(COMMANDS, _container)
