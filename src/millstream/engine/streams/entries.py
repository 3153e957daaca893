"""The entries of a stream, in blocks.

    EntryLog.blocks   [ sealed ] [ sealed ] [ sealed, one entry deleted ] [ open ]
    EntryLog.firsts   [ key    ] [ key    ] [ key                       ] [ key  ]   bisected

A block is what Redis calls a node: its bounds can be observed (approximate trimming, LIMIT, XINFO), so it is opened
by Redis's rule, which counts entries, deleted ones too, and the bytes their listpack would take. The fields of an
entry are kept ready for the wire, so that a reply is a join. The open block keeps one bytes object an entry; a
sealed one packs them into a single blob, which saves the object headers. A deletion unpacks its block. A block goes
when its last entry is deleted, but a trim that ends inside a block leaves it there, empty or not, as Redis does.

An entry never moves to another block. Whoever knows an entry's block finds it there, or knows that it is gone,
unless the block was dropped: then the stream must be asked (an id can come again after XSETID on an empty stream).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from millstream.engine.streams.ids import order, text_of
from millstream.engine.text.args import as_integer

if TYPE_CHECKING:
    from millstream.engine.keys.keyspace import KeyspaceSettings

LARGEST_NODE: Final = 1 << 30
_HEADER: Final = 7  # listpack header and end byte
_MAY_BE_INTEGER: Final = frozenset(b"-0123456789")


class Sealed:
    """The packed entries of a block; never changed, so that readers may keep it instead of copies of its parts."""

    __slots__ = ("blob", "even", "ids", "starts")

    def __init__(self, ids: list[bytes], fragments: list[bytes]) -> None:
        self.ids = ids
        self.blob = b"".join(fragments)
        self.starts = array("I", accumulate(map(len, fragments), initial=0))  # of each fragment, and the end
        self.even = _is_even(ids)  # ids have the same number of digits each: their texts compare like keys

    def place(self, entry_id: bytes) -> int:
        """Where the entry with this canonical id is, or -1."""
        ids = self.ids
        if not self.even:
            return _search(ids, entry_id)
        at = bisect_left(ids, entry_id)
        return at if at < len(ids) and ids[at] == entry_id else -1

    def fragment(self, at: int) -> bytes:
        """Return the encoded fields of the entry at this place."""
        starts = self.starts
        return self.blob[starts[at] : starts[at + 1]]


class Block:
    """A run of entries that was filled together."""

    __slots__ = ("dead", "dropped", "first", "fragments", "ids", "last", "name", "names", "prefix", "sealed", "size")

    def __init__(self, first: int, names: list[bytes], size: int) -> None:
        self.first = first  # key of the first entry, also when that is deleted
        self.last = first  # key of the last entry, also when that is deleted
        self.names = names  # field names of the first entry; entries with the same ones store none
        self.name: bytes | None = None  # the one name, if there is only one
        self.prefix = b""  # how the fields of an entry with that name begin
        self.size = size  # listpack bytes but for the two counters
        self.dead = 0  # deleted entries
        self.ids: list[bytes] = []  # canonical texts of the live entries
        self.fragments: list[bytes] | None = []  # RESP of each entry's field list; None when sealed
        self.sealed: Sealed | None = None  # the same packed
        self.dropped = False  # no longer part of its stream
        if len(names) == 1:
            self.name = names[0]
            self.prefix = b"*2\r\n$%d\r\n%b\r\n" % (len(names[0]), names[0])

    def node_bytes(self) -> int:
        """Return how many bytes Redis's listpack of this block would take."""
        return self.size + integer_size(len(self.ids)) + integer_size(self.dead)

    def seal(self) -> None:
        """Pack the fragments; nothing will be appended any more."""
        if self.fragments is not None:
            self.ids = self.ids[:]  # a copy has no spare room
            self.sealed = Sealed(self.ids, self.fragments)
            self.fragments = None
            self.prefix = b""

    def open(self) -> list[bytes]:
        """Unpack the fragments, so that entries can be deleted or appended."""
        fragments = self.fragments
        if fragments is None:
            fragments = self.fragments = self.slice(0, len(self.ids))
            self.ids = self.ids[:]  # the sealed ones may be in somebody's hands
            self.sealed = None
        return fragments

    def reopen(self) -> None:
        """Become the last block again, which takes entries."""
        self.open()
        if self.name is not None:
            self.prefix = b"*2\r\n$%d\r\n%b\r\n" % (len(self.name), self.name)

    def fragment(self, at: int) -> bytes:
        """Return the encoded fields of the entry at this place."""
        fragments = self.fragments
        if fragments is not None:
            return fragments[at]
        sealed = self.sealed
        assert sealed is not None
        starts = sealed.starts
        return sealed.blob[starts[at] : starts[at + 1]]

    def slice(self, low: int, high: int) -> list[bytes]:
        """Return the encoded fields of the entries from low to high - 1."""
        fragments = self.fragments
        if fragments is not None:
            return fragments[low:high]
        sealed = self.sealed
        assert sealed is not None
        blob, bounds = sealed.blob, sealed.starts[low : high + 1].tolist()
        return [blob[start:end] for start, end in pairwise(bounds)]

    def place(self, entry_id: bytes) -> int:
        """Where the entry with this canonical id is, or -1."""
        sealed = self.sealed
        return _search(self.ids, entry_id) if sealed is None else sealed.place(entry_id)

    def lower_bound(self, key: int) -> int:
        """Return the place of the first live entry whose key is at least this one."""
        ids = self.ids
        if self.sealed is not None and self.sealed.even and ids:
            probe = text_of(key)
            if len(probe) == len(ids[0]) and probe.index(b"-") == ids[0].index(b"-"):
                return bisect_left(ids, probe)
        if ids and order(ids[0]) >= key:
            return 0  # no search for readers that delete what they have read
        return bisect_left(ids, key, key=order)


