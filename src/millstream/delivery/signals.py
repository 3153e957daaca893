"""Signals: a handler raises them to say how its delivery ends. They are answers, not errors.

return            done
raise Retry(60)   again, in a minute; counts as an attempt
raise Reject(…)   never again: to the dead letters
raise Release()   not now, not me; does not count
anything else     a failure: the retry policy decides
"""

from __future__ import annotations

import math


class Retry(Exception):
    """Deliver this entry again, after `delay` seconds, or after the policy's backoff if none is given."""

    def __init__(self, delay: float | None = None) -> None:
        if delay is not None and not (math.isfinite(delay) and delay >= 0):
            raise ValueError(f"delay: must be a number of seconds, 0 or more, not {delay!r}")
        super().__init__("again" if delay is None else f"again in {delay:g} s")
        self.delay = delay


class Reject(Exception):
    """Set this entry aside as a dead letter; the reason is kept with it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):
    """Give this entry back to the group as if it had not been delivered."""


class Interrupted(Exception):
    """The worker is shutting down and the handler has not finished; raised by us, never by a handler."""
