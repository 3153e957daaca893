"""Memory of a value in bytes, estimated from what CPython spends on its parts.

    bytes        a header of 33 bytes, rounded up to 16
    containers   sys.getsizeof, and their parts
    a stream     block by block: ids and packed entries; for pending entries the lists and their items

Parts of nearly equal size are multiplied instead of measured. `samples` limits the number of other parts that are
measured; 0 means all. docs/memory.md compares the estimates with the growth of a process.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from sys import getsizeof
from typing import Final

from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.streams.entries import Block
from millstream.engine.streams.groups import Group
from millstream.engine.streams.pending import HoldQueue, IdOrder
from millstream.engine.streams.stream import Stream

_INT: Final = 32
_FLOAT: Final = 32
_PAIR: Final = 64  # a tuple of two
_TTL: Final = 170  # what an expiry adds: a dict slot, a time, a heap item
_STREAM: Final = 540  # a stream without entries
_BLOCK: Final = 330  # a block without entries
_GROUP: Final = 480  # a group without pending entries
_CONSUMER: Final = 224
_HOLD: Final = 96
_ID: Final = 48
_KEYS_TABLE: Final = 96  # an empty dictionary, without its table


def of_key(key: bytes, *, expires: bool = False) -> int:
    """Return the bytes of a key's name and of its slots in the dictionaries of its database."""
    return of_bytes(len(key)) + 2 * 60 + _INT + (_TTL if expires else 0)


def of_value(value: object, samples: int = 0) -> int:
    """Return the bytes of a value. Of a collection at most `samples` parts are measured."""
    match value:
        case bytes():
            return of_bytes(len(value))
        case Hash():
            sizes = (of_bytes(len(name)) + of_bytes(len(held)) for name, held in value.items())
            return getsizeof(value) + _parts(sizes, len(value), samples)
        case List():
            return getsizeof(value) + _parts(map(_of, value), len(value), samples)
        case SetOf():
            return _of_dict(len(value)) + 10 * len(value) + _parts(map(_of, value), len(value), samples, _INT)
        case SortedSet():
            members = map(_of, value.scores)
            return getsizeof(value.scores) + _parts(members, len(value), samples, _FLOAT + _PAIR + 10)
        case Stream():
            return of_stream(value, samples)
    return 0


def of_bytes(size: int) -> int:
    """Return the bytes of a bytes object of this length."""
    return (size + 48) & ~15 if size < 480 else (size + 56) & ~15  # above 512 bytes malloc adds a word


def _of(word: bytes) -> int:
    return of_bytes(len(word))


def _of_dict(length: int) -> int:
    """Return the bytes of a dict that has grown to this length: its table size is a power of two, two thirds full."""
    places = 8
    while places * 2 // 3 < length:
        places *= 2
    index = 1 if places <= 128 else 2 if places <= 32768 else 4
    return _KEYS_TABLE + places * index + places * 2 // 3 * 24


def _parts(sizes: Iterable[int], count: int, samples: int, each: int = 0) -> int:
    """Return the sum of sizes, extrapolated from the first `samples` ones."""
    if not samples or samples >= count:
        return sum(sizes) + count * each
    return sum(islice(sizes, samples)) * count // samples + count * each


# Streams


def of_stream(stream: Stream, samples: int = 0) -> int:
    """Return the bytes of a stream with its entries, groups and idempotency records."""
    blocks = stream.entries.blocks
    looked_at = blocks if not samples or samples >= len(blocks) else _spread_out(blocks, samples)
    size = sum(map(of_block, looked_at))
    if len(looked_at) < len(blocks):
        size = size * len(blocks) // len(looked_at)
    groups = sum(of_group(group, stream.entries.length) for group in stream.groups.values())
    records = sum(_of_dict(len(ids)) + (_INT + 56) * len(ids) for ids in stream.producers.values())
    return _STREAM + 2 * 8 * len(blocks) + _INT * len(blocks) + size + groups + records


def _spread_out(blocks: list[Block], samples: int) -> list[Block]:
    """Return evenly spread blocks, always with the last one, which is not packed."""
    return [blocks[at * (len(blocks) - 1) // max(samples - 1, 1)] for at in range(samples)]


def of_block(block: Block) -> int:
    """Return the bytes of a block of entries with their ids."""
    count = len(block.ids)
    size = _BLOCK + sum(map(_of, block.names)) + 8 * count
    if count:
        size += count * of_bytes(len(block.ids[-1]))
    if block.sealed is not None:
        return size + of_bytes(len(block.sealed.blob)) + 4 * count + 80
    return size + sum(map(_of, block.fragments or ())) + 9 * count


def of_group(group: Group, entries: int) -> int:
    """Return the bytes of a group: consumers, pending entries, and ids that only the group keeps."""
    pending = group.pending
    orphans = max(len(pending.by_id) - entries, 0)
    size = _GROUP + getsizeof(pending.by_id) + _of_order(pending.order)
    size += _of_queue(pending.owned, len(pending.by_id)) + _of_queue(pending.zone, pending.released)
    return (
        size
        + orphans * _ID
        + sum(
            _CONSUMER + of_bytes(len(consumer.name)) + _of_order(consumer.order)
            for consumer in group.consumers.values()
        )
    )


def _of_queue(queue: HoldQueue, entries: int) -> int:
    """Return the bytes of holds. A hold on several entries has up to three lists."""
    holds = len(queue.holds)
    together = 24 * max(entries - holds, 0)
    return getsizeof(queue.holds) + holds * (_HOLD + _INT) + together


def _of_order(order: IdOrder) -> int:
    return getsizeof(order.ids) + getsizeof(order.extra)
