"""The one decision about a delivery: retry, dead letter or done, from the attempt number and the failure.

    exception ── answered: a signal? a rule for its class? else "retry" ──▶ Failure ── decide ──▶ Settlement
                                                                              │ within max_retries: Later(backoff)
                                                                              └ beyond: DeadLetter("retries")

`answered` runs where the exception is. A Failure can travel as text, so `decide` may run elsewhere: in Spark the one
runs in the step of a row, the other in the sink that settles it.

It knows no backend, no clock and no loop; the randomness of the backoff is handed in. Attempts count from 1, so
`max_retries=3` means four deliveries: three that may fail and are followed by another, and a last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never

from millstream.delivery import signals
from millstream.delivery.config import checks
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release, Settlement
from millstream.errors import ConfigError

Verdict = Literal["retry", "reject", "release"]
Answer = Verdict | signals.Retry | signals.Reject | signals.Release
Rule = Verdict | Callable[[BaseException], Answer]

VERDICTS: Final = ("retry", "reject", "release")
LUCK: Final = random.Random()  # the default for callers without a generator of their own


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before the next delivery: longer each time, up to a cap.

    With jitter the delay is drawn between its half and its whole, so entries that failed together do not all come back
    at the same moment.
    """

    first: float = 1.0  # seconds after the first failure
    factor: float = 2.0  # the factor between consecutive delays
    cap: float = 300.0  # the longest delay in seconds
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("first", "factor", "cap"):
            checks.number(f"backoff.{name}", getattr(self, name))
        checks.flag("backoff.jitter", self.jitter)
        checks.holds("backoff.first", self.first, self.first >= 0, "must be 0 seconds or more")
        checks.holds("backoff.factor", self.factor, self.factor >= 1, "must be 1 or more")
        checks.holds("backoff.cap", self.cap, self.cap >= self.first, f"must not be less than first ({self.first:g})")

    def delay(self, attempt: int, rng: random.Random = LUCK) -> float:
        """Return the seconds to wait after the failure of this attempt (from 1)."""
        whole = self._whole(max(1, attempt))
        return rng.uniform(whole / 2, whole) if self.jitter else whole

    def _whole(self, attempt: int) -> float:
        try:
            return min(self.cap, self.first * self.factor ** (attempt - 1))
        except OverflowError:  # the delay of an entry that has been delivered a thousand times
            return self.cap if self.first else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The rules for retrying an entry and for giving it up.

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
        """Return whether no delivery may follow this attempt."""
        return attempt > self.max_retries

    def settle(self, attempt: int, failure: BaseException | None, rng: random.Random = LUCK) -> Settlement:
        """Return how the delivery ends that was this attempt (from 1) and ended in this failure, or in none."""
        return decide(self, attempt, None if failure is None else answered(self, failure), rng)


@dataclass(frozen=True, slots=True)
class Failure:
    """The outcome that a failed delivery asks for, and the texts about it."""

    answer: Verdict
    error: str | None = None  # None: the exception's own words
    traceback: str = ""
    delay_s: float | None = None  # of "retry"; None: the backoff decides
    reason: Reason = Reason.REJECTED  # of "reject"
    cause: BaseException | None = None  # None: the failure was told as text

    def letter(self, reason: Reason) -> DeadLetter:
        """Return the dead letter that tells of it."""
        if self.cause is not None:
            return DeadLetter.of(reason, self.cause, self.error)
        return DeadLetter(reason, self.error or "", self.traceback)


def decide(policy: RetryPolicy, attempt: int, failure: Failure | None, rng: random.Random = LUCK) -> Settlement:
    """Return how a delivery ends: the only place where retry, dead letter or done is decided.

    `attempt` counts from 1; `failure` is None for a delivery that is done.
    """
    if failure is None:
        return Ack()
    match failure.answer:
        case "release":
            return Release()
        case "reject":
            return failure.letter(failure.reason)
        case "retry":
            if policy.is_last(attempt):
                return failure.letter(Reason.RETRIES)
            delay_s = policy.backoff.delay(attempt, rng) if failure.delay_s is None else failure.delay_s
            return Later(delay_s, failure.cause)
    assert_never(failure.answer)


def unfit(fields: Mapping[bytes, bytes], prefix: bytes, group: bytes, now_ms: int | None) -> Settlement | None:
    """Return how a delivery ends that no handler may begin: it expired, or the group was done with it before.

    None: a handler may begin. `now_ms` is the server's time; without it nothing expires.
    """
    if fields.get(prefix + b"redrive_group", group) != group:
        return Ack()  # a dead letter of another group, redriven: this group was done with it before
    expires = fields.get(prefix + b"expires_at", b"")
    if expires.isdigit() and now_ms is not None and now_ms >= int(expires):
        return expired(int(expires))
    return None


def expired(at_ms: int) -> DeadLetter:
    """Return the dead letter of an entry that was not handled by this time."""
    return DeadLetter(Reason.EXPIRED, f"not handled by {at_ms} (Unix time in ms)")


def spent(policy: RetryPolicy, attempt: int, reason: Reason = Reason.RETRIES) -> DeadLetter | None:
    """Return the dead letter of an entry whose attempts before this one have used up the limit, or None."""
    if not policy.is_last(attempt - 1):
        return None
    return DeadLetter(reason, f"{attempt - 1} deliveries ended without success")


def answered(policy: RetryPolicy, failure: BaseException) -> Failure:
    """Return what an exception asks for: by itself if it is a signal, else by the policy's rule for its class."""
    is_signal = isinstance(failure, signals.Interrupted | signals.Retry | signals.Reject | signals.Release)
    answer = failure if is_signal else _ruled(policy, failure)
    match answer:
        case "release" | signals.Release() | signals.Interrupted():
            return Failure("release", cause=failure)
        case "reject":
            return Failure("reject", cause=failure)
        case signals.Reject():
            return Failure("reject", answer.reason, cause=failure)
        case signals.Retry():
            return Failure("retry", delay_s=answer.delay, cause=failure)
    return Failure("retry", cause=failure)


def _ruled(policy: RetryPolicy, failure: BaseException) -> Answer:
    """Return the answer of the nearest rule, or "retry" without a rule."""
    kind = next((kind for kind in type(failure).__mro__ if kind in policy.on), None)
    rule = "retry" if kind is None else policy.on[kind]
    return _asked(rule, failure) if callable(rule) else rule


def _asked(rule: Callable[[BaseException], Answer], failure: BaseException) -> Answer:
    """Return the answer of a rule that is a function. A rule that raises means "retry" and leaves a note.

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
