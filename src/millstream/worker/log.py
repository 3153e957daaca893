"""Log lines that people read and machines parse: a fixed sentence, then names and values.

    log = bound(logging.getLogger(__name__), stream="orders", group="billing")
    log.warning("the lease was lost", id=entry_id)
        text:  the lease was lost stream=orders group=billing id=1-0
        JSON:  {"event": "the lease was lost", "stream": "orders", …}      with JsonFormatter on the handler

Values are also in the record's `fields`, for custom handlers. Never log entry fields: they are the users' data.
"""

from __future__ import annotations

import json
import logging
from collections.abc import MutableMapping
from typing import Any, Final

OWN: Final = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})  # the keyword arguments of logging itself


class BoundLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds fixed names and values to every line."""

    def bind(self, **fields: object) -> BoundLogger:
        """Return a logger with further names and values."""
        return bound(self.logger, **{**(self.extra or {}), **fields})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        fields = {**(self.extra or {}), **{name: value for name, value in kwargs.items() if name not in OWN}}
        passed = {name: value for name, value in kwargs.items() if name in OWN}
        passed["extra"] = {**passed.get("extra", {}), "event": msg, "fields": fields}
        return _LogLine(msg, fields), passed


class _LogLine:
    """A message that is formatted only when it is printed."""

    def __init__(self, sentence: object, fields: dict[str, object]) -> None:
        self._sentence, self._fields = sentence, fields

    def __str__(self) -> str:
        return " ".join([str(self._sentence), *(f"{name}={_value(value)}" for name, value in self._fields.items())])


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, event and the values of the line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "event": str(getattr(record, "event", None) or record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_text, ensure_ascii=False)


def bound(logger: logging.Logger, **fields: object) -> BoundLogger:
    """Return a logger for one stream, group, consumer, …"""
    return BoundLogger(logger, fields)


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _value(value: object) -> str:
    """Format a value after `name=`, in quotes if it is not one word."""
    text = _text(value)
    is_word = bool(text) and text.isprintable() and not any(char in text for char in ' "=')
    return text if is_word else json.dumps(text, ensure_ascii=False)
