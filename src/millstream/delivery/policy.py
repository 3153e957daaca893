"""What becomes of a failed delivery: a function of the attempt's number and the failure.

    failure ── a signal? ── a rule for its class? ── else "retry" ──▶ Settlement
                                                        │ within max_retries: Later(backoff)
                                                        └ beyond: DeadLetter("retries")

It knows no backend, no clock and no loop; the randomness of the backoff is handed in. Attempts count from 1, so
`max_retries=3` means four deliveries: three that may fail and are followed by another, and a last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from millstream.delivery import signals
from millstream.delivery.config import checks
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release, Settlement
from millstream.errors import ConfigError

Verdict = Literal["retry", "reject", "release"]
Answer = Verdict | signals.Retry | signals.Reject | signals.Release
Rule = Verdict | Callable[[BaseException], Answer]

VERDICTS: Final = ("retry", "reject", "release")
LUCK: Final = random.Random()  # for callers that have no reason to bring their own


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next delivery: longer each time, up to a cap.

    With jitter the wait is drawn between half of it and all of it: entries that failed together, because what
    they need was away, do not all come back at the same moment.
    """

    first: float = 1.0  # seconds after the first failure
    factor: float = 2.0  # each wait is this many times the one before
    cap: float = 300.0  # seconds that no wait exceeds
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("first", "factor", "cap"):
            checks.number(f"backoff.{name}", getattr(self, name))
        checks.flag("backoff.jitter", self.jitter)
        checks.holds("backoff.first", self.first, self.first >= 0, "must be 0 seconds or more")
        checks.holds("backoff.factor", self.factor, self.factor >= 1, "must be 1 or more")
        checks.holds("backoff.cap", self.cap, self.cap >= self.first, f"must not be less than first ({self.first:g})")

    def delay(self, attempt: int, rng: random.Random = LUCK) -> float:
        """Seconds to wait after the failure of this attempt (from 1)."""
        whole = self._whole(max(1, attempt))
        return rng.uniform(whole / 2, whole) if self.jitter else whole

    def _whole(self, attempt: int) -> float:
        try:
            return min(self.cap, self.first * self.factor ** (attempt - 1))
        except OverflowError:  # an entry that has been delivered a thousand times
            return self.cap if self.first else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When an entry is tried again and when it is given up.

    `on` maps exception classes to what they mean: "retry", "reject", "release", or a function of the exception
    that answers one of these words or a signal such as `Retry(60)`. The class nearest to the exception's own
    counts, as with `except`, and what no rule covers is retried.
    """

    max_retries: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    on: Mapping[type[BaseException], Rule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.whole("max_retries", self.max_retries, 0)
        for kind, rule in self.on.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"on: {kind!r} must be an exception class")
            if not callable(rule) and rule not in VERDICTS:
                raise ConfigError(f"on: {kind.__name__} must be {', '.join(VERDICTS)} or a function, not {rule!r}")

    def is_last(self, attempt: int) -> bool:
        """Whether no delivery may follow this attempt."""
        return attempt > self.max_retries

    def settle(self, attempt: int, failure: BaseException | None, rng: random.Random = LUCK) -> Settlement:
        """How the delivery ends that was this attempt (from 1) and ended in this failure, or in none."""
        match failure:
            case None:
                return Ack()
            case signals.Interrupted() | signals.Release():
                return Release()
            case signals.Reject():
                return DeadLetter.of(Reason.REJECTED, failure, failure.reason)
            case signals.Retry():
                return self._again(attempt, failure, failure.delay, rng)
            case _:
                return self._apply(self._answer(failure), attempt, failure, rng)

    def _apply(self, answer: Answer, attempt: int, failure: BaseException, rng: random.Random) -> Settlement:
        match answer:
            case "release" | signals.Release():
                return Release()
            case "reject":
                return DeadLetter.of(Reason.REJECTED, failure)
            case signals.Reject():
                return DeadLetter.of(Reason.REJECTED, failure, answer.reason)
            case signals.Retry():
                return self._again(attempt, failure, answer.delay, rng)
            case _:
                return self._again(attempt, failure, None, rng)

    def _again(self, attempt: int, failure: BaseException, delay: float | None, rng: random.Random) -> Settlement:
        if self.is_last(attempt):
            return DeadLetter.of(Reason.RETRIES, failure)
        return Later(self.backoff.delay(attempt, rng) if delay is None else delay, failure)

    def _answer(self, failure: BaseException) -> Answer:
        """What the nearest rule says; "retry" where there is none."""
        kind = next((kind for kind in type(failure).__mro__ if kind in self.on), None)
        rule = "retry" if kind is None else self.on[kind]
        return _asked(rule, failure) if callable(rule) else rule


def _asked(rule: Callable[[BaseException], Answer], failure: BaseException) -> Answer:
    """The answer of a rule that is a function; one that fails itself means "retry" and leaves a note.

    It is the user's code, as a handler is: its bug must not stop the worker, and the note shows up in the
    traceback of the dead letter.
    """
    try:
        answer = rule(failure)
    except Exception as error:
        failure.add_note(f"the retry rule for it failed: {error!r}")
        return "retry"
    if answer not in VERDICTS and not isinstance(answer, signals.Retry | signals.Reject | signals.Release):
        failure.add_note(f"the retry rule for it gave no answer that we know: {answer!r}")
        return "retry"
    return answer
