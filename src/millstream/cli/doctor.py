"""`millstream doctor`: what is wrong with a place and its streams, and what to type next. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.cli import common
from millstream.cli.exits import Failure
from millstream.client import Backend
from millstream.delivery import inspect
from millstream.delivery.inspect import GroupState, StreamState
from millstream.delivery.keys import Keys, can_share_slot
from millstream.delivery.steps import Steps
from millstream.errors import BackendError, ConfigError
from millstream.worker.audit import audit_of

SILENT_S = 300  # a consumer with work in hand and no sign of life for so long is not coming back by itself
MANY_DEAD = 1
LONG_STREAM = 1_000_000
FULL = 0.9  # of maxmemory


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know."""

    level: str  # ok, warning, problem
    about: str
    text: str
    next: str = ""  # what to type


def doctor(pattern: str, *, url: str | None, as_json: bool) -> None:
    """Look at everything; exit code 1 if there is a problem."""
    findings = list(_examine(pattern, url))
    if as_json:
        common.show(findings, (), as_json=True, empty="")
    else:
        for finding in findings:
            print(f"{finding.level:<8} {finding.about}: {finding.text}")
            if finding.next:
                print(f"{'':<8} → {finding.next}")
    if any(finding.level == "problem" for finding in findings):
        raise Failure(f"{sum(finding.level == 'problem' for finding in findings)} problems")


def _examine(pattern: str, url: str | None) -> Iterator[Finding]:
    address = common.address(url)
    try:
        backend = common.opened(url)
    except BackendError as error:
        yield Finding("problem", "server", str(error), "millstream serve    # or: --url, MILLSTREAM_URL")
        return
    with backend:
        yield Finding("ok", "server", f"{backend.url} answers; it has {', '.join(backend.capabilities.names())}")
        yield from _server(backend)
        names = inspect.stream_names(backend, pattern)
        if not names:
            yield Finding(
                "warning",
                "streams",
                f"none like {pattern!r}",
                f"millstream publish orders '{{\"number\": 7}}' --url {address}",
            )
        for name in names:
            state = inspect.stream_state(backend, name)
            if state is not None:
                yield from _stream(backend, state)


def _server(backend: Backend) -> Iterator[Finding]:
    missing = {"nack", "claim_read", "ackdel"} - set(backend.capabilities.names())
    if missing:
        yield Finding("ok", "server", "no XNACK, CLAIM or XACKDEL here: scripts do the same (docs/guarantees.md)")
    try:
        nodes = [_facts(text) for text in backend.each_node("INFO", "everything")]
    except (BackendError, ConfigError):
        return  # services hide it
    for number, facts in enumerate(nodes, 1):
        about = "server" if len(nodes) == 1 else f"shard {number}"
        yield from _memory(about, facts)
        yield from _keeping(about, facts)


def _facts(text: object) -> dict[str, str]:
    """What INFO says. redis-py takes it apart where it speaks to a node of a cluster itself."""
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
            "millstream streams    # which one is long?",
        )


def _keeping(about: str, facts: dict[str, str]) -> Iterator[Finding]:
    """Whether what is acknowledged survives a restart."""
    if facts.get("aof_enabled") == "0":
        yield Finding(
            "warning",
            about,
            "appendonly is off: a crash takes what came after the last snapshot",
            "CONFIG SET appendonly yes    # with appendfsync always no second is lost",
        )
    for name, what in (
        ("aof_last_write_status", "the log cannot be written"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ):
        if facts.get(name, "ok") != "ok":
            yield Finding(
                "problem",
                about,
                f"{what} ({name}:{facts[name]}): look at its disk and at its log",
                "redis-cli INFO persistence",
            )


def _stream(backend: Backend, state: StreamState) -> Iterator[Finding]:
    groups = inspect.group_states(backend, state.name)
    found = [*_alone(state, groups), *(finding for group in groups for finding in _group(backend, group))]
    nothing = Finding("ok", f"stream {state.name}", f"{state.length} entries, {len(groups)} groups, nothing stuck")
    yield from found or [nothing]


def _alone(state: StreamState, groups: Sequence[GroupState]) -> Iterator[Finding]:
    """What a stream shows by itself."""
    about = f"stream {state.name}"
    if not can_share_slot(state.name.encode("utf-8", "surrogateescape")):
        yield Finding("warning", about, "its braces form no hash tag: it cannot be moved to a cluster as it is")
    if state.dead >= MANY_DEAD:
        yield Finding(
            "warning",
            about,
            f"{state.dead} dead letters",
            f"millstream dead ls {state.name}    # when the cause is gone: millstream dead redrive {state.name}",
        )
    if not groups and state.length:
        yield Finding(
            "warning",
            about,
            f"{state.length} entries and no group: nobody works on them",
            "millstream worker app:stream",
        )
    if state.length > LONG_STREAM:
        yield Finding(
            "warning",
            about,
            f"{state.length} entries: a group that is not read, or retain=all, keeps them",
            f"millstream groups {state.name}",
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
            f"{held} entries with {len(silent)} consumers that gave no sign for "
            f"{SILENT_S} s, the longest {max(each.idle_ms for each in silent) // 1000} s",
            "millstream worker app:stream    # a worker takes them over; " + command,
        )
    yield from _account(backend, group)
    if (group.lag or group.released) and not living:
        yield Finding(
            "problem",
            about,
            f"{group.lag or 0} entries wait, {group.released} are released, and nobody reads",
            "millstream worker app:stream",
        )


def _account(backend: Backend, group: GroupState) -> Iterator[Finding]:
    """Whether everything that was published is somewhere; of groups that settle through us, which leaves counters."""
    keys = Keys(group.stream.encode("utf-8", "surrogateescape"))
    steps = Steps(keys, group.name.encode("utf-8", "surrogateescape"), backend.capabilities)
    found = audit_of(backend.run(steps.audit()), group.name)
    if found.balanced is False and found.done:
        assert found.published is not None
        yield Finding(
            "warning",
            f"group {group.name} of {group.stream}",
            f"{found.published} published and {found.accounted} accounted for: somebody settles by XACK, or "
            "removes entries by XDEL",
            f"millstream audit {group.stream} --group {group.name}",
        )
