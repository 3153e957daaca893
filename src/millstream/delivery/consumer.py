"""One consumer of a group: what a worker does with the server, without loops, threads or handlers.

    fetch ──▶ deliveries ──▶ (somebody works) ──▶ settle
                 │ renew, while they work
    maintain: delayed entries due, ghosts, silent consumers

Every method is one call or a few, in the order that loses nothing if the process ends between any two of them. The
worker puts threads around it, Spark its own tasks, and the test kit one thread that ends it wherever it likes.

Time for deciding when to look again is taken from a watch that cannot jump; leases are measured by the server alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from millstream.client.backend import RESENDS, pause_s
from millstream.client.calls import Call
from millstream.client.capabilities import Capabilities
from millstream.delivery.config.settings import Settings
from millstream.delivery.delivery import Delivery
from millstream.delivery.failure_log import Failed, log_failure
from millstream.delivery.keys import Keys
from millstream.delivery.policy import RetryPolicy, spent, unfit
from millstream.delivery.recorder import NullRecorder, Recorder, bound
from millstream.delivery.rfc import RfcRecovery
from millstream.delivery.server_clock import ServerWatch
from millstream.delivery.settlement import Ack, DeadLetter, Discard, Later, Reason, Release, Settlement
from millstream.delivery.steps import CLAIM_IDLE_MS, Settle, Steps
from millstream.errors import BackendError, ServerReplied, Unavailable
from millstream.printable import safe_logger

T = TypeVar("T")
logger = safe_logger(logging.getLogger(__name__))

SCAN_EVERY_MS = 500  # on servers without CLAIM: how soon something released or due is found by a consumer that waits
PEEK_EVERY_MS = 100  # there too, while others have entries: how soon their retries are heard of
TAKE_OVER_EVERY_MS = 1000  # on servers with CLAIM: how often we look for what dead consumers left
SETTLE_AT_ONCE = 500  # items a call; more only make other clients wait longer
RENEW_AT_ONCE = 500
OURS = frozenset({b"retry_count", b"original_id", b"redriven", b"redrive_group", b"expires_at"})  # behind the prefix
MOST_PARKED = 1_000_000  # retries looked at before the first read
PROMOTE_AT_ONCE = 1000
PROMOTE_EVERY_MS = 3000  # at least; what is due before that is announced, see `await_sooner` (shared.lua: SOON_MS)
DEPTH_EVERY_MS = 10_000  # how often gauges are brought up to date


class Runs(Protocol):
    """What a consumer needs of a backend."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def is_cluster(self) -> bool: ...

    def run(self, call: Call[T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one settlement."""

    delivery: Delivery
    settlement: Settlement
    code: int | str  # 1 settled, 0 no longer pending, perhaps our own doing, -1 somebody else's; or the server's error

    @property
    def is_lost(self) -> bool:
        return self.code == -1

    @property
    def error(self) -> str | None:
        return self.code if isinstance(self.code, str) else None


@dataclass(slots=True)
class Consumer:
    """A member of a group."""

    backend: Runs
    stream: bytes
    group: bytes
    name: bytes
    settings: Settings
    watch_ms: Callable[[], int]  # a clock that never jumps
    recorder: Recorder = field(default_factory=NullRecorder)
    sleep: Callable[[float], object] = time.sleep  # between tries to settle
    keys: Keys = field(init=False)
    steps: Steps = field(init=False)
    rfc: RfcRecovery | None = field(init=False, default=None)
    watch: ServerWatch = field(init=False)
    _limit: RetryPolicy = field(init=False)
    doing: str = ""  # the step of `maintain` that runs, for the log
    _cursor: bytes = b"0-0"
    _ghost_cursor: bytes = b"0-0"
    _swept_s: float = 0.0  # that this walk over the pending list has taken so far
    _rank: int = 0
    _next_scan_ms: int = 0
    _next_sweep_ms: int = 0
    _next_promote_ms: int = 0
    _news_of_sooner: int = 0  # how often `promote_now` was called, by another thread
    _next_reap_ms: int = 0
    _next_depth_ms: int = 0
    _is_sure_of_clock: bool = False
    _is_busy_elsewhere: bool = False  # somebody else has entries, by the last scan
    _handed: dict[int, Delivery] = field(default_factory=dict)  # to handlers and not settled yet, by object
    _reread_at_ms: list[int] = field(default_factory=list)  # when to look for what lost replies delivered
    _takes: int = 0  # of `take_due`, which another thread may call
    _takes_now: int = 0

    def __post_init__(self) -> None:
        settings = self.settings
        self._limit = RetryPolicy(max_retries=settings.max_retries)
        stream, group = (name.decode("utf-8", "replace") for name in (self.stream, self.group))
        self.recorder = bound(self.recorder, stream, group)
        self.keys = keys_of(self.stream, settings)
        if self.backend.is_cluster:
            self.keys.require_one_slot()
        self.steps = Steps(
            self.keys,
            self.group,
            self.backend.capabilities,
            settings.field_prefix.encode(),
            keep_done=settings.retain == "all",
            lease_ms=round(settings.min_idle_s * 1000),
            claim_ms=CLAIM_IDLE_MS,
        )
        self.watch = ServerWatch.for_leases(self.validity_ms, self.steps.lease_ms)
        if settings.recovery == "rfc":
            self.rfc = RfcRecovery(self.steps, settings, self.recorder, self.watch, self.watch_ms)
            self._next_scan_ms = self.watch_ms() + self.rfc.next_interval_ms()  # the first one is a part of `open`

    @property
    def validity_ms(self) -> int:
        """For how long after a delivery or a renewal was asked for it is ours."""
        return round(self.settings.lease * 1000)

    @property
    def has_locks(self) -> bool:
        return self.settings.has_lock_keys

    @property
    def makes_copies(self) -> bool:
        """Whether a retry is a new entry, as the RFC has it; else the entry stays where it is."""
        return self.rfc is not None or self.settings.redeliver == "copy"

    @property
    def keeps_dead(self) -> bool:
        return self.settings.dead_letter is not Discard

    @property
    def can_claim_read(self) -> bool:
        return self.rfc is None and self.backend.capabilities.claim_read

    def open(self) -> None:
        """Make stream and group unless they are there; with the RFC's recovery, look for the dead before all else."""
        self._run(self.steps.create_group(self.settings.group_start))
        self.check_clock()
        if self.can_claim_read:
            self._park_again()
        if self.rfc is not None:
            started = self.watch_ms()
            scan = self.rfc.scan(self.backend)
            self.recorder.startup_recovery(scan.is_whole, scan.recovered, (self.watch_ms() - started) / 1000)
            if scan.is_whole and not scan.seen:
                logger.info("no unacknowledged entries of %r are old enough to be recovered", self.stream)

    def _run(self, call: Call[T]) -> T:
        reply = self.backend.run(call)
        if self.watch.answered(self.watch_ms()):
            logger.warning(
                "the server, or this process, stood still: no entry of %r is taken over for %d ms",
                self.stream,
                self.watch.respite_ms,
            )
        return reply

    def share_watch(self, other: Consumer) -> None:
        """Look at the server's clock together: a jump or a stall that one of two has seen, the other must know of.

        One of the two is a lease keeper's, so the server is asked at least once a heartbeat.
        """
        self.watch = other.watch
        self.watch.silence_ms = round(self.settings.heartbeat_s * 1000) + self.watch.tolerance_ms
        if self.rfc is not None:
            self.rfc.watch = other.watch

    def _park_again(self) -> None:
        """Mark long retries as fresh: while no worker was there to do it they have come to look forgotten."""
        for _ in range(MOST_PARKED // PROMOTE_AT_ONCE):
            self._promote(self.watch_ms())
            if not self._rank:
                return

    # Getting

    def fetch(self, credit: int, block_s: float) -> list[Delivery]:
        """Up to `credit` deliveries: what was left behind first, then what is new; waits up to `block_s` for one.

        It waits no longer than a quarter of the lease, which may begin at any moment of the wait.

        Those that must not be handled (delivered too often, expired, meant for another group) are settled here.
        """
        try:
            started = time.perf_counter()
            block_ms = min(round(block_s * 1000), max(1, self.validity_ms // 4))
            found = self._looked_up(self._reread(credit) or self._fetch(credit, block_ms))
        except ServerReplied as error:
            if error.code == "UNBLOCKED":  # Redis 7.0: the stream went away while we waited; the next read says more
                return []
            if error.code != "NOGROUP":
                self._is_sure_of_clock = False
                raise
            # somebody removed the group or the stream: begin again, as at the start
            logger.warning("group %r of stream %r is gone and is made anew", self.group, self.stream)
            self._run(self.steps.create_group(self.settings.group_start))
            return []
        except BackendError:
            self._is_sure_of_clock = False  # another server may answer next time
            self._expect_lost()
            raise
        if found:
            self._note_found(found, time.perf_counter() - started)
        return self._handled(found)

    def _looked_up(self, found: list[Delivery]) -> list[Delivery]:
        """Return the deliveries with their fences, and with the records of those that are not the first of their entry.

        One call more, and only where there are such. What somebody else has taken meanwhile is left out.
        """
        later = [] if self.rfc is not None else [delivery for delivery in found if not delivery.is_first]
        if not later:
            return found
        answers = self._run(self.steps.redelivered(self.name, later))
        known = dict(zip(map(id, later), answers, strict=True))
        firsts = [delivery for delivery in found if delivery.is_first]
        return [delivery.known_as(known[id(delivery)]) for delivery in later if known[id(delivery)].fence] + firsts

    def _expect_lost(self) -> None:
        """Note that a reply with deliveries may be lost: look for them at the next fetch, and once more.

        Once more because the server may come to the read that we gave up on only after it has answered us again.
        """
        now = self.watch_ms()
        self._reread_at_ms = [now, now + self.steps.lease_ms // 3]

    def _reread(self, credit: int) -> list[Delivery]:
        """Return deliveries whose reply was lost. They are handed out as delivered, without another attempt."""
        if not self._reread_at_ms or self.watch_ms() < self._reread_at_ms[0] or self._takes_now:
            return []
        takes = self._takes
        known = {(delivery.id, delivery.number) for delivery in list(self._handed.values())}
        found = self._run(self.steps.reread(self.name, credit, known))
        if takes != self._takes:
            return []  # somebody took entries meanwhile, which we cannot tell from lost ones: look again
        if len(found) < credit:
            del self._reread_at_ms[0]
        if found:
            logger.warning("%d entries of %r had been delivered by a reply that was lost", len(found), self.stream)
        return found

    def let_go(self, delivery: Delivery) -> None:
        """Nobody here works on it any more."""
        self._handed.pop(id(delivery), None)

    def _note_found(self, found: list[Delivery], seconds: float) -> None:
        lost = set[bytes]()
        if self.has_locks:
            started = time.perf_counter()
            try:
                lost = self.renew((delivery.id, delivery.number) for delivery in found)
            except BackendError as error:  # they are ours by the pending list, and the next heartbeat writes the locks
                logger.warning("the locks of %d entries of %r are not written yet: %s", len(found), self.stream, error)
            seconds = time.perf_counter() - started
        self.recorder.delivered(len(found))
        for delivery in found:
            self.recorder.lock_acquisition(delivery.id not in lost, seconds)
        taken = [delivery for delivery in found if delivery.number > 1 or delivery.idle_ms > 0]
        if taken:
            self.recorder.recovered(len(taken))
        if taken and self.rfc is None:  # in the RFC's profile its scan says so
            self.recorder.scan_requeued(len(taken))
            for delivery in taken:
                self.recorder.claim_attempt(delivery.id not in lost, seconds)

    def _fetch(self, credit: int, block_ms: int) -> list[Delivery]:
        if not self._is_sure_of_clock:
            self.check_clock()
        now = self.watch_ms()
        if self.rfc is not None:  # its scan is a part of `maintain`: it appends copies, and needs no room here
            return self._run(self.steps.read(self.name, credit, block_ms or None))
        if now >= self._next_scan_ms:
            found = self._scan(credit, now)
            if found:
                return found
        # never longer than until the next look: nothing else tells us of what the dead left
        block_ms = min(block_ms, max(1, self._next_scan_ms - self.watch_ms()))
        if self.can_claim_read:
            min_idle = None if self.watch.is_paused(now) else self.steps.due_idle_ms
            return self._run(self.steps.read(self.name, credit, block_ms or None, min_idle))
        if self._is_busy_elsewhere:
            block_ms = min(block_ms, PEEK_EVERY_MS)
        found = self._run(self.steps.read(self.name, credit, block_ms or None))
        if not found and self._is_busy_elsewhere and self.watch_ms() < self._next_scan_ms:
            self._peek()
        return found

    def _peek(self) -> None:
        """Look when the next retry is due: another worker may have made it since our last scan, and ended."""
        due_ms, now = self._run(self.steps.next_retry()), self.watch_ms()
        expected = self.watch.expected_ms(now)
        if due_ms is not None and expected is not None:
            self._next_scan_ms = min(self._next_scan_ms, now + max(0, due_ms - expected))

    def _scan(self, credit: int, now: int) -> list[Delivery]:
        """Take over what the dead left; where the read cannot CLAIM, also what is released or due."""
        self._next_scan_ms = now + (
            min(TAKE_OVER_EVERY_MS, self.steps.lease_ms // 4) if self.can_claim_read else SCAN_EVERY_MS
        )
        may_take_over = self.watch.may_take_over(now)
        if self.watch.is_paused(now) or (self.can_claim_read and not may_take_over):
            return []
        call = self.steps.recover(
            self.name,
            credit,
            min_idle_ms=self.steps.lease_ms if may_take_over else CLAIM_IDLE_MS,
            cursor=self._cursor,
            tombstones=self.keeps_dead,
            expected_ms=self.watch.expected_ms(now),
            tolerance_ms=self.watch.tolerance_ms,
        )
        found = self._run(replace(call, can_resend=False))  # sent again it would not name what it took before
        self._look_at_clock(found.server_ms)
        self._cursor = found.cursor
        self._is_busy_elsewhere = found.is_busy
        self._note_trimmed(found.trimmed)
        if len(found.deliveries) >= credit:
            self._next_scan_ms = 0  # there may be more: at once
        elif found.next_due_ms is not None:
            self._next_scan_ms = min(self._next_scan_ms, now + found.next_due_ms)
        elif self.can_claim_read and not found.is_busy and found.cursor == b"0-0":
            self._next_scan_ms = now + self.steps.lease_ms  # what is delivered from now on is not due before
        return found.deliveries

    def take_due(self, credit: int) -> list[Delivery]:
        """Return entries that are due now, without waiting: for a retry with a known time while `fetch` is blocked."""
        if self.rfc is not None:  # a copy that waits: into the stream with it, where the reader finds it
            self._promote(self.watch_ms())
            return []
        self._takes += 1
        self._takes_now += 1
        try:
            started = time.perf_counter()
            now = self.watch_ms()
            take = self._claim_due(credit, now) if self.can_claim_read else self._scan(credit, now)
            found = self._looked_up(take)
            if found:
                self._note_found(found, time.perf_counter() - started)
            return self._handled(found)
        except Unavailable:
            self._expect_lost()
            raise
        finally:
            self._takes_now -= 1

    def _claim_due(self, credit: int, now: int) -> list[Delivery]:
        """Read with CLAIM and without blocking: Redis checks blocked readers only ten times a second."""
        if self.watch.is_paused(now) or not self._is_sure_of_clock:
            return []
        return self._run(self.steps.read(self.name, credit, None, self.steps.due_idle_ms))

    def attempt(self, delivery: Delivery) -> int:
        """Which try this is, from 1: failures count; releases and deaths of the process do not."""
        return self.retry_count(delivery) + 1

    def retry_count(self, delivery: Delivery) -> int:
        """Retries before this delivery, in place, and as copies where these are made.

        The RFC counts deaths of consumers as retries, and so does its recovery.
        """
        text = delivery.by_name.get(self.steps.prefix + b"retry_count", b"0") if self.makes_copies else b"0"
        in_place = delivery.failures if self.rfc is None else max(0, delivery.number - 1)
        return in_place + (int(text) if text.isdigit() else 0)

    def original_id(self, delivery: Delivery) -> bytes:
        """Return the first id of the entry, which copies and redriven entries remember."""
        return delivery.by_name.get(self.steps.prefix + b"original_id", delivery.id)

    def payload(self, delivery: Delivery) -> Mapping[bytes, bytes]:
        """Return the producer's fields, without those that Millstream adds."""
        prefix, headers = self.steps.prefix, self.steps.prefix + b"h."
        return {
            name: value
            for name, value in delivery.fields
            if not name.startswith(prefix) or not (name[len(prefix) :] in OURS or name.startswith(headers))
        }

    def _handled(self, found: list[Delivery]) -> list[Delivery]:
        """Those that are for handlers; the others are settled."""
        verdicts = [(delivery, self._verdict(delivery)) for delivery in found]
        others = [(delivery, verdict) for delivery, verdict in verdicts if verdict is not None]
        try:
            if others:
                self.settle(others)
        except BackendError as error:  # they come again; the others are ours and must not be forgotten with them
            logger.warning("entries of %r that are not for handlers could not be settled now: %s", self.stream, error)
            self._expect_lost()
        handed = [delivery for delivery, verdict in verdicts if verdict is None]
        for delivery in handed:
            self._handed[id(delivery)] = delivery
        return handed

    def _verdict(self, delivery: Delivery) -> Settlement | None:
        now_ms = self.watch.expected_ms(self.watch_ms())
        end = unfit(delivery.by_name, self.steps.prefix, self.group, now_ms)
        if end is not None:
            return end
        if delivery.crashes >= self.settings.max_crashes:
            return DeadLetter(Reason.CRASHED, f"its process died {delivery.crashes} times while it was handled alone")
        # A failure at the limit is dead-lettered when it is settled, under the limit of whoever settled it.
        reason = Reason.RETRIES if self.rfc is None else Reason.CRASHED
        return spent(self._limit, self.attempt(delivery), reason)

    # Keeping

    def renew(self, held: Iterable[tuple[bytes, int]]) -> set[bytes]:
        """Start leases anew; the ids that are ours no longer."""
        lock_ms = round(self.settings.lease * 1000) if self.has_locks else 0
        items, lost = list(held), set[bytes]()
        for first in range(0, len(items), RENEW_AT_ONCE):
            page = items[first : first + RENEW_AT_ONCE]
            try:
                renewed = self._run(self.steps.renew(self.name, page, lock_ms))
            except ServerReplied as error:
                if error.code != "NOGROUP":
                    raise
                lost.update(entry_id for entry_id, _ in page)  # the pending list went with the group
                continue
            self._look_at_clock(renewed.server_ms)
            lost.update(renewed.lost)
        self.recorder.lock_extension(True, len(items) - len(lost))
        if lost:
            self.recorder.lock_extension(False, len(lost))
        return lost

    def begin_alone(self, delivery: Delivery) -> bool:
        """Write down that a suspect's handler begins, alone in its process; False if the entry was lost before."""
        return self._run(self.steps.begin_alone(self.name, delivery.id, delivery.number))

    # Ending

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]], *, is_repeat: bool = False) -> list[Settled]:
        """End deliveries; what became of each. Errors of single ones are in the answer, the others are settled.

        `is_repeat`: an earlier call with some of these ended without an answer, and may have settled them.
        """
        codes: dict[int, int | str] = {}
        for page in pages_of(settlements):
            items = [self._item(*settlements[index]) for index in page]
            codes |= zip(page, self._codes(items, is_repeat), strict=True)
        results = [Settled(*settlements[index], codes[index]) for index in range(len(settlements))]
        for result in results:
            self._record(result)
            if result.error is None:
                self.let_go(result.delivery)
            if type(result.settlement) is Ack:
                continue
            if isinstance(result.settlement, Release) and not result.settlement.has_begun and not self.can_claim_read:
                self._next_scan_ms = 0  # the suspect that is next is among them
            if isinstance(result.settlement, Later) and self.rfc is None:
                self._next_scan_ms = min(self._next_scan_ms, self.watch_ms() + round(result.settlement.delay_s * 1000))
        return results

    def _codes(self, items: list[Settle], is_repeat: bool) -> list[int | str]:
        """Return the result codes of one page."""
        try:
            call = self.steps.settle(self.name, items, has_locks=self.has_locks, can_resend=False)
            return self._send(call, is_repeat)
        except ServerReplied as error:
            if error.code == "NOGROUP":  # the pending list went with the group: these are nobody's
                return [-1] * len(items)
            if error.is_retryable or not items[0].publish:
                raise
            return [str(error)] * len(items)  # as where a user may not touch those streams: these entries' own error

    def _send(self, call: Call[list[int | str]], is_repeat: bool) -> list[int | str]:
        """Return the result codes of a settlement, which the backend does not repeat by itself.

        "No longer pending" means two things: if the call was sent again it may be its own doing; if it was sent once,
        somebody else has taken the entry over and ended it, and we are late.
        """
        for attempt in range(RESENDS):
            try:
                codes = self._run(call)
                return codes if is_repeat else [-1 if code == 0 else code for code in codes]
            except Unavailable:
                if attempt == RESENDS - 1:
                    raise
            is_repeat = True
            self.sleep(pause_s(attempt))
        raise AssertionError("unreachable")

    def _item(self, delivery: Delivery, settlement: Settlement) -> Settle:
        match settlement:
            case Ack(publish=publish):
                return Settle(delivery.id, delivery.number, "publish" if publish else "ack", publish=publish)
            case Release(has_begun=has_begun):
                if self.rfc is not None:  # its readers take new entries only: what is nobody's would wait for a scan
                    return Settle(delivery.id, delivery.number, "copy", (self.retry_count(delivery),))
                # a suspect that nobody began on is still one
                verb = "pass" if delivery.is_suspect and not has_begun else "release"
                return Settle(delivery.id, delivery.number, verb)
            case Later(delay_s=delay_s):
                if self.makes_copies:
                    again, delay_ms = self.retry_count(delivery) + 1, round(delay_s * 1000)
                    if delay_ms > 0:
                        return Settle(delivery.id, delivery.number, "copy_later", (again, delay_ms))
                    return Settle(delivery.id, delivery.number, "copy", (again,))
                return Settle(delivery.id, delivery.number, "retry", (round(delay_s * 1000),))
            case DeadLetter():
                if not self.keeps_dead:
                    return Settle(delivery.id, delivery.number, "discard")
                return Settle(delivery.id, delivery.number, "reject", self._epitaph(delivery, settlement))

    def _epitaph(self, delivery: Delivery, dead: DeadLetter) -> tuple[bytes | str | int, ...]:
        # else the step takes the server's count
        attempts = ("attempts", self.attempt(delivery)) if self.makes_copies else ()
        return (
            *attempts,
            "stream",
            self.stream,
            "group",
            self.group,
            "consumer",
            self.name,
            "retry_count",
            max(0, self.attempt(delivery) - 1),
            "first_at",
            self.original_id(delivery).split(b"-", 1)[0],
            "reason",
            str(dead.reason),
            "error",
            dead.error,
            "traceback",
            dead.traceback,
        )

    def _record(self, result: Settled) -> None:
        if isinstance(result.settlement, Later | DeadLetter):
            delivery, most = result.delivery, self.settings.max_retries + 1
            failed = Failed(self.stream, delivery.id, self.attempt(delivery), most, self.keeps_dead)
            log_failure(failed, result.settlement, result.code in (0, 1))  # 0: an earlier try of ours may have done it
        if result.error is not None:
            logger.error("%s of %r stays pending: %s", result.delivery.id.decode(), self.stream, result.error)
        elif result.is_lost:
            self.recorder.lease_lost()
            self.recorder.duplicate_ack()
            self.recorder.lock_release(False)
            logger.warning("the lease on %s of %r was lost", result.delivery.id.decode(), self.stream)
        elif result.code == 1:
            self.recorder.settled(type(result.settlement).__name__.lower())
            self.recorder.lock_release(True)
            if isinstance(result.settlement, Ack):
                for publication in result.settlement.publish:
                    publication.recorder.published()
            if isinstance(result.settlement, DeadLetter):
                if self.keeps_dead:
                    self.recorder.dead(str(result.settlement.reason))
                    if self.makes_copies or result.settlement.reason in (Reason.RETRIES, Reason.CRASHED):
                        self.recorder.dlq()
                else:
                    self.recorder.discarded(str(result.settlement.reason))

    # Keeping house

    def maintain(self) -> float:
        """Do what is due: delayed entries, parked retries, ghosts, silent consumers. Seconds until it is due again."""
        now = self.watch_ms()
        if now >= self._next_promote_ms:
            self.doing = "promoting what is due"
            self._promote(now)
        if self.rfc is None:
            if now >= self._next_sweep_ms:
                self.doing = "looking for trimmed entries"
                self._sweep(now)
        elif now >= self._next_scan_ms and self.watch.may_take_over(now):
            self.doing = "scanning for entries of the dead"
            if not self.rfc.walk(self.backend):
                self._next_scan_ms = now + self.rfc.next_interval_ms()
        if now >= self._next_reap_ms:
            self.doing = "removing silent consumers"
            self._next_reap_ms = now + round(self.settings.reap_idle * 500)
            self._run(self.steps.reap(round(self.settings.reap_idle * 1000)))
        if now >= self._next_depth_ms:
            self.doing = "counting what is pending"
            self._next_depth_ms = now + DEPTH_EVERY_MS
            self.note_depths()
        next_ms = min(self._next_promote_ms, self._next_sweep_ms if self.rfc is None else self._next_scan_ms)
        if self.rfc is not None and not self.watch.may_take_over(now):
            next_ms = self._next_promote_ms
        return max(0.0, (next_ms - self.watch_ms()) / 1000)

    def leave(self) -> None:
        """Remove this consumer from its group if it has nothing, and bring the gauges up to date; the last call."""
        try:
            self._run(replace(self.steps.reap(0, self.name), can_resend=False))
            self.note_depths()
        except BackendError as error:  # it is removed later, by others
            logger.debug("the consumer %r could not be removed: %s", self.name, error)

    def note_depths(self) -> None:
        """Bring the gauges up to date."""
        account = self._run(replace(self.steps.audit(is_exact=False), can_resend=False))
        self.recorder.pel_depth(account.pending)
        self.recorder.delayed_depth(account.delayed)
        self.recorder.lag(account.undelivered)

    def await_sooner(self, wait_s: float) -> bool:
        """Wait for news of a delayed entry that is due before `maintain` looks again; for a thread of its own."""
        return self.backend.run(self.steps.await_sooner(round(wait_s * 1000)))

    def promote_now(self) -> None:
        """Have the next `maintain` look for what is due, whenever it was going to."""
        self._news_of_sooner += 1
        self._next_promote_ms = 0

    def _promote(self, now: int) -> None:
        news = self._news_of_sooner
        done = self._run(self.steps.promote(rank=self._rank, with_retries=self.rfc is None))
        self._look_at_clock(done.server_ms)
        self._rank = done.next_rank
        wait_ms = min(PROMOTE_EVERY_MS, self.steps.lease_ms // 3)
        if self._rank:
            wait_ms = 0
        elif done.next_due_ms is not None:
            wait_ms = min(wait_ms, done.next_due_ms)
        self._next_promote_ms = now + wait_ms
        if news != self._news_of_sooner:
            self._next_promote_ms = 0  # the news may be younger than the reply

    def _sweep(self, now: int) -> None:
        """Clear away pending entries whose stream entry is gone, a page at a time."""
        call = self.steps.recover(
            self.name, 0, min_idle_ms=self.steps.lease_ms, cursor=self._ghost_cursor, tombstones=self.keeps_dead
        )
        started = time.perf_counter()
        found = self._run(call)
        self._swept_s += time.perf_counter() - started
        self._ghost_cursor = found.cursor
        self._note_trimmed(found.trimmed)
        is_through = found.cursor == b"0-0"
        if is_through:
            self.recorder.scan_duration(self._swept_s)
            self._swept_s = 0.0
        self._next_sweep_ms = now + (round(self.settings.reconcile_every * 1000) if is_through else 100)

    def _note_trimmed(self, trimmed: Sequence[bytes]) -> None:
        if trimmed:
            self.recorder.trimmed(len(trimmed))
            logger.error(
                "%d pending entries of %r were trimmed away, the first %s",
                len(trimmed),
                self.stream,
                trimmed[0].decode(),
            )

    def check_clock(self) -> None:
        """Look at the server's clock; recovery waits if it has jumped."""
        self._look_at_clock(self._run(self.steps.server_time()))
        self._is_sure_of_clock = True

    def _look_at_clock(self, server_ms: int) -> None:
        if self.watch.look(server_ms, self.watch_ms()):
            logger.warning("the server's clock has jumped: nothing is taken over for %d ms", self.watch.pause_ms)


def pages_of(settlements: Sequence[tuple[Delivery, Settlement]]) -> Iterator[list[int]]:
    """Which of them go into one call, by their places. Those that publish are apart from the others: what keeps the
    server from touching another stream must not keep it from settling this one."""
    publishing = {
        index: len(each.publish) for index, (_, each) in enumerate(settlements) if type(each) is Ack and each.publish
    }
    plain = [index for index in range(len(settlements)) if index not in publishing]
    for first in range(0, len(plain), SETTLE_AT_ONCE):
        yield plain[first : first + SETTLE_AT_ONCE]
    page, weight = list[int](), 0
    for index, count in publishing.items():
        if page and weight + count > SETTLE_AT_ONCE:
            yield page
            page, weight = [], 0
        page.append(index)
        weight += count
    if page:
        yield page


def keys_of(stream: bytes, settings: Settings) -> Keys:
    """Return the keys of a stream under these settings."""
    named = "" if settings.dead_letter is Discard else str(settings.dead_letter)
    return Keys(stream, named.encode())
