"""Log how failed deliveries end, so that no failure is silent.

    retry           WARNING   entry, attempt, error and the wait; INFO if the handler asked for it with `Retry`
    dead letter     ERROR     with the traceback of the exception, which error trackers pick up

Without any logging set-up Python prints WARNING and ERROR to stderr. An entry's fields are never logged.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from millstream.delivery.settlement import DeadLetter, Later
from millstream.delivery.signals import Retry

if TYPE_CHECKING:
    from millstream.delivery.config.settings import Settings
    from millstream.delivery.consumer import Settled

logger = logging.getLogger(__name__)


def log_failure(stream: bytes, result: Settled, attempt: int, settings: Settings) -> None:
    """Log one failed delivery after its settlement was sent; `attempt` counts from 1."""
    entry_id, name = result.delivery.id.decode(), stream.decode("utf-8", "replace")
    match result.settlement:
        case DeadLetter(reason=reason, error=error, failure=failure) if _is_in_force(result):
            end = "is now a dead letter" if settings.keeps_dead else "is dropped, as dead letters are discarded here"
            logger.error(
                "%s of %r %s (%s, attempt %d): %s",
                entry_id,
                name,
                end,
                reason,
                attempt,
                error or "no reason was given",
                exc_info=failure,
            )
        case Later(delay_s=delay_s, failure=failure) if _is_in_force(result):
            logger.log(
                logging.INFO if failure is None or isinstance(failure, Retry) else logging.WARNING,
                "%s of %r failed (attempt %d of %d), again in %.1f s: %s",
                entry_id,
                name,
                attempt,
                settings.max_retries + 1,
                delay_s,
                describe(failure),
            )
        case DeadLetter(failure=failure) | Later(failure=failure) if failure is not None:
            logger.warning("%s of %r failed (attempt %d): %s", entry_id, name, attempt, describe(failure))
        case _:
            return


def describe(failure: BaseException | None) -> str:
    """Return an exception's class and message in one line, as the end of a traceback shows it."""
    if failure is None:
        return "a retry was asked for"
    return " ".join("".join(traceback.format_exception_only(failure)).split())


def _is_in_force(result: Settled) -> bool:
    """Whether the server carried the settlement out (0: an earlier try of ours may have done it)."""
    return result.code in (0, 1)
