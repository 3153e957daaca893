"""The page of supported commands is what the command table says."""

from __future__ import annotations

from millstream.server.commands import TABLE
from tools.command_page import PAGE, page, rows


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python tools/command_page.py`"


def test_every_command_says_what_it_does_and_how_it_is_written() -> None:
    for row in rows(TABLE):
        assert row.summary.endswith("."), row.name
        assert row.syntax.upper().startswith(row.name.upper().replace("|", " ")), row.name
        assert row.since, row.name
