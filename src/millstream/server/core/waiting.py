"""Commands that wait: when they begin to, when they run again, and how their wait ends.

    command ──▶ Wait ──▶ begin ──▶ queues of its keys (`blocking.Waiters`)
    a change ──▶ note_ready ──▶ serve_ready ──▶ the command runs again ──▶ its reply, or it goes on waiting
    time ──▶ tick ──▶ deadlines pass, pending entries become claimable

Everything but `give_up` is called under the hub's lock.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

from millstream.engine.commands.streams.group import ask_again
from millstream.engine.outcome import NIL_ARRAY, Reply, Wait
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Command
from millstream.errors import CommandError
from millstream.server.core.blocking import Alarms, Place, Waiter, Waiters, WaitOwner
from millstream.server.core.interfaces import Server
from millstream.server.core.session import Session

_TIMEOUT_REPLIES: Final[dict[str, Reply]] = {"wait": 0, "waitaof": [0, 0]}


class BlockingHub(Server, Protocol):
    """The hub as waiting commands see it."""

    lock: threading.RLock

    def aim(self, due_ms: int) -> None:
        """Let the timer call `tick` at this time at the latest."""

    def count_ended(self, waiter: Waiter, reply: Reply) -> None:
        """Count the command of a wait that ended without running again."""

    def log_now(self) -> None:
        """Write the log lines of the last command."""


class Blocking:
    """The waiting commands of a hub."""

    __slots__ = ("_alarms", "_answers", "_house", "_hub", "_is_serving", "_ready", "waiters")

    def __init__(self, hub: BlockingHub, house: Session) -> None:
        """Use the session `house` for commands of callers without a connection."""
        self.waiters = Waiters()
        self._hub = hub
        self._house = house
        self._alarms = Alarms()
        self._ready: dict[Place, None] = {}  # keys whose waiters are to run again
        self._is_serving = False
        self._answers: list[tuple[Waiter, Reply]] = []  # for callers without a connection

    # Beginning

    def begin(self, owner: WaitOwner, row: Command, wait: Wait, db: int, protocol: int) -> Waiter:
        """Let a command wait that found nothing."""
        deadline_ms = self._hub.now_ms() + wait.timeout_ms if wait.timeout_ms else None
        timeout_reply = _TIMEOUT_REPLIES.get(row.name, NIL_ARRAY)
        waiter = Waiter(owner, row, wait.argv, db, wait.keys, deadline_ms, wait.group, timeout_reply, protocol)
        self._enqueue(waiter, wait)
        self._alarms.at_deadline(waiter)
        if (due_ms := self._alarms.next_ms()) is not None:
            self._hub.aim(due_ms)
        self._hub.observe()
        return waiter

    def _enqueue(self, waiter: Waiter, wait: Wait) -> None:
        self.waiters.add(waiter)
        if wait.wake_at_ms is not None:
            for place in waiter.places:
                self._alarms.at_claim(place, wait.wake_at_ms)
            self._hub.aim(wait.wake_at_ms + 1)

    # Running again

    def note_ready(self, places: list[Place]) -> bool:
        """Remember keys whose waiters may find something now. Returns whether there are such waiters."""
        found = False
        for place in places:
            if place in self.waiters:
                self._ready[place] = None
                found = True
        return found

    @property
    def is_due(self) -> bool:
        """Return whether waiters are to run again."""
        return bool(self._ready)

    def serve_ready(self) -> None:
        """Run waiting commands again, in rounds: what one of them does may make another key ready."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._ready:
                places, self._ready = self._ready, {}
                for place in places:
                    self._serve(place)
        finally:
            self._is_serving = False

    def _serve(self, place: Place) -> None:
        """Run the waiters of a key, in the order in which they began to wait, each at most once.

        Many workers ask the same question, and one of them gets the answer: those after it that would find nothing
        are not run.
        """
        unanswered: dict[tuple[bytes, ...], int] = {}  # questions that found nothing, and when
        for waiter in self.waiters.at(place):
            now_ms = self._hub.now_ms()
            value = self._value_at(place, now_ms)
            if not waiter.is_waiting or not waiter.wants(value):
                continue
            question = None if self._hub.gates else waiter.question
            if question is None:
                self._run_again(waiter, now_ms)
            elif unanswered.get(question) == now_ms and ask_again(value, waiter.argv, now_ms):
                self.waiters.move_to_end(waiter)
            else:
                self._run_again(waiter, now_ms)
                if waiter.is_waiting:
                    unanswered[question] = now_ms

    def _run_again(self, waiter: Waiter, now_ms: int) -> None:
        self.waiters.remove(waiter)
        hub = self._hub
        session = waiter.owner if isinstance(waiter.owner, Session) else self._house
        session.db, session.protocol = waiter.db, waiter.protocol
        refusal = session.refusal(waiter.row, waiter.argv) if hub.gates else None
        if refusal is not None:  # the command was allowed when it began to wait
            hub.stats.of(waiter.row.name).rejected += 1
            hub.stats.count_error(refusal)
            self._conclude(waiter, refusal)
            return
        session.is_running = True
        reply = hub.perform(session, waiter.row, waiter.argv, now_ms, True)
        session.is_running = False
        hub.log_now()
        if isinstance(reply, Wait):
            waiter.argv = reply.argv
            self._enqueue(waiter, reply)  # after the others, with its first deadline
            session.send_deferred()
        else:
            self._conclude(waiter, reply)

    def _value_at(self, place: Place, now_ms: int) -> object | None:
        db = self._hub.keyspace.databases[place[0]]
        if place[1] in db.expires and db.expires[place[1]] < now_ms:
            return None
        return db.values.get(place[1])

    # Time

    def next_ms(self) -> int | None:
        """Return when `tick` will have something to do, or None."""
        return self._alarms.next_ms()

    def tick(self, now_ms: int) -> None:
        """End the waits whose deadline has passed, and note keys with entries that became claimable."""
        while (waiter := self._alarms.pop_expired(now_ms)) is not None:
            self.end(waiter, waiter.timeout_reply)
        while (place := self._alarms.pop_claimable(now_ms)) is not None:
            if isinstance(self._value_at(place, now_ms), Stream):
                self.note_ready([place])

    # Ending

    def end(self, waiter: Waiter, reply: Reply) -> None:
        """End a wait with this reply; it counts as a call of the command."""
        self._hub.count_ended(waiter, reply)
        self._conclude(waiter, reply)

    def end_all(self) -> None:
        """End all waits as if their time had run out."""
        for waiter in self.waiters.everyone():
            self.end(waiter, waiter.timeout_reply)

    def give_up(self, waiter: Waiter) -> None:
        """End a wait without a reply, because its owner has gone. The command has taken nothing."""
        with self._hub.lock:
            self.waiters.remove(waiter)
            waiter.is_over = True
            self._hub.observe()

    def _conclude(self, waiter: Waiter, reply: Reply) -> None:
        self.give_up(waiter)
        if isinstance(waiter.owner, Session):
            waiter.owner.resume(reply)
        else:
            self._answers.append((waiter, reply))

    def answer(self, refusal: CommandError | None) -> None:
        """Answer callers without a connection; with the error instead, if what the reply promises is not certain."""
        answers, self._answers = self._answers, []
        for waiter, reply in answers:
            is_promise = refusal is not None and "write" in waiter.row.flags
            waiter.owner.resume(refusal if is_promise else reply)
