"""Text from data cannot control a terminal, break a line or forge a log line."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.printable import LineFormatter, printable, printable_lines, safe_logger


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain text: [red] {x} ä 漢 👩‍💻", "plain text: [red] {x} ä 漢 👩‍💻"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\r\tc\x00", "a\\nb\\r\\tc\\x00"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202eevil\u2066\u200b\u2028", "\\u202eevil\\u2066\\u200b\\u2028"),
        ("\ud800", "\\ud800"),
        (b"\xff\xfeok", "\\xff\\xfeok"),
        ("\udcff", "\\xff"),
        (7, "7"),
        (None, "None"),
    ],
)
def test_everything_that_is_not_printable_is_escaped(value: object, shown: str) -> None:
    assert printable(value) == shown


@given(st.one_of(st.text(), st.binary()))
def test_nothing_dangerous_is_left(value: object) -> None:
    shown = printable(value)
    assert all(char.isprintable() or char in "\u200c\u200d" for char in shown)
    shown.encode()
    assert printable_lines(f"{shown}\n{shown}").count("\n") == 1


def log(record: str, *args: object, error: BaseException | None = None, formatter: logging.Formatter) -> str:
    stream = io.StringIO()
    logger = safe_logger(logging.getLogger("millstream.test_printable"))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.error(record, *args, exc_info=error)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue()


@pytest.mark.parametrize("formatter", [logging.Formatter(), LineFormatter()], ids=["any", "ours"])
def test_a_log_line_stays_one_line_and_its_traceback_is_escaped(formatter: logging.Formatter) -> None:
    evil = "x\x1b[2J\n2026 ERROR forged"
    try:
        raise ValueError(evil)
    except ValueError as error:
        text = log("%s of %r failed %d times: %s", evil, evil, 3, error, error=error, formatter=formatter)
    assert "\x1b" not in text
    assert "failed 3 times: x\\x1b[2J\\n2026 ERROR forged\nTraceback" in text
    assert text.endswith("ValueError: x\\x1b[2J\n    2026 ERROR forged\n")


def test_our_formatter_escapes_the_records_of_other_libraries() -> None:
    record = logging.LogRecord("other", logging.INFO, "", 1, "evil \x1b[2J\nINFO forged", None, None)
    assert LineFormatter("%(message)s").format(record) == "evil \\x1b[2J\\nINFO forged"
