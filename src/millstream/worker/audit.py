"""The account of a stream: published = done + pending + undelivered + delayed + dead + discarded (+ trimmed)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.delivery.steps import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The places of all published entries for one group, at one moment."""

    published: int | None  # entries of producers, with delayed ones; None: the server does not count
    done: int
    pending: int  # held by consumers, waiting for a retry, or released
    undelivered: int
    delayed: int  # published with a delay that is not over
    dead: int  # present dead letters of this group
    discarded: int  # dropped by setting, or discarded from the dead letters
    trimmed: int  # removed from the stream while they were pending, without a tombstone
    released: int  # of the pending ones
    waiting: int  # of the pending ones: for their retry
    redriven: int  # redriven dead letters

    @property
    def accounted(self) -> int:
        return self.done + self.pending + self.undelivered + self.delayed + self.dead + self.discarded + self.trimmed

    @property
    def balanced(self) -> bool | None:
        """Return whether the account balances, or None where the server does not count."""
        return None if self.published is None else self.published == self.accounted


def audit_of(account: Account, group: str) -> Audit:
    """Build the account. Copies and redriven entries were appended again, but published once."""
    counters = account.counters
    redriven = _of(counters, "redriven", group)
    copied = counters.get(f"copied:{group}", 0)
    published = None if account.added is None else account.added + account.delayed - redriven - copied
    trimmed = counters.get(f"trimmed:{group}", 0)
    tombstones = counters.get(f"tombstones:{group}", 0)
    return Audit(
        published=published,
        done=counters.get(f"done:{group}", 0),
        pending=account.pending,
        undelivered=account.undelivered,
        delayed=account.delayed,
        dead=max(0, account.dead - _dead_of_others(counters, group)),
        discarded=counters.get(f"discarded:{group}", 0) + _of(counters, "dead_discarded", group),
        trimmed=trimmed - tombstones,
        released=account.released,
        waiting=account.parked,
        redriven=redriven,
    )


def _of(counters: Mapping[str, int], name: str, group: str) -> int:
    """Return a count of removed dead letters. Those of other libraries name no group and count as ours."""
    return counters.get(f"{name}:{group}", 0) + counters.get(f"{name}:", 0)


def _dead_of_others(counters: Mapping[str, int], group: str) -> int:
    """Return the dead letters of other groups in the same stream, by their counters. All others are ours."""
    total = 0
    for name, count in counters.items():
        kind, _, owner = name.partition(":")
        if owner and owner != group:
            total += {"dead": count, "tombstones": count, "redriven": -count, "dead_discarded": -count}.get(kind, 0)
    return total
