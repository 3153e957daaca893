"""What becomes of a failed delivery, a case a row; and how long it waits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.delivery import signals
from millstream.delivery.policy import Backoff, RetryPolicy, Rule, spent, unfit
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release
from millstream.errors import ConfigError

STEADY = Backoff(jitter=False)
POLICY = RetryPolicy(backoff=STEADY)


def raised(failure: BaseException) -> BaseException:
    """The exception with a traceback, as a handler leaves it."""
    try:
        raise failure
    except BaseException as error:
        return error


@pytest.mark.parametrize(
    ("attempt", "failure", "expected"),
    [
        (1, None, Ack()),
        (9, None, Ack()),
        (1, ValueError("bad"), Later(1)),
        (2, ValueError("bad"), Later(2)),
        (3, ValueError("bad"), Later(4)),
        (3, TimeoutError(), Later(4)),
        (1, signals.Retry(60), Later(60)),
        (3, signals.Retry(0), Later(0)),
        (2, signals.Retry(), Later(2)),
        (1, signals.Release(), Release()),
        (99, signals.Release(), Release()),
        (1, signals.Interrupted(), Release()),
        (99, signals.Interrupted(), Release()),
    ],
)
def test_an_attempt_is_settled(attempt: int, failure: BaseException | None, expected: object) -> None:
    assert POLICY.settle(attempt, failure) == expected


@pytest.mark.parametrize("failure", [ValueError("bad"), TimeoutError("60 s"), signals.Retry(5)])
def test_the_fourth_failure_of_an_entry_with_three_retries_is_its_last(failure: BaseException) -> None:
    settled = POLICY.settle(4, raised(failure))
    assert isinstance(settled, DeadLetter)
    assert settled.reason == "retries"
    assert "in raised" in settled.traceback


def test_a_rejected_entry_is_dead_at_once_with_the_handlers_words() -> None:
    settled = POLICY.settle(1, raised(signals.Reject("no such customer")))
    assert isinstance(settled, DeadLetter)
    assert (settled.reason, settled.error) == (Reason.REJECTED, "no such customer")


def test_without_retries_the_first_failure_is_the_last() -> None:
    settled = RetryPolicy(max_retries=0).settle(1, ValueError("bad"))
    assert settled == DeadLetter(Reason.RETRIES, "ValueError: bad", "ValueError: bad\n")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("retry", Later(1)),
        ("release", Release()),
        (lambda _: "release", Release()),
        (lambda _: signals.Retry(7), Later(7)),
        (lambda _: signals.Retry(), Later(1)),
        (lambda _: signals.Release(), Release()),
    ],
)
def test_a_rule_for_a_class_decides(rule: Rule, expected: object) -> None:
    assert RetryPolicy(backoff=STEADY, on={KeyError: rule}).settle(1, KeyError("k")) == expected


@pytest.mark.parametrize(
    ("rule", "error"), [("reject", "KeyError: 'k'"), (lambda _: signals.Reject("unknown"), "unknown")]
)
def test_a_rule_may_reject(rule: Rule, error: str) -> None:
    settled = RetryPolicy(on={KeyError: rule}).settle(1, KeyError("k"))
    assert isinstance(settled, DeadLetter)
    assert (settled.reason, settled.error) == (Reason.REJECTED, error)


def test_the_rule_of_the_nearest_class_counts() -> None:
    policy = RetryPolicy(backoff=STEADY, on={Exception: "release", OSError: "retry", LookupError: "reject"})
    assert policy.settle(1, ConnectionResetError()) == Later(1)
    assert policy.settle(1, ValueError()) == Release()
    assert isinstance(policy.settle(1, KeyError()), DeadLetter)


def test_a_signal_is_not_subject_to_rules() -> None:
    assert RetryPolicy(on={Exception: "reject"}).settle(1, signals.Retry(3)) == Later(3)


@pytest.mark.parametrize("rule", [lambda error: error.missing, lambda _: "perhaps", lambda _: None])
def test_a_rule_that_fails_means_retry_and_is_told_of(rule: Callable[[BaseException], object]) -> None:
    policy = RetryPolicy(max_retries=1, backoff=STEADY, on={ValueError: rule})  # type: ignore[dict-item]
    assert policy.settle(1, ValueError("bad")) == Later(1)
    settled = policy.settle(2, ValueError("bad"))
    assert isinstance(settled, DeadLetter)
    assert settled.reason == Reason.RETRIES
    assert "the retry rule for it" in settled.traceback


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: RetryPolicy(max_retries=-1), "max_retries"),
        (lambda: RetryPolicy(max_retries=True), "max_retries"),
        (lambda: RetryPolicy(on={ValueError: "ignore"}), "on: ValueError"),
        (lambda: RetryPolicy(on={"ValueError": "retry"}), "on: 'ValueError'"),
        (lambda: Backoff(first=-1), "backoff.first"),
        (lambda: Backoff(first=math.nan), "backoff.first"),
        (lambda: Backoff(factor=0.5), "backoff.factor"),
        (lambda: Backoff(first=10, cap=5), "backoff.cap"),
        (lambda: Backoff(cap=math.inf), "backoff.cap"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}"):
        make()


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf])
def test_a_retry_needs_a_delay_that_can_be_waited_for(delay: float) -> None:
    with pytest.raises(ValueError, match=r"^delay"):
        signals.Retry(delay)


def test_waits_double_up_to_the_cap() -> None:
    assert [STEADY.delay(attempt) for attempt in (1, 2, 3, 8, 9, 10, 5000)] == [1, 2, 4, 128, 256, 300, 300]


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(1, 1e6), st.floats(0, 1e6), st.integers(1, 2**63), st.integers(), st.booleans())
def test_a_wait_is_between_half_and_all_of_the_steady_one(
    first: float, factor: float, more: float, attempt: int, seed: int, jitter: bool
) -> None:
    cap = first + more
    steady = Backoff(first, factor, cap, jitter=False).delay(attempt)
    drawn = Backoff(first, factor, cap, jitter).delay(attempt, random.Random(seed))
    assert min(first, cap) <= steady <= cap
    assert steady / 2 <= drawn <= steady
    assert jitter or drawn == steady


def test_the_same_luck_gives_the_same_wait() -> None:
    policy = RetryPolicy()
    assert policy.settle(3, ValueError(), random.Random(1)) == policy.settle(3, ValueError(), random.Random(1))
    assert policy.settle(3, ValueError(), random.Random(1)) != policy.settle(3, ValueError(), random.Random(2))


@pytest.mark.parametrize(
    ("fields", "now_ms", "expected"),
    [
        ({}, 5, None),
        ({b"_redrive_group": b"billing"}, 5, None),
        ({b"_redrive_group": b"mail"}, 5, Ack()),
        ({b"_redrive_group": b"mail", b"_expires_at": b"1"}, 5, Ack()),
        ({b"_expires_at": b"6"}, 5, None),
        ({b"_expires_at": b"5"}, 5, DeadLetter(Reason.EXPIRED, "not handled by 5 (Unix time in ms)")),
        ({b"_expires_at": b"5"}, None, None),
        ({b"_expires_at": b"soon"}, 5, None),
    ],
)
def test_what_no_handler_may_begin_is_named(fields: dict[bytes, bytes], now_ms: int | None, expected: object) -> None:
    assert unfit(fields, b"_", b"billing", now_ms) == expected


def test_an_entry_is_spent_where_its_next_failure_would_have_been_one_too_many() -> None:
    for attempt in range(1, 9):
        last = POLICY.settle(attempt - 1, raised(ValueError("bad"))) if attempt > 1 else None
        assert (spent(POLICY, attempt) is not None) == isinstance(last, DeadLetter)
    assert spent(POLICY, 5, Reason.CRASHED) == DeadLetter(Reason.CRASHED, "4 deliveries ended without success")
