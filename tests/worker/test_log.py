"""Log lines: a sentence, then names and values, as text or as JSON."""

from __future__ import annotations

import json
import logging

import pytest

from millstream.worker.log import JsonFormatter, bound


def test_a_line_is_its_sentence_and_then_its_names(caplog: pytest.LogCaptureFixture) -> None:
    log = bound(logging.getLogger("tests.log"), stream="orders", group="two words")
    log.warning("the lease was lost", id=b"1-0", why='a "quote"')
    assert caplog.messages == [r'the lease was lost stream=orders group="two words" id=1-0 why="a \"quote\""']
    assert caplog.records[0].__dict__["fields"]["id"] == b"1-0"


def test_more_names_can_be_bound(caplog: pytest.LogCaptureFixture) -> None:
    log = bound(logging.getLogger("tests.log"), stream="orders").bind(group="billing")
    log.warning("started")
    assert caplog.messages == ["started stream=orders group=billing"]


def test_nothing_is_put_together_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("asked")

    with caplog.at_level(logging.INFO):
        bound(logging.getLogger("tests.log")).debug("not shown", value=Costly())
    assert caplog.messages == []


def test_json_lines_hold_the_same(caplog: pytest.LogCaptureFixture) -> None:
    log = bound(logging.getLogger("tests.log"), stream="orders")
    try:
        raise ValueError("bad")
    except ValueError:
        log.error("the handler failed", id=b"1-0", exc_info=True)
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (line["event"], line["level"]) == ("the handler failed", "ERROR")
    assert (line["stream"], line["id"]) == ("orders", "1-0")
    assert "ValueError: bad" in line["exception"]


def test_a_line_of_somebody_else_is_json_too() -> None:
    record = logging.LogRecord("redis", logging.INFO, __file__, 1, "connected to %s", ("here",), None)
    assert json.loads(JsonFormatter().format(record))["event"] == "connected to here"
