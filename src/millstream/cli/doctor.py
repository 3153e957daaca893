"""`millstream doctor`: what is wrong with a place and its streams, and what to type next. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.cli import places
from millstream.cli.exits import Failure
from millstream.client import Backend
from millstream.delivery import overview
from millstream.delivery.keys import can_share_slot
from millstream.delivery.overview import GroupState, StreamState
from millstream.errors import BackendError, ConfigError

SILENT_S = 300  # a consumer with work in hand and no sign of life for so long is not coming back by itself
MANY_DEAD = 1
LONG_STREAM = 1_000_000


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
        places.show(findings, (), as_json=True, empty="")
    else:
        for finding in findings:
            print(f"{finding.level:<8} {finding.about}: {finding.text}")
            if finding.next:
                print(f"{'':<8} → {finding.next}")
    if any(finding.level == "problem" for finding in findings):
        raise Failure(f"{sum(finding.level == 'problem' for finding in findings)} problems")


def _examine(pattern: str, url: str | None) -> Iterator[Finding]:
    address = places.address(url)
    try:
        backend = places.opened(url)
    except BackendError as error:
        yield Finding("problem", "server", str(error), "millstream serve    # or: --url, MILLSTREAM_URL")
        return
    with backend:
        yield Finding("ok", "server", f"{backend.url} answers; it has {', '.join(backend.capabilities.names())}")
        yield from _server(backend)
        names = overview.stream_names(backend, pattern)
        if not names:
            yield Finding("warning", "streams", f"none like {pattern!r}",
                          f"millstream publish orders '{{\"number\": 7}}' --url {address}")  # fmt: skip
        for name in names:
            state = overview.stream_state(backend, name)
            if state is not None:
                yield from _stream(backend, state)


def _server(backend: Backend) -> Iterator[Finding]:
    missing = {"nack", "claim_read", "ackdel"} - set(backend.capabilities.names())
    if missing:
        yield Finding("ok", "server", "no XNACK, CLAIM or XACKDEL here: scripts do the same (docs/guarantees.md)")
    try:
        answer = backend.execute("CONFIG", "GET", "maxmemory-policy", key=b"")
    except (BackendError, ConfigError):
        return  # services hide it
    policy = answer[1].decode() if isinstance(answer, list) and len(answer) > 1 else ""
    if policy.startswith("allkeys"):
        yield Finding("problem", "server", f"maxmemory-policy {policy} may evict whole streams",
                      "CONFIG SET maxmemory-policy noeviction")  # fmt: skip


def _stream(backend: Backend, state: StreamState) -> Iterator[Finding]:
    about = f"stream {state.name}"
    if not can_share_slot(state.name.encode()):
        yield Finding("warning", about, "its braces form no hash tag: it cannot be moved to a cluster as it is")
    if state.dead >= MANY_DEAD:
        yield Finding("warning", about, f"{state.dead} dead letters", f"millstream dead ls {state.name}")
    groups = overview.group_states(backend, state.name)
    if not groups and state.length:
        yield Finding("warning", about, f"{state.length} entries and no group: nobody works on them",
                      "millstream worker app:stream")  # fmt: skip
    if state.length > LONG_STREAM:
        yield Finding("warning", about, f"{state.length} entries: a group that is not read, or retain=all, keeps them",
                      f"millstream groups {state.name}")  # fmt: skip
    found = [finding for group in groups for finding in _group(backend, group)]
    yield from found or [Finding("ok", about, f"{state.length} entries, {len(groups)} groups, nothing stuck")]


def _group(backend: Backend, group: GroupState) -> Iterator[Finding]:
    about = f"group {group.name} of {group.stream}"
    command = f"millstream pending {group.stream} --group {group.name}"
    consumers = overview.consumer_states(backend, group.stream, group.name)
    silent = [each for each in consumers if each.pending and each.idle_ms > SILENT_S * 1000 and each.name[:1] != "~"]
    living = [each for each in consumers if each.idle_ms <= SILENT_S * 1000 and each.name[:1] != "~"]
    if silent:
        held = sum(each.pending for each in silent)
        yield Finding("problem", about, f"{held} entries with {len(silent)} consumers that gave no sign for "
                      f"{SILENT_S} s, the longest {max(each.idle_ms for each in silent) // 1000} s",
                      "millstream worker app:stream    # a worker takes them over; " + command)  # fmt: skip
    if (group.lag or group.released) and not living:
        yield Finding("problem", about, f"{group.lag or 0} entries wait, {group.released} are released, "
                      "and nobody reads", "millstream worker app:stream")  # fmt: skip
