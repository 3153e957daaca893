"""Retry policies on their way to executors: as text in the option `retryPolicy`, or pickled with a step's function.

    {"max_retries": 3, "backoff": {"first": 1.0, "factor": 2.0, "cap": 300.0, "jitter": true}}

The rules of `on` need the exception, so they travel with the steps that may raise it, and are not in the text: what the
sink gets are rows that carry the answers.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from millstream.delivery.policy import Backoff, RetryPolicy
from millstream.errors import ConfigError


def policy_text(policy: RetryPolicy) -> str:
    """Return a policy as the option `retryPolicy` has it."""
    return json.dumps({"max_retries": policy.max_retries, "backoff": asdict(policy.backoff)})


def policy_from(text: str) -> RetryPolicy:
    """Return the policy of a text; ConfigError if it is none."""
    try:
        found = json.loads(text)
        return RetryPolicy(
            max_retries=found.pop("max_retries", 3), backoff=Backoff(**found.pop("backoff", {})), **found
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"this is not a retry policy: {error}") from None


def check_travels(policy: RetryPolicy) -> None:
    """Raise a ConfigError that names the rule of `on` that cannot be sent to executors."""
    for kind, rule in policy.on.items():
        if not callable(rule) and "<locals>" not in kind.__qualname__:
            continue
        from pyspark.cloudpickle import dumps

        try:
            dumps((kind, rule))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise ConfigError(f"retry: the rule for {kind.__name__} cannot be sent to executors: {error}") from None
