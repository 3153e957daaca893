"""`millstream publish`: entries from the command line, a file or a pipe.

Input of any size is read as it comes and appended in batches of at most 1,000 lines, so a pipe that is slow is not
waited for and one that is long needs no memory. What ends the input early (a line that is not JSON, Ctrl-C, a server
that is away) is reported with the number of lines that have been appended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, Final

import typer

from millstream.cli import common, output
from millstream.cli.exits import Exit, Failure
from millstream.cli.inspect import naming_misused_keys
from millstream.errors import ConfigError, MalformedPayload, MillstreamError
from millstream.worker.stream import Stream

BATCH: Final = 1000  # lines that are appended together
READ: Final = 1 << 16  # bytes read at a time
SHOWN: Final = 10  # ids that are printed one by one

Numbered = tuple[int, bytes]  # a line and its number, from 1


def publish(
    stream: common.StreamName,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[JSON... | NAME=VALUE... | -]", help="The entries; - is stdin.")
    ] = None,
    as_fields: Annotated[bool, typer.Option("--fields", help="NAME=VALUE pairs are the fields of one entry.")] = False,
    file: Annotated[str | None, typer.Option("--file", help="File with one JSON value a line.")] = None,
    delay: Annotated[
        float, typer.Option("--delay", help="Seconds until the entry is delivered.", callback=common.finite)
    ] = 0.0,
    dedupe: Annotated[str | None, typer.Option("--dedupe", help="Append only once with this token.")] = None,
    ttl: Annotated[
        float | None,
        typer.Option("--ttl", help="Seconds until an unhandled entry becomes a dead letter.", callback=common.finite),
    ] = None,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Append entries to a stream: one JSON value an argument, or one a line from a file or standard input.

    \b
      millstream publish orders '{"number": 7}'
      millstream publish orders --fields customer=42 amount=12.50
      cat orders.jsonl | millstream publish orders -

    Arguments are checked first: if one is not JSON, nothing is appended. Lines are appended as they are read: if one is
    not JSON, the lines before it have been appended, the others have not, and the error says how many.

    Exit codes: 0 all appended, 1 the server failed, 2 wrong use or a line that is not JSON, 130 Ctrl-C.
    """
    common.key_of(stream)
    given = values or []
    lines = file is not None or given == ["-"]
    _check(given, file, as_fields, dedupe)
    with ExitStack() as stack:
        source = _source(stack, file) if lines else None
        kind = dict[str, str] if as_fields else Any
        opened = stack.enter_context(Stream[Any](stream, common.address(url), type=kind, fields=as_fields))
        stack.enter_context(naming_misused_keys(opened))
        if source is not None:
            _publish_lines(opened, source, _Sent(as_json), delay, ttl)
            return
        found: list[Any] = [_fields(given)] if as_fields else _arguments(given)
        try:
            ids = opened.publish_many(found, delay=delay, dedupe=None if dedupe is None else [dedupe], ttl=ttl)
        except MalformedPayload as error:
            raise Failure(str(error), Exit.USAGE) from error
    sent = _Sent(as_json)
    sent.add(len(ids), ids)
    sent.finish(delay)


def _check(values: list[str], file: str | None, as_fields: bool, dedupe: str | None) -> None:
    """Refuse what cannot be combined."""
    if file is not None and (values or as_fields):
        raise Failure("--file: cannot be combined with values or --fields", Exit.USAGE)
    if "-" in values and values != ["-"] and not as_fields:
        raise Failure("-: cannot be combined with values", Exit.USAGE)
    if dedupe is not None and (file is not None or values == ["-"] or (len(values) > 1 and not as_fields)):
        raise Failure("--dedupe is for one entry", Exit.USAGE)
    if file is None and not values:
        text = (
            "--fields: give at least one NAME=VALUE"
            if as_fields
            else "nothing to publish: give a JSON value, --file, or - for standard input"
        )
        raise Failure(text, Exit.USAGE)


def _arguments(values: list[str]) -> list[Any]:
    return [
        _value(text.encode("utf-8", "surrogateescape"), f"argument {number}") for number, text in enumerate(values, 1)
    ]


