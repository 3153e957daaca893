"""Where the engine deliberately answers otherwise than a server: the one table for each, with the reasons.

A difference says which commands it is about and what of their replies is compared all the same: `rest` makes
the comparable rest of a reply. Whatever is not in these tables is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.differential.programs_plain import SKIPPED, UNORDERED
from tests.support.wire import parse


@dataclass(frozen=True)
class Difference:
    """One thing that is allowed to differ."""

    what: str
    reason: str
    concerns: Callable[[list[bytes]], bool]
    rest: Callable[[bytes], object]  # what of a reply must still be the same


def explained(differences: Iterable[Difference], argv: list[bytes], ours: bytes, theirs: bytes) -> bool:
    """Whether two replies differ only as the table allows."""
    return any(d.concerns(argv) and d.rest(ours) == d.rest(theirs) for d in differences)


def is_help(argv: list[bytes]) -> bool:
    return argv[0].upper() in (b"XGROUP", b"XINFO", b"OBJECT") and [word.upper() for word in argv[1:]] == [b"HELP"]


def kind_of_lines(reply: bytes) -> object:
    """Of a help text: its first line, its last two, and that all are simple strings."""
    value = parse(reply)
    assert isinstance(value, list)
    return value[0], value[-2:], all(isinstance(line, str) and line.startswith("+") for line in value)


def is_stream_info(argv: list[bytes]) -> bool:
    return argv[0].upper() == b"XINFO" and len(argv) > 2 and argv[1].upper() == b"STREAM"


TREE_NODES = re.compile(rb"(radix-tree-nodes\r\n):\d+")


def without_tree_nodes(reply: bytes) -> object:
    return TREE_NODES.sub(rb"\1", reply, count=1)


def called(argv: list[bytes]) -> bytes:
    """`command`, or `command|subcommand` for OBJECT."""
    name = argv[0].lower()
    return name + b"|" + argv[1].lower() if name == b"object" and len(argv) > 1 else name


def in_any_order(reply: bytes) -> object:
    """An array, set or map without the order of its items; a map's values stay with their keys."""
    value = parse(reply)
    kind, items = value if isinstance(value, tuple) else ("array", value)
    if not isinstance(items, list):
        return value
    if kind == "map":
        items = list(zip(items[::2], items[1::2], strict=True))
    return kind, sorted(map(repr, items))


REDIS: tuple[Difference, ...] = (
    *(
        Difference(name.decode().upper(), reason, lambda argv, name=name: called(argv) == name, type)
        for name, reason in SKIPPED.items()
    ),
    Difference(
        "OBJECT REFCOUNT",
        "Redis counts the transaction's own hold on a value",
        lambda argv: called(argv) == b"object|refcount",
        type,
    ),
    Difference(
        "replies in no order",
        "Redis hands them out as its hash tables hold them",
        lambda argv: argv[0].lower() in UNORDERED,
        in_any_order,
    ),
    Difference(
        "XINFO STREAM, radix-tree-nodes",
        "how Redis has cut its radix tree depends on which blocks came and went "
        "before; we count the nodes of a tree that was built at once",
        is_stream_info,
        without_tree_nodes,
    ),
    Difference(
        "XGROUP HELP, XINFO HELP, OBJECT HELP",
        "the lines between the first and the last two are our own words",
        is_help,
        kind_of_lines,
    ),
)


def named(*names: bytes) -> Callable[[list[bytes]], bool]:
    return lambda argv: argv[0].upper() in names


NEW_IN_REDIS = frozenset(
    {
        b"idmp-duration",
        b"idmp-maxsize",
        b"pids-tracked",
        b"iids-tracked",
        b"iids-added",
        b"iids-duplicates",
        b"nacked-count",
    }
)
COUNTED_OTHERWISE = frozenset({b"lag", b"entries-read", b"radix-tree-nodes"})


def common_fields(reply: bytes) -> object:
    """XINFO's reply without the fields that only one of the two has or that are counted otherwise."""
    return _common(parse(reply))


def _common(value: object) -> object:
    if isinstance(value, tuple):
        return value[0], _common(value[1])
    if not isinstance(value, list):
        return value
    left_out = NEW_IN_REDIS | COUNTED_OTHERWISE
    if len(value) % 2 == 0 and any(isinstance(k, bytes) and k in left_out for k in value[::2]):
        kept = [(k, v) for k, v in zip(value[::2], value[1::2], strict=True) if k not in left_out]
        return [(k, "no more" if k == b"entries-added" and not 0 <= v < 2**63 - 1 else _common(v)) for k, v in kept]
    return [_common(item) for item in value]


def without_tail(reply: bytes) -> object:
    """An unknown command's error up to the arguments it repeats."""
    return reply.split(b", with args beginning with: ")[0].rstrip(b"\r\n")


def is_error_code(reply: bytes) -> object:
    """Only the code word of an error counts."""
    return reply.split(b" ", 1)[0] if reply.startswith(b"-") else reply


VALKEY: tuple[Difference, ...] = (
    *REDIS,
    Difference(
        "XINFO",
        "Valkey lacks the idempotency and released-entry fields, estimates lag and entries-read by older "
        "rules, counts the leaves of its radix tree, and lets entries-added wrap around",
        named(b"XINFO"),
        common_fields,
    ),
    Difference(
        "unknown command without arguments",
        "Valkey announces arguments even if there are none",
        lambda argv: len(argv) == 1,
        without_tail,
    ),
    Difference("XREAD, unbalanced list", "Valkey's text does not name `+`", named(b"XREAD"), is_error_code),
)
