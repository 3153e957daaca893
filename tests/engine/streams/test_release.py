"""Releasing entries in a run leaves a pending list as releasing them one by one does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import pytest

from millstream.engine.commands.streams.settle import ReleaseMode
from millstream.engine.streams.ids import text_of
from millstream.engine.streams.pending import GroupConsumer, PendingList

Shown: TypeAlias = list[tuple[bytes, bytes | None, int, int]]


class Group:
    """A pending list and the consumers that hold its entries."""

    def __init__(self) -> None:
        self.pending = PendingList()
        self.consumers = [GroupConsumer(b"c", 0), GroupConsumer(b"d", 0)]

    def shown(self) -> Shown:
        """List all pending entries in claim order: id, owner, time, delivery count."""
        return [
            (entry_id, hold.consumer and hold.consumer.name, hold.time_ms, hold.count)
            for hold in self.pending.claim_order()
            for entry_id, _ in self.pending.live_items(hold)
        ]

    def release_one_by_one(self, ids: list[bytes], adjust: Callable[[int], int]) -> int:
        for done, entry_id in enumerate(ids):
            hold = self.pending.by_id.get(entry_id)
            if hold is None:
                return done
            self.pending.release(entry_id, adjust(hold.count))
        return len(ids)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_releases_as_single_releases_do(seed: int) -> None:
    rng = random.Random(seed)
    groups = run, single = Group(), Group()
    ids: list[bytes] = []
    for now_ms in range(1, 120):
        choice = rng.randrange(4)
        size, owner = rng.randrange(1, 9), rng.randrange(2)
        chosen = [rng.choice(ids) for _ in range(size)] if ids else []
        mode, time_ms = rng.choice(list(ReleaseMode)), rng.choice([now_ms, 1])
        fresh = [text_of(now_ms << 64 | at) for at in range(size)]
        for group in groups:
            pending, consumer = group.pending, group.consumers[owner]
            if choice == 0:
                pending.deliver(consumer, now_ms, fresh[:], [None] * size, now_ms << 64 | (size - 1))
            elif choice == 1:
                for entry_id in chosen:
                    pending.remove(entry_id)
            elif choice == 2:
                for entry_id in chosen:
                    if entry_id in pending.by_id:
                        pending.give(entry_id, consumer, time_ms, 2, None)
        if choice == 0:
            ids += fresh
        if choice == 3:
            assert run.pending.release_run(chosen, mode.adjust) == single.release_one_by_one(chosen, mode.adjust)
        assert run.shown() == single.shown()
        for a, b in zip(run.consumers, single.consumers, strict=True):
            assert a.pending == b.pending
        assert run.pending.released == single.pending.released
    assert run.pending.released
