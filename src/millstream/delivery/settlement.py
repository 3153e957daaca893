"""The end of a delivery as a value: the policy chooses one, a backend executes it."""

from __future__ import annotations

import traceback as tracebacks
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.delivery.steps import Publication

ERROR_SIZE: Final = 1_000  # characters of an error that a dead letter keeps
TRACEBACK_SIZE: Final = 8_000  # characters of a traceback, from its end, where the failing frame is


class Discard:
    """`dead_letter=Discard`: entries that are given up are logged, counted and dropped. Has to be asked for."""


class Reason(StrEnum):
    """Why an entry became a dead letter."""

    RETRIES = "retries"  # the last allowed attempt failed, by exception or timeout
    REJECTED = "rejected"  # a handler has rejected it
    CRASHED = "crashed"  # its deliveries ended with the death of the worker
    EXPIRED = "expired"  # its time to live ended before it was handled
    MALFORMED = "malformed"  # its fields do not match the stream's type
    TRIMMED = "trimmed"  # it was pending, but the entry itself is gone


@dataclass(frozen=True, slots=True)
class Ack:
    """The delivery is done. Entries published with it are appended in the same step."""

    publish: tuple[Publication, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Return the entry to the group at once; this delivery does not count."""

    has_begun: bool = True  # False: no handler has begun, so this delivery says nothing about the entry


@dataclass(frozen=True, slots=True)
class Later:
    """Delivered again after `delay_s`; this delivery counts."""

    delay_s: float
    failure: BaseException | None = field(default=None, compare=False, repr=False)  # for the log


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Set the entry aside, with the facts that a person needs to decide about it. All texts can be encoded as UTF-8."""

    reason: Reason
    error: str = ""  # what went wrong, in one line or a few
    traceback: str = ""  # the end of it; empty where no exception was raised
    failure: BaseException | None = field(default=None, compare=False, repr=False)  # for the log

    @classmethod
    def of(cls, reason: Reason, failure: BaseException, error: str | None = None) -> DeadLetter:
        """Build a dead letter from an exception. `error` replaces the text of the exception."""
        told = error if error is not None else "".join(tracebacks.format_exception_only(failure)).strip()
        trace = "".join(tracebacks.format_exception(failure))
        return cls(reason, _encodable(told[:ERROR_SIZE]), _encodable(_tail(trace, TRACEBACK_SIZE)), failure)


Settlement = Ack | Release | Later | DeadLetter


def _tail(text: str, size: int) -> str:
    """Return the end of a text, starting with a whole line where it had to be cut."""
    if len(text) <= size:
        return text
    tail = text[-size:]
    return "…\n" + tail[tail.find("\n") + 1 :]


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which come from file names and broken input."""
    return text.encode("utf-8", "replace").decode("utf-8")
