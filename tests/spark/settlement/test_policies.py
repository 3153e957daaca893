"""One retry policy decides for workers and for Spark, whatever way it goes."""

from __future__ import annotations

import random
import threading

import pytest

pytest.importorskip("pyspark")

from millstream import Backoff, Reject, Release, Retry, RetryPolicy
from millstream.delivery.policy import answered, decide
from millstream.delivery.settlement import DeadLetter, Later, Settlement
from millstream.errors import ConfigError
from millstream.spark.group.options import parse_settling
from millstream.spark.group.policies import policy_from, policy_text
from millstream.spark.pipeline.definition import GroupSource, Parquet, Pipeline
from millstream.spark.settlement.outcomes import outcome_of
from millstream.spark.settlement.rows import Other, settlement_of

STEADY = Backoff(first=2.0, factor=3.0, cap=10.0, jitter=False)
RULES = {
    ValueError: "reject",
    KeyError: "release",
    OSError: "retry",
    LookupError: lambda error: Retry(7),
    ArithmeticError: lambda error: Reject("sums"),
}
FAILURES = (
    ValueError("v"),
    UnicodeError("u"),
    KeyError("k"),
    IndexError("i"),
    OSError("o"),
    ZeroDivisionError("z"),
    RuntimeError("r"),
    Retry(),
    Retry(60),
    Reject("no"),
    Reject(),
    Release(),
)


def in_spark(policy: RetryPolicy, attempt: int, failure: Exception) -> Settlement:
    """The rules where the row is, the rest where it is settled, with the policy as an option."""
    found = outcome_of(failure, policy)
    row = Other(
        b"1-1",
        None,
        attempt,
        found["outcome"],
        found.get("reason", ""),
        found.get("error", ""),
        found.get("traceback", ""),
        found.get("delay"),
    )
    options = {"url": "redis://localhost", "group": "g", "retryPolicy": policy_text(policy)}
    return settlement_of(row, attempt, parse_settling(options).terms)


@pytest.mark.parametrize("attempt", [1, 2, 3, 4])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_failure_ends_in_spark_as_it_ends_in_a_worker(failure: Exception, attempt: int) -> None:
    policy = RetryPolicy(max_retries=2, backoff=STEADY, on=RULES)  # type: ignore[arg-type]
    expected = policy.settle(attempt, failure, random.Random(1))
    assert in_spark(policy, attempt, failure) == expected
    assert decide(policy, attempt, answered(policy, failure)) == expected


def test_the_whole_backoff_reaches_the_sink() -> None:
    policy = RetryPolicy(max_retries=5, backoff=STEADY)
    found = [in_spark(policy, attempt, RuntimeError("r")) for attempt in range(1, 7)]
    assert found[:5] == [Later(2.0), Later(6.0), Later(10.0), Later(10.0), Later(10.0)]
    assert isinstance(found[5], DeadLetter)
    assert policy_from(policy_text(policy)) == policy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retryPolicy": "3"}, "option 'retryPolicy': this is not a retry policy"),
        ({"retryPolicy": '{"retries": 3}'}, "option 'retryPolicy': this is not a retry policy"),
        ({"retryPolicy": '{"max_retries": -1}'}, "option 'retryPolicy': max_retries"),
        ({"retryPolicy": "{}", "maxRetries": "3"}, "'retryPolicy' and 'maxRetries' exclude each other"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_settling({"url": "redis://localhost", "group": "g", **options})


def test_a_rule_that_cannot_travel_is_refused_by_name_when_the_pipeline_is_made() -> None:
    lock = threading.Lock()
    rules = {ValueError: lambda error: "retry" if lock.locked() else "reject"}
    with pytest.raises(ConfigError, match=r"the rule for ValueError cannot be sent to executors: cannot pickle"):
        Pipeline(source=GroupSource("s", group="g"), sinks=[Parquet("out")], retry=RetryPolicy(on=rules))  # type: ignore[arg-type]
