"""`millstream doctor`: problems of a server and its streams, with the command that helps. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.cli import common, output
from millstream.cli import inspect as inspecting
from millstream.cli.exits import Failure
from millstream.cli.holds import current_holds
from millstream.cli.output import plural
from millstream.client import Backend
from millstream.delivery import inspect
from millstream.delivery.inspect import GroupState, StreamState
from millstream.delivery.keys import Keys, can_share_slot
from millstream.delivery.steps import Steps
from millstream.errors import BackendError, ConfigError, ServerReplied, Unavailable
from millstream.printable import printable
from millstream.worker.audit import audit_of

SILENT_S = 300  # a consumer that holds entries and was silent for longer does not come back by itself
MANY_DEAD = 1
LONG_STREAM = 1_000_000
FULL = 0.9  # of maxmemory


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know."""

    level: str  # ok, warning, problem
    about: str
    text: str
    next: str = ""  # the command to type


def doctor(pattern: inspecting.Pattern = "*", url: common.Url = None, as_json: common.AsJson = False) -> None:
    """Find problems of a server and its streams, and print for each the command that helps. Changes nothing.

    Exit codes: 0 no problem (warnings do not count), 1 at least one problem, 2 wrong use.
    """
    findings = list(_examine(pattern, url))
    if as_json:
        output.show(findings, (), as_json=True, empty="")
    for finding in () if as_json else findings:
        output.say(f"{finding.level:<8} {printable(finding.about)}: {printable(finding.text)}")
        if finding.next:
            output.say(f"{'':<8} → {printable(finding.next)}")
    problems = sum(finding.level == "problem" for finding in findings)
    if problems:
        raise Failure(output.plural(problems, "problem"))


def _examine(pattern: str, url: str | None) -> Iterator[Finding]:
    address = common.address(url)
    try:
        backend = common.opened(url)
    except BackendError as error:
        is_away = isinstance(error, Unavailable)
        step = "millstream serve    # or: --url, MILLSTREAM_URL" if is_away else ""  # it answers: the text says why not
        yield Finding("problem", "server", str(error), step)
        return
    with backend:
        yield Finding("ok", "server", f"{backend.url} answers; it has {', '.join(backend.capabilities.names())}")
        yield from _server(backend)
        names = inspect.stream_names(backend, pattern)
        if not names:
            yield Finding(
                "warning",
                "streams",
                f"no stream matches {pattern!r}",
                f"millstream publish orders '{{\"number\": 7}}' --url {address}",
            )
        for name in names:
            state = inspect.stream_state(backend, name)
            if state is not None:
                yield from _stream(backend, state)


def _stream(backend: Backend, state: StreamState) -> Iterator[Finding]:
    """Examine one stream; an answer that is an error is a finding, and the next stream is examined."""
    about = f"stream {state.name}"
    if misused := inspect.misused_keys(backend, state.name):
        for text in misused:
            yield Finding("problem", about, text, "redis-cli RENAME    # give that key another name, or delete it")
        return
    try:
        yield from _usable(backend, state)
    except ServerReplied as error:
        yield Finding("problem", about, str(error))


def _server(backend: Backend) -> Iterator[Finding]:
    missing = {"nack", "claim_read", "ackdel"} - set(backend.capabilities.names())
    if missing:
        yield Finding("ok", "server", "it has no XNACK, CLAIM or XACKDEL: scripts do the same (docs/guarantees.md)")
    try:
        nodes = [_facts(text) for text in backend.each_node("INFO", "everything")]
    except (BackendError, ConfigError):
        return  # hosted services may forbid INFO
    for number, facts in enumerate(nodes, 1):
        about = "server" if len(nodes) == 1 else f"shard {number}"
        yield from _memory(about, facts)
        yield from _keeping(about, facts)


