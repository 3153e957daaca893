"""Syntax lines are read into trees from which the same lines can be written."""

from __future__ import annotations

import re

import pytest

from millstream.engine.text.syntax import arguments
from millstream.server.commands import TABLE
from tools.command_page import rows


def _spaced(line: str) -> str:
    return re.sub(r"\s*\|\s*", " | ", line)


@pytest.mark.parametrize("row", [row for row in rows(TABLE) if row.name != "bitfield"], ids=lambda row: row.name)
def test_a_tree_has_all_that_its_line_says(row) -> None:  # type: ignore[no-untyped-def]
    name = row.name.upper().replace("|", " ")
    written = " ".join([name, *(argument.text() for argument in arguments(row.syntax, name))])
    assert _spaced(written) == _spaced(row.syntax)


def test_the_parts_of_an_option_are_told_apart() -> None:
    key, limit, field = arguments("X key [LIMIT offset count] field value [field value ...]", "X")
    assert (key.kind, limit.token, limit.is_optional) == ("key", "LIMIT", True)
    assert [part.name for part in limit.parts] == ["offset", "count"]
    assert (field.kind, field.is_multiple, [part.name for part in field.parts]) == ("block", True, ["field", "value"])
