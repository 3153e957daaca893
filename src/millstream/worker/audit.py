"""Does it add up? published = done + pending + undelivered + delayed + dead + discarded (+ trimmed)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.delivery.steps import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Where all that was published is, as one group sees it, at one moment."""

    published: int | None  # entries of producers, delayed ones included; None: the server does not count
    done: int
    pending: int  # in the hands of consumers, or waiting for a retry, or released
    undelivered: int
    delayed: int  # waiting for their time
    dead: int  # dead letters of this group that are there
    discarded: int  # given up for good: by setting, or removed from the dead letters
    trimmed: int  # removed from the stream while they were pending, without a tombstone
    released: int  # of the pending ones
    waiting: int  # of the pending ones: for their retry
    redriven: int  # dead letters that went back

    @property
    def accounted(self) -> int:
        return self.done + self.pending + self.undelivered + self.delayed + self.dead + self.discarded + self.trimmed

    @property
    def balanced(self) -> bool | None:
        """Whether nothing is missing and nothing too much; None where the server does not count."""
        return None if self.published is None else self.published == self.accounted


def audit_of(account: Account, group: str) -> Audit:
    """The account as people read it. Copies and redriven entries were added again, but published once."""
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
    """A count of dead letters that left; those that other libraries wrote name no group, and are taken for ours."""
    return counters.get(f"{name}:{group}", 0) + counters.get(f"{name}:", 0)


def _dead_of_others(counters: Mapping[str, int], group: str) -> int:
    """Dead letters that other groups have in the same stream, by their counters; what is not theirs is ours."""
    total = 0
    for name, count in counters.items():
        kind, _, owner = name.partition(":")
        if owner and owner != group:
            total += {"dead": count, "tombstones": count, "redriven": -count, "dead_discarded": -count}.get(kind, 0)
    return total
