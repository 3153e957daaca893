"""Digests of packed rows: how a writer recognizes rows that an earlier attempt has written, in whatever order. Pure.

words of a row ── SipHash, keyed by query, batch and partition ──▶ 8 bytes
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SIZE = 8  # bytes of a digest
Digests = npt.NDArray[np.uint64]


def digest_key(query: str, batch: int, partition: int) -> str:
    """Return the key for the rows of one partition of one batch: data cannot be made to collide without knowing it."""
    return blake2b(f"{query}:{batch}:{partition}".encode(), digest_size=8).hexdigest()


def digests_of(words: pa.Array, key: str) -> Digests:
    """Return the digest of each row's words."""
    from pandas.util import hash_array  # type: ignore[import-untyped]

    values: npt.NDArray[np.object_] = words.to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(values, hash_key=key, categorize=False), dtype="<u8")


class Unmet:
    """Rows that others have written and that this attempt has not met yet: a multiset of digests."""

    def __init__(self) -> None:
        self._values: Digests = np.empty(0, dtype="<u8")
        self._counts: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, data: bytes) -> None:
        """Add digests as the server keeps them."""
        left = self._counts > 0
        known = np.repeat(self._values[left], self._counts[left])
        found = np.concatenate([known, np.frombuffer(data, dtype="<u8")])
        self._values, self._counts = np.unique(found, return_counts=True)
        self._total = len(found)

    def take(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Remove these rows as far as they are here. Returns which of them were."""
        met = np.zeros(len(digests), dtype=np.bool_)
        if not self._total or not len(digests):
            return met
        places = np.minimum(np.searchsorted(self._values, digests), len(self._values) - 1)
        candidates = np.flatnonzero(self._values[places] == digests)
        order = candidates[np.argsort(places[candidates], kind="stable")]
        # Among equal digests only as many are met as were written.
        chosen = places[order]
        rank = np.arange(len(chosen)) - np.searchsorted(chosen, chosen)
        is_met = rank < self._counts[chosen]
        met[order[is_met]] = True
        np.subtract.at(self._counts, chosen[is_met], 1)
        self._total -= int(is_met.sum())
        return met


class Occurrences:
    """Numbers equal rows of a partition: the names of rows that stay the same in any order."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def name(self, digests: Digests) -> list[bytes]:
        """Return a name for each row: its digest, and how many equal rows came before it."""
        found = []
        for digest in digests.tolist():
            found.append(b"%x:%d" % (digest, self._seen[digest]))
            self._seen[digest] += 1
        return found