def _facts(text: object) -> dict[str, str]:
    """Parse INFO. For a node of a cluster redis-py has parsed it already."""
    if isinstance(text, dict):
        return {str(name): str(value) for name, value in text.items()}
    lines = text.decode("utf-8", "replace").splitlines() if isinstance(text, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _memory(about: str, facts: dict[str, str]) -> Iterator[Finding]:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        yield Finding(
            "problem",
            about,
            f"maxmemory-policy {policy} may evict whole streams",
            "CONFIG SET maxmemory-policy noeviction",
        )
    limit, used = (int(facts.get(name, "0") or 0) for name in ("maxmemory", "used_memory"))
    if limit and used > limit * FULL:
        yield Finding(
            "problem",
            about,
            f"{used * 100 // limit} % of maxmemory is used: publishing and dead-lettering are refused when it is full",
            "millstream streams    # find the long one",
        )


def _keeping(about: str, facts: dict[str, str]) -> Iterator[Finding]:
    """Check that acknowledged writes survive a restart."""
    if facts.get("aof_enabled") == "0":
        yield Finding(
            "warning",
            about,
            "appendonly is off: a crash loses everything after the last snapshot",
            "CONFIG SET appendonly yes    # with appendfsync always a crash loses nothing",
        )
    for name, what in (
        ("aof_last_write_status", "the log cannot be written"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ):
        if facts.get(name, "ok") != "ok":
            yield Finding(
                "problem",
                about,
                f"{what} ({name}:{facts[name]}): check the disk and the server log",
                "redis-cli INFO persistence",
            )


def _usable(backend: Backend, state: StreamState) -> Iterator[Finding]:
    groups = inspect.group_states(backend, state.name)
    found = [*_alone(state, groups), *(finding for group in groups for finding in _group(backend, group))]
    found += _held(backend, state)
    nothing = Finding(
        "ok", f"stream {state.name}", f"{_entries(state.length)}, {plural(len(groups), 'group')}, nothing stuck"
    )
    yield from found or [nothing]


def _alone(state: StreamState, groups: Sequence[GroupState]) -> Iterator[Finding]:
    """Return findings about a stream apart from its groups."""
    about = f"stream {state.name}"
    if not can_share_slot(state.name.encode("utf-8", "surrogateescape")):
        yield Finding(
            "warning", about, "the braces of its name form no hash tag: it cannot be moved to a cluster under this name"
        )
    if state.dead is not None and state.dead >= MANY_DEAD:
        yield Finding(
            "warning",
            about,
            plural(state.dead, "dead letter"),
            f"millstream dead ls {state.name}    # after the cause is fixed: millstream dead redrive {state.name}",
        )
    if not groups and state.length:
        yield Finding(
            "warning",
            about,
            f"{_entries(state.length)} and no group: no worker reads them",
            "millstream worker app:stream",
        )
    if state.length > LONG_STREAM:
        yield Finding(
            "warning",
            about,
            f"{state.length} entries: a group without workers, or retain=all, keeps them",
            f"millstream groups {state.name}",
        )


def _held(backend: Backend, state: StreamState) -> Iterator[Finding]:
    """Find queries that keep entries and show no sign of life."""
    for hold in current_holds(backend, state.name):
        if hold.idle_s > SILENT_S:
            yield Finding(
                "warning",
                f"stream {state.name}",
                f"the Spark query {hold.query} keeps everything from {hold.first} on and was silent for "
                f"{hold.idle_s:.0f} s: start it again with its checkpoint, or release what it keeps",
                f"millstream holds {state.name} --release {hold.query}",
            )


def _group(backend: Backend, group: GroupState) -> Iterator[Finding]:
    about = f"group {group.name} of {group.stream}"
    command = f"millstream pending {group.stream} --group {group.name}"
    consumers = inspect.consumer_states(backend, group.stream, group.name)
    silent = [each for each in consumers if each.pending and each.idle_ms > SILENT_S * 1000 and each.name[:1] != "~"]
    living = [each for each in consumers if each.idle_ms <= SILENT_S * 1000 and each.name[:1] != "~"]
    if silent:
        held = sum(each.pending for each in silent)
        yield Finding(
            "problem",
            about,
            f"{_entries(held)} with {plural(len(silent), 'consumer')} silent for more than {SILENT_S} s, "
            f"the longest for {max(each.idle_ms for each in silent) // 1000} s",
            "millstream worker app:stream    # a worker takes them over; " + command,
        )
    yield from _account(backend, group)
    if (group.lag or group.released) and not living:
        yield Finding(
            "problem",
            about,
            f"undelivered: {group.lag or 0}, released: {group.released}, and no consumer reads",
            "millstream worker app:stream",
        )


def _account(backend: Backend, group: GroupState) -> Iterator[Finding]:
    """Check that the account balances, for groups that settle through our workers, which leaves counters."""
    keys = Keys(group.stream.encode("utf-8", "surrogateescape"))
    steps = Steps(keys, group.name.encode("utf-8", "surrogateescape"), backend.capabilities)
    found = audit_of(backend.run(steps.audit()), group.name)
    if found.balanced is False and found.done:
        assert found.published is not None
        yield Finding(
            "warning",
            f"group {group.name} of {group.stream}",
            f"{found.published} published and {found.accounted} accounted for: a client calls XACK or XDEL itself",
            f"millstream audit {group.stream} --group {group.name}",
        )


def _entries(count: int) -> str:
    return plural(count, "entry", "entries")