def _source(stack: ExitStack, file: str | None) -> BinaryIO:
    if file is None:
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(common.require_file(file, pipes=True), "rb", buffering=READ))
    except OSError as error:
        raise Failure(f"{file!r} cannot be read: {error.strerror}", Exit.USAGE) from error


# Lines


@dataclass(slots=True)
class _Sent:
    """What has been appended, and its output: ids of few entries, the count of many, every id with --json."""

    as_json: bool
    lines: int = 0  # of the input, up to the last that was appended
    entries: int = 0
    ids: list[str] = field(default_factory=list)  # the first ones
    last: str = ""

    def add(self, line: int, ids: list[str]) -> None:
        if self.as_json:
            for entry_id in ids:
                output.write(("[" if not self.entries else ", ") + output.to_json(entry_id))
                self.entries += 1
        else:
            self.entries += len(ids)
            self.ids += ids[: max(0, SHOWN + 1 - len(self.ids))]
        self.lines, self.last = line, ids[-1] if ids else self.last

    def finish(self, delay: float) -> None:
        """Print the end of the answer; also of one that was broken off."""
        if self.as_json:
            output.write("]\n" if self.entries else "[]\n")
        elif self.entries > SHOWN:
            output.say(f"{self.entries} entries, the last {self.last or f'waits for {delay:.15g} s'}")
        else:
            for entry_id in self.ids:
                output.say(entry_id or f"waits for {delay:.15g} s")


def _publish_lines(stream: Stream[Any], source: BinaryIO, sent: _Sent, delay: float, ttl: float | None) -> None:
    """Append what is read, batch by batch; say what was appended, however it ends."""
    begun = 0  # the last line of a batch whose appending has begun
    try:
        for batch in _batches(source):
            values, failure = _parsed(batch)
            if values:
                begun = values[-1][0]
                sent.add(begun, stream.publish_many([value for _, value in values], delay=delay, ttl=ttl))
            if failure is not None:
                raise failure
    except Failure as failure:
        raise Failure(f"{failure}\n{_account(sent, begun)}", failure.code) from failure
    except (MillstreamError, OSError) as error:
        code = Exit.USAGE if isinstance(error, ConfigError | MalformedPayload) else Exit.FAILED
        raise Failure(f"{error}\n{_account(sent, begun)}", code) from error
    except KeyboardInterrupt:
        raise Failure(f"interrupted\n{_account(sent, begun)}", Exit.INTERRUPTED) from None
    finally:
        sent.finish(delay)


def _account(sent: _Sent, begun: int) -> str:
    """Return which lines are in the stream."""
    done = f"{output.plural(sent.entries, 'entry was', 'entries were')} appended"
    upto = f", up to line {sent.lines}" if sent.lines else ""
    unknown = f"; lines {sent.lines + 1} to {begun} may have been appended" if begun > sent.lines else ""
    return f"{done}{upto}{unknown}; later lines were not"


def _batches(source: BinaryIO) -> Iterator[list[Numbered]]:
    """Read lines as they come; a batch is what one read has completed, at most BATCH lines."""
    pieces: list[bytes] = []  # of a line that is not complete; joined once, however long it is
    number = 0
    read = getattr(source, "read1", source.read)
    while data := read(READ):
        head, mark, tail = data.rpartition(b"\n")
        if mark:
            lines = b"".join([*pieces, head]).split(b"\n")
            numbered = list(enumerate(lines, number + 1))
            number += len(lines)
            yield from (numbered[at : at + BATCH] for at in range(0, len(numbered), BATCH))
            pieces = []
        pieces.append(tail)
    if any(pieces):
        yield [(number + 1, b"".join(pieces))]


def _parsed(batch: list[Numbered]) -> tuple[list[tuple[int, Any]], Failure | None]:
    """Parse lines up to the first that is not JSON. Returns the values, and the failure of that line."""
    values = []
    for number, line in batch:
        if line.strip():
            try:
                values.append((number, _value(line, f"line {number}")))
            except Failure as failure:
                return values, failure
    return values, None


def _value(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.removeprefix(b"\xef\xbb\xbf"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Failure(f"{where} is not JSON: {reason}", Exit.USAGE) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _fields(values: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for text in values:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise Failure(f"{text!r} is not a field: use NAME=VALUE", Exit.USAGE)
        fields[name] = value
    return fields
