"""Log how failed deliveries end, so that no failure is silent.

    retry           WARNING   entry, attempt, error and the wait; INFO if the handler asked for it with `Retry`
    dead letter     ERROR     with the traceback of the exception, which error trackers pick up

Without any logging set-up Python prints WARNING and ERROR to stderr. An entry's fields are never logged.
"""

from __future__ import annotations

import logging
import traceback
from typing import NamedTuple

from millstream.delivery.settlement import DeadLetter, Later, Settlement
from millstream.delivery.signals import Retry
from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))


class Failed(NamedTuple):
    """One failed delivery."""

    stream: bytes
    id: bytes
    attempt: int  # from 1
    most_attempts: int
    keeps_dead: bool


def log_failure(failed: Failed, settlement: Settlement, is_in_force: bool) -> None:
    """Log one failed delivery after its settlement was sent; `is_in_force`: the server has carried it out."""
    entry_id, name, attempt = failed.id.decode(), failed.stream.decode("utf-8", "replace"), failed.attempt
    match settlement:
        case DeadLetter(reason=reason, error=error, failure=failure) if is_in_force:
            end = "is now a dead letter" if failed.keeps_dead else "is dropped, as dead letters are discarded here"
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
        case Later(delay_s=delay_s, failure=failure) if is_in_force:
            logger.log(
                logging.INFO if failure is None or isinstance(failure, Retry) else logging.WARNING,
                "%s of %r failed (attempt %d of %d), again in %.1f s: %s",
                entry_id,
                name,
                attempt,
                failed.most_attempts,
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
