"""`millstream publish`: entries from the command line, a file or a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from millstream.cli import common
from millstream.cli.exits import Exit, Failure
from millstream.worker.stream import Stream

HELP: Final = """Append entries: one JSON value as an argument, or one a line from a file or standard input.

\b
  millstream publish orders '{"number": 7}'
  millstream publish orders --fields customer=42 amount=12.50
  cat orders.jsonl | millstream publish orders -

A line that is no JSON ends it with the line's number; what stood before it has been appended.
"""


def publish(
    stream: str,
    values: list[str],
    *,
    url: str | None,
    as_fields: bool,
    delay: float,
    dedupe: str | None,
    ttl: float | None,
    file: str | None,
    as_json: bool,
) -> None:
    """Append, and say the ids."""
    kind = dict[str, str] if as_fields else Any
    with Stream[Any](stream, common.address(url), type=kind, fields=as_fields) as opened:
        if as_fields:
            ids = [opened.publish(_fields(values), delay=delay, dedupe=dedupe, ttl=ttl)]
        elif file is not None or values == ["-"]:
            ids = _from_lines(opened, file, delay, ttl)
        elif values:
            found = [_value(text, f"argument {place}") for place, text in enumerate(values, 1)]
            if dedupe is not None and len(found) > 1:
                raise Failure("--dedupe is for one entry", Exit.USAGE)
            tokens = None if dedupe is None else [dedupe]
            ids = opened.publish_many(found, delay=delay, dedupe=tokens, ttl=ttl)
        else:
            raise Failure("nothing to publish: give a JSON value, --file, or - for standard input", Exit.USAGE)
    if as_json:
        print(json.dumps(ids))
    elif len(ids) > 10:
        print(f"{len(ids)} entries, the last {ids[-1]}")
    else:
        print("\n".join(entry_id or f"waits for {delay:g} s" for entry_id in ids))


def _from_lines(stream: Stream[Any], file: str | None, delay: float, ttl: float | None) -> list[str]:
    if file is None:
        return _in_pages(stream, _values(sys.stdin), delay, ttl)
    try:
        with open(file, encoding="utf-8") as lines:
            return _in_pages(stream, _values(lines), delay, ttl)
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}", Exit.USAGE) from error


def _in_pages(stream: Stream[Any], values: Iterator[Any], delay: float, ttl: float | None) -> list[str]:
    ids: list[str] = []
    while page := list(islice(values, 1000)):
        ids += stream.publish_many(page, delay=delay, ttl=ttl)
    return ids


def _values(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _value(line, f"line {number}")


def _value(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(f"{place} is no JSON: {error}", Exit.USAGE) from error


def _fields(values: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    if not values:
        raise Failure("--fields: give at least one NAME=VALUE", Exit.USAGE)
    for text in values:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise Failure(f"{text!r} is no field: NAME=VALUE", Exit.USAGE)
        fields[name] = value
    return fields