class EntryLog:
    """All entries of a stream, oldest first."""

    __slots__ = ("blocks", "firsts", "length")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.firsts: list[int] = []  # Block.first of each block
        self.length = 0  # live entries

    def append(self, entry_id: bytes, key: int, fields: list[bytes], settings: KeyspaceSettings) -> None:
        """Add an entry at the end; `fields` are names and values in turn."""
        if len(fields) == 2:
            self.append_field(entry_id, key, fields[0], fields[1], settings)
            return
        block = self._block_for(key, fields, settings)
        block.size += _entry_size(fields, block.names) + _distance_size(key, block.first)
        self._put(block, entry_id, key, encode_fields(fields))

    def append_field(self, entry_id: bytes, key: int, name: bytes, value: bytes, settings: KeyspaceSettings) -> None:
        """Add an entry that has one field."""
        # Written out, as what most streams hold: this is the hottest path. Sizes are those of `_entry_size`.
        blocks = self.blocks
        size = len(value)
        if blocks:
            block = blocks[-1]
            count = len(block.ids) + block.dead
            limit = settings.stream_node_max_entries
            payload = size + len(name)
            if count >= 127 or 0 < limit <= count or block.size + 4 + payload >= settings.stream_node_max_bytes:
                block = self._block_for(key, [name, value], settings)
        else:
            block = self._block_for(key, [name, value], settings)
        if 20 < size < 4096:
            listed = size + (2 if size < 64 else 3 if size < 126 else 4)
        else:
            listed = element_size(value)
        if block.name == name:
            fragment = b"%b$%d\r\n%b\r\n" % (block.prefix, size, value)
            listed += 4  # flags, count of elements
        else:
            fragment = b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, size, value)
            listed += 6 + element_size(name)
        # two elements: the distance from the block's first id, in milliseconds and in sequence numbers
        block.size += listed + (4 if 0 <= key - block.first < 128 else _distance_size(key, block.first))
        block.last = key
        block.ids.append(entry_id)
        block.fragments.append(fragment)  # type: ignore[union-attr]  # the last block is never sealed
        self.length += 1

    def append_bulks(
        self, ids: list[bytes], key: int, name: bytes, bulks: list[bytes], settings: KeyspaceSettings
    ) -> None:
        """Add entries that have this one field; their keys are `key` and those that follow it.

        The values are bulk strings, as they came and as they will be sent, of 21 to 4095 bytes: so no number is
        among them, and their sizes are known from those of the strings.
        """
        # As append_field, entry by entry, with what does not change in between looked up once.
        most = settings.stream_node_max_entries
        limit = settings.stream_node_max_bytes - 4 - len(name)
        block = self.blocks[-1] if self.blocks else self._block_for(key, [name, bulk_content(bulks[0])], settings)
        distance, seq = _distance(key, block.first)
        for at, bulk in enumerate(bulks):
            size = len(bulk)
            size -= 7 if size <= 106 else 8 if size <= 1007 else 9
            count = len(block.ids) + block.dead
            if count and (count >= 127 or 0 < most <= count or block.size + size >= limit):
                if at:
                    block.last = key + at - 1
                block = self._block_for(key + at, [name, bulk_content(bulk)], settings)
                distance, seq = _distance(key + at, block.first)
            listed = size + (2 if size < 64 else 3 if size < 126 else 4)
            if block.name == name:
                fragment = block.prefix + bulk
                listed += 4
            else:
                fragment = b"*2\r\n$%d\r\n%b\r\n%b" % (len(name), name, bulk)
                listed += 6 + element_size(name)
            block.size += listed + distance + (2 if 0 <= seq < 128 else integer_size(_wrap(seq)))
            seq += 1
            block.ids.append(ids[at])
            block.fragments.append(fragment)  # type: ignore[union-attr]  # the last block is never sealed
        block.last = key + len(ids) - 1
        self.length += len(ids)

    def _put(self, block: Block, entry_id: bytes, key: int, fragment: bytes) -> None:
        block.last = key
        block.ids.append(entry_id)
        block.open().append(fragment)
        self.length += 1

    def _block_for(self, key: int, fields: list[bytes], settings: KeyspaceSettings) -> Block:
        """Return the block that takes the next entry: the last one, or a new one if that is full."""
        if self.blocks:
            block = self.blocks[-1]
            count = len(block.ids) + block.dead
            most = settings.stream_node_max_entries
            limit = settings.stream_node_max_bytes
            if not 0 < limit < LARGEST_NODE:
                limit = LARGEST_NODE
            if not 0 < most <= count and block.node_bytes() + sum(map(len, fields)) < limit:
                return block
            block.seal()
        names = fields[::2]
        size = _HEADER + integer_size(len(names)) + sum(map(element_size, names)) + 2
        block = Block(key, names, size)
        self.blocks.append(block)
        self.firsts.append(key)
        return block

    # Finding

    def find(self, entry_id: bytes, hint: Block | None = None) -> tuple[Block, int] | None:
        """Return the block and place of a live entry; `hint` is the block it was in when last seen."""
        if hint is not None and not hint.dropped:
            at = hint.place(entry_id)
            return (hint, at) if at >= 0 else None
        index = bisect_right(self.firsts, order(entry_id)) - 1
        if index < 0:
            return None
        block = self.blocks[index]
        at = block.place(entry_id)
        return (block, at) if at >= 0 else None

    def fragments_of(self, ids: list[bytes], blocks: list[Block | None], places: list[int]) -> list[bytes] | None:
        """Return the encoded fields of these entries, each in its block; None if that cannot be said of one of them.

        `places` says of the first few, or of all, where in its block an entry was when last seen, -1 if that is not
        known. It is still there if none was ever deleted from the block.
        """
        # Written out twice: a claim asks for thousands. Without places entries mostly follow each other, so that the
        # next one is tried first. With them, ids, which lie anywhere in memory, are not looked at: half of the time.
        if len(places) == len(ids):
            return self._fragments_at(ids, blocks, places)
        fragments: list[bytes] = []
        last: Block | None = None
        own: list[bytes] = []
        sealed: Sealed | None = None
        at = -1
        known = len(places)
        for index, entry_id in enumerate(ids):
            block = blocks[index]
            if block is last and at + 1 < len(own) and own[at + 1] is entry_id:
                at += 1
            else:
                if block is None or block.dropped:
                    return None
                last, own, sealed = block, block.ids, block.sealed
                at = places[index] if index < known and not block.dead else -1
                if at < 0:
                    at = block.place(entry_id)
                    if at < 0:
                        return None
            if sealed is not None:
                starts = sealed.starts
                fragments.append(sealed.blob[starts[at] : starts[at + 1]])
            else:
                fragments.append(block.fragments[at])  # type: ignore[union-attr, index]  # neither is None here
        return fragments

    def _fragments_at(self, ids: list[bytes], blocks: list[Block | None], places: list[int]) -> list[bytes] | None:
        fragments: list[bytes] = []
        for entry_id, block, at in zip(ids, blocks, places):  # noqa: B905  # which mypyc cannot write out if strict
            if block is None or block.dropped:
                return None
            if at < 0 or block.dead:
                at = block.place(entry_id)
                if at < 0:
                    return None
            sealed = block.sealed
            if sealed is not None:
                starts = sealed.starts
                fragments.append(sealed.blob[starts[at] : starts[at + 1]])
            else:
                fragments.append(block.fragments[at])  # type: ignore[index]  # what is not sealed has them
        return fragments

    def position(self, key: int) -> tuple[int, int]:
        """Return the block index and place of the first live entry whose key is at least this one.

        Past the last entry: the number of blocks, and 0.
        """
        blocks = self.blocks
        index = bisect_right(self.firsts, key) - 1
        if index < 0:
            return 0, 0
        block = blocks[index]
        if key > block.last:
            return index + 1, 0
        at = block.lower_bound(key)
        return (index + 1, 0) if at == len(block.ids) else (index, at)

    def first_key(self) -> int:
        """Return the key of the first live entry, 0 if there is none."""
        return next((order(block.ids[0]) for block in self.blocks if block.ids), 0)

    def last_key(self) -> int:
        """Return the key of the last live entry, 0 if there is none."""
        return next((order(block.ids[-1]) for block in reversed(self.blocks) if block.ids), 0)

    def spans(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """Yield runs of live entries with start <= key <= end, ascending: block, low, high."""
        blocks = self.blocks
        index, low = self.position(start)
        while index < len(blocks):
            block = blocks[index]
            if block.first > end:
                return
            high = len(block.ids) if block.last <= end else block.lower_bound(end + 1)
            if low < high:
                yield block, low, high
            index, low = index + 1, 0

    def spans_back(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """Yield the runs of `spans` in descending order; each is still low to high."""
        index = bisect_right(self.firsts, end) - 1
        while index >= 0:
            block = self.blocks[index]
            if block.last < start:
                return
            low = 0 if block.first >= start else block.lower_bound(start)
            high = len(block.ids) if block.last <= end else block.lower_bound(end + 1)
            if low < high:
                yield block, low, high
            index -= 1

    def read(self, start: int, end: int, limit: int | None = None) -> tuple[list[bytes], list[bytes]]:
        """Ids and encoded fields of live entries, ascending, at most `limit` of them."""
        ids: list[bytes] = []
        fragments: list[bytes] = []
        for block, low, high in self.spans(start, end):
            if limit is not None and high - low > limit - len(ids):
                high = low + limit - len(ids)
            ids += block.ids[low:high]
            fragments += block.slice(low, high)
            if len(ids) == limit:
                break
        return ids, fragments

    def read_back(self, start: int, end: int, limit: int | None = None) -> tuple[list[bytes], list[bytes]]:
        """As read, descending."""
        ids: list[bytes] = []
        fragments: list[bytes] = []
        for block, low, high in self.spans_back(start, end):
            if limit is not None and high - low > limit - len(ids):
                low = high - (limit - len(ids))
            ids += block.ids[low:high][::-1]
            fragments += block.slice(low, high)[::-1]
            if len(ids) == limit:
                break
        return ids, fragments

    # Deleting

    def delete(self, entry_id: bytes) -> bool:
        """Remove an entry; whether it was there. Its block remembers that there was one."""
        found = self.find(entry_id)
        if found is None:
            return False
        block, at = found
        self.delete_at(block, at)
        return True

    def delete_at(self, block: Block, at: int) -> None:
        """Remove the entry at this place; a block without live entries goes away."""
        fragments = block.open()
        del block.ids[at]
        del fragments[at]
        block.dead += 1
        self.length -= 1
        if not block.ids:
            self.drop(bisect_left(self.firsts, block.first))

    def delete_all(self, block: Block, gone: list[bytes], *, may_drop: bool) -> None:
        """Remove several entries of one block, and the block if none is left and it may go."""
        if len(gone) == len(block.ids) and may_drop:
            self.drop(bisect_left(self.firsts, block.first))
            return
        leaving = set(gone)
        kept = [pair for pair in zip(block.ids, block.open(), strict=True) if pair[0] not in leaving]
        block.ids = [entry_id for entry_id, _ in kept]
        block.fragments = [fragment for _, fragment in kept]
        block.dead += len(gone)
        self.length -= len(gone)

    def drop(self, index: int) -> None:
        """Remove a whole block."""
        block = self.blocks[index]
        self.length -= len(block.ids)
        block.dropped = True
        block.ids = []
        block.fragments = []
        block.sealed = None
        del self.blocks[index]
        del self.firsts[index]
        if self.blocks and index == len(self.blocks):
            last = self.blocks[-1]  # takes entries again, of which nothing is known yet
            last.reopen()

    def copy(self) -> tuple[EntryLog, dict[int, Block]]:
        """Return an independent copy, and the new block for the id() of each old one."""
        twin = EntryLog()
        twins: dict[int, Block] = {}
        for block in self.blocks:
            new = Block(block.first, block.names, block.size)
            new.prefix = block.prefix
            new.last, new.dead = block.last, block.dead
            new.ids = block.ids if block.fragments is None else block.ids[:]
            new.fragments = None if block.fragments is None else block.fragments[:]
            new.sealed = block.sealed
            twins[id(block)] = new
            twin.blocks.append(new)
        twin.firsts = self.firsts[:]
        twin.length = self.length
        return twin, twins

    def trie_nodes(self) -> int:
        """How many inner nodes Redis's radix tree over the blocks' 16-byte keys has."""
        if len(self.blocks) < 2:
            return 1
        firsts = self.firsts
        shared = [16 - ((left ^ right).bit_length() + 7) // 8 for left, right in pairwise(firsts)]
        return _trie_nodes(shared)


def _trie_nodes(shared: list[int]) -> int:
    """Count the nodes of a compressed trie from the bytes each two neighbouring keys share.

    A branching point lies at each depth where neighbours part; above it is one node for the run of bytes up to
    the branching point or key above (if there is one), below it one for the rest of each key.
    """
    nodes = 0
    open_depths: list[int] = []  # branching points on the way down to the last key, ascending
    for index, depth in enumerate(shared):
        above = open_depths[-1] if open_depths else -1
        if depth > above:
            nodes += _branch(above, depth)
            open_depths.append(depth)
        else:
            while open_depths and open_depths[-1] > depth:
                deeper = open_depths.pop()
                above = open_depths[-1] if open_depths else -1
                if depth > above:
                    # a branching point between the two: the run that led to `deeper` is cut
                    nodes -= _branch(above, deeper)
                    nodes += _branch(above, depth) + _branch(depth, deeper)
                    open_depths.append(depth)
                    break
        before = shared[index - 1] if index else -1
        # the rest of the key left of this gap, below the deeper of its two branching points
        nodes += 1 if max(before, depth) < 15 else 0
    return nodes + (1 if shared[-1] < 15 else 0)


def _branch(above: int, depth: int) -> int:
    """Nodes of a branching point: itself, and the run of bytes between it and the one above."""
    return 2 if depth - above - 1 > 0 else 1


def bulk_content(bulk: bytes) -> bytes:
    """Return the content of an encoded bulk string."""
    return bulk[bulk.index(b"\n") + 1 : -2]


def encode_fields(fields: list[bytes]) -> bytes:
    """Names and values as a RESP array."""
    parts = [b"*%d\r\n" % len(fields)]
    for field in fields:
        parts.append(b"$%d\r\n%b\r\n" % (len(field), field))
    return b"".join(parts)


def decode_fields(fragment: bytes) -> list[bytes]:
    """Names and values of an encoded field list."""
    if fragment[:4] == b"*2\r\n":
        _, size, name, _, rest = fragment.split(b"\r\n", 4)
        if len(size) == 2 and size[1] - 48 == len(name):  # a name of up to nine bytes, without a line end in it
            return [name, rest[:-2]]
    parts = fragment.split(b"\r\n")
    count = int(parts[0][1:])
    if len(parts) == 2 * count + 2:
        return parts[2::2]  # header, then length and content in turn: nothing inside held a line end
    fields = []
    at = len(parts[0]) + 2
    for _ in range(count):
        line_end = fragment.index(b"\r\n", at)
        start = line_end + 2
        at = start + int(fragment[at + 1 : line_end])
        fields.append(fragment[start:at])
        at += 2
    return fields


def integer_size(value: int) -> int:
    """Bytes of a listpack element that holds this integer."""
    if 0 <= value < 128:
        return 2
    if -4096 <= value < 4096:
        return 3
    if -32768 <= value < 32768:
        return 4
    if -8388608 <= value < 8388608:
        return 5
    if -2147483648 <= value < 2147483648:
        return 6
    return 10


def element_size(value: bytes) -> int:
    """Bytes of a listpack element that holds this string; decimal numbers are kept as integers."""
    size = len(value)
    if 0 < size < 21 and value[0] in _MAY_BE_INTEGER:
        number = as_integer(value)
        if number is not None:
            return integer_size(number)
    data = size + (1 if size < 64 else 2 if size < 4096 else 5)
    if data < 128:
        return data + 1
    return data + (2 if data < 16383 else 3 if data < 2097151 else 4 if data < 268435455 else 5)


def _entry_size(fields: list[bytes], names: list[bytes]) -> int:
    """Listpack bytes of an entry but for its distance from the block's first id."""
    count = len(fields) // 2
    if fields[::2] == names:
        return 2 + sum(map(element_size, fields[1::2])) + integer_size(count + 3)
    return 2 + integer_size(count) + sum(map(element_size, fields)) + integer_size(2 * count + 4)


def _distance_size(key: int, first: int) -> int:
    ms = (key >> 64) - (first >> 64)
    seq = (key & 0xFFFFFFFFFFFFFFFF) - (first & 0xFFFFFFFFFFFFFFFF)
    if 0 <= ms < 128 and 0 <= seq < 128:
        return 4
    return integer_size(_wrap(ms)) + integer_size(_wrap(seq))


def _distance(key: int, first: int) -> tuple[int, int]:
    """How much room the distance in milliseconds takes, and the one in sequence numbers."""
    ms = (key >> 64) - (first >> 64)
    seq = (key & 0xFFFFFFFFFFFFFFFF) - (first & 0xFFFFFFFFFFFFFFFF)
    return 2 if 0 <= ms < 128 else integer_size(_wrap(ms)), seq


def _wrap(value: int) -> int:
    """As a signed 64-bit number."""
    return (value + 2**63) % 2**64 - 2**63


def _search(ids: list[bytes], entry_id: bytes) -> int:
    """Where an id is among ids whose texts do not compare like keys, or -1."""
    if len(ids) > 256:
        at = bisect_left(ids, order(entry_id), key=order)
        return at if at < len(ids) and ids[at] == entry_id else -1
    try:
        return ids.index(entry_id)  # a short list is compared faster than a few ids are parsed
    except ValueError:
        return -1


def _is_even(ids: list[bytes]) -> bool:
    if not ids:
        return True
    return len(set(map(len, ids))) == 1 and ids[0].index(b"-") == ids[-1].index(b"-")
