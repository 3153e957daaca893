"""Logged lines as Redis writes them: a claim for each entry, where we log one for all that were handed out together."""

from __future__ import annotations

from collections.abc import Iterator

FIRST_ID = 5  # XCLAIM key group consumer min-idle id


def one_by_one(argv: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    """A claim of several entries as claims of one each; any other line as it is."""
    if argv[0] != b"XCLAIM" or b"TIME" not in argv[FIRST_ID:]:
        yield argv
        return
    end = argv.index(b"TIME", FIRST_ID)
    for entry_id in argv[FIRST_ID:end]:
        yield (*argv[:FIRST_ID], entry_id, *argv[end:])
