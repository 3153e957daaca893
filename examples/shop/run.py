"""The demo, from the first order to the report. Stopped with Ctrl-C, or killed, it goes on when it is started again.

broker ◀── producer, worker, doomed worker, Spark (processes, all of them)
all sent and settled ──▶ complete the product table, redrive ──▶ all settled ──▶ gather ──▶ does it add up?
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.shop.broker import started
from examples.shop.events import truth
from examples.shop.figures import Sample, Summary
from examples.shop.leash import Child
from examples.shop.orders import GROUP, STREAM, write_products
from examples.shop.pipeline import gather, make_pipeline, mend, windows
from examples.shop.report import report
from examples.shop.state import opened
from examples.shop.sums import summary_of, write_json
from examples.shop.watch import EVERY_S, Watch
from millstream import Stream
from millstream.errors import MillstreamError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
BATCHES = 4  # about so many batches of new orders
PATIENCE_S = 1800.0  # without the end in sight
DOOMED, STEADY = "doomed", "steady"
ROUNDS = 5  # of redriving: on a slow machine a last try may be lost to its lease, again and again
# For a run of a minute: Java's second compiler would cost more than it saves (half of all the time that Spark takes).
# A query that is stopped tells its offsets in an exception, and Spark's patterns need a deep stack for many ids.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # kept for seconds: not worth a look at every value
}


@dataclass
class Demo:
    """One run, or the rest of one."""

    directory: Path
    size: int = 200_000
    seed: int = 7
    is_quiet: bool = False
    say: Callable[[str], object] = print
    children: dict[str, Child] = field(default_factory=dict)
    asked: threading.Event = field(default_factory=threading.Event)  # to stop

    def run(self) -> Summary:
        """Run to the end; the summary."""
        with self._interrupts():
            return self._opened()

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Note Ctrl-C and heed it between two calls: raised within one to Spark, it would leave that in disorder."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)
        self._listen()
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, lambda *_: self.asked.set())

    def _heed(self) -> None:
        if self.asked.is_set():
            raise KeyboardInterrupt

    def _opened(self) -> Summary:
        self.state, is_going_on = opened(self.directory, self.size, self.seed)
        if is_going_on:
            self.say(f"going on with the run in {self.directory}")
        mend(self.directory)
        if not self.state.is_fixed:
            write_products(self.directory / "products.jsonl", complete=False)
        with ExitStack() as stack:
            self.broker, port = started(self.directory)
            stack.callback(self.broker.end)
            self.url = f"redis://127.0.0.1:{port}"
            self.watch = Watch(self.url, self.directory, self.size, self.state.seconds, is_quiet=self.is_quiet)
            stack.callback(self.watch.close)
            stack.callback(self._remember)
            stack.callback(self._end_children)
            return self._run(stack)

    def _run(self, stack: ExitStack) -> Summary:
        with Stream[Any](STREAM, self.url, group=GROUP) as stream:
            stream.backend.run(stream._definition.steps(stream.backend.capabilities).create_group("0"))
        self._start("producer", str(self.size), str(self.seed))
        spark = self._session(stack)
        self.watch.phase = "working"
        running = make_pipeline(self.directory, self.url, max(1000, self.size // BATCHES)).start(spark)
        stack.callback(_stop, running)
        self._start("worker", STEADY, name=STEADY)
        if not self.state.is_killed:
            self._start("worker", DOOMED, name=DOOMED)
        self._work_until_settled(running)
        self._fix()
        for _ in range(ROUNDS):
            if not self._redrive():
                break
            self._work_until_settled(running)
        running.stop()
        self._end_children()
        return self._finish(spark)

    def _start(self, module: str, *arguments: str, name: str | None = None) -> None:
        log_file = self.directory / f"{name or module}.log"
        self.children[name or module] = Child(
            f"examples.shop.{module}", [self.url, str(self.directory), *arguments], log_file
        )

    def _session(self, stack: ExitStack) -> SparkSession:
        from millstream.spark import session

        with self.watch.looking():
            spark = session("millstream demo", config=SETTINGS, log_file=self.directory / "spark.log")
        self._listen()  # again: a Spark context puts a handler of its own in our place, which raises
        stack.callback(spark.stop)
        self._heed()
        return spark

    # Working

    def _work_until_settled(self, running: Any) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            self._check(running)
            try:
                sample = self.watch.look()
            except Unavailable as error:  # a disk that stands still holds up the broker: look again
                log.warning("the broker does not answer: %s", error)
                continue
            self._maybe_kill(sample)
            if self._is_sent() and sample.lag == 0 and sample.pending == 0 and self.state.is_killed:
                return
            running.wait(EVERY_S)
        raise MillstreamError(f"not done after {PATIENCE_S:.0f} s: see {self.directory}")

    def _is_sent(self) -> bool:
        return self.children["producer"].code == 0

    def _check(self, running: Any) -> None:
        self._heed()
        if not running.is_active:
            running.wait(0)  # raises what ended it
            raise MillstreamError("the query has ended by itself")
        for name, child in [("broker", self.broker), *self.children.items()]:
            if child.code not in (None, 0):
                raise MillstreamError(f"{name} has ended with code {child.code}: see {self.directory / name}.log")

    def _maybe_kill(self, sample: Sample) -> None:
        """Kill a worker that has orders in hand: held still first, so that it has them for sure."""
        if self.state.is_killed or sample.done < self.size // 100:
            return
        child = self.children[DOOMED]
        child.pause()
        held = self.watch.held_by(DOOMED)
        if not held and sample.lag + sample.pending > 0:
            child.go_on()
            return
        child.kill()
        del self.children[DOOMED]
        self.state.is_killed, self.state.redelivered = True, held
        self._remember()
        self.say(f"a worker was killed with {held} orders in hand")

    def _fix(self) -> None:
        """Complete the product table."""
        self.watch.phase = "redriving"
        write_products(self.directory / "products.jsonl", complete=True)
        self.state.is_fixed = True
        self._remember()

    def _redrive(self) -> int:
        """Send back what failed for the lack of products, and what nobody failed at; how many that were.

        Of the orders in the hands of a killed worker one may have been there for its last try: that is a crash.
        """
        with Stream[Any](STREAM, self.url, group=GROUP) as stream:
            unknown = stream.dead.redrive(reason="retries", error="is not in the product table").done
            crashed = stream.dead.redrive(reason="crashed").done
        if unknown:
            self.say(f"the product table is complete: {unknown} dead letters were sent back")
        if crashed:
            self.say(f"{crashed} dead letters whose last try ended without an answer were sent back")
        return unknown + crashed

    # Ending

    def _end_children(self) -> None:
        for name in list(self.children):
            self.children.pop(name).end()

    def _remember(self) -> None:
        self.state.seconds = self.watch.seconds
        self.state.write(self.directory)

    def _finish(self, spark: SparkSession) -> Summary:
        self.watch.phase = "gathering"
        self._heed()
        with self.watch.looking(), ThreadPoolExecutor(1) as beside:
            coming = beside.submit(truth, self.state.size, self.state.seed)  # while Spark works, this process waits
            twice = gather(spark, self.directory, self.url)
            self._heed()
            windows(spark, self.directory)
            made = coming.result()
        summary, deliveries = summary_of(self.url, self.directory, self.state, made, twice, self.watch.seconds)
        write_json(summary, self.directory / "summary.json")
        (self.directory / "report.html").write_text(report(summary, self.watch.samples, deliveries))
        self.state.is_finished = True
        return summary


def _stop(running: Any) -> None:
    if running.is_active:
        running.stop()


def told(summary: Summary, directory: Path) -> list[str]:
    """The summary in lines."""
    reasons = ", ".join(f"{count:,} {why}" for why, count in summary.dead_reasons.items())
    lines = [
        f"sent        {summary.sent:>9,}",
        f"= done      {summary.done:>9,}   of these in Parquet: {summary.accepted:,} ({summary.by_spark:,} by Spark, "
        f"{summary.by_workers:,} by workers)",
        f"+ dead      {summary.dead:>9,}   {reasons}",
        f"+ pending   {summary.pending:>9,}",
        f"+ duplicates{summary.refused:>9,}   sent twice with the same token and refused",
        f"{summary.retried:,} were accepted after a retry; dead letters redriven: {summary.redriven:,}",
        f"{summary.redelivered:,} were in the hands of the killed worker and came again when its lease ran out",
        f"{summary.twice:,} were accepted twice (a lease ran out before they were settled) and are in Parquet once",
        f"revenue {summary.revenue / 100:,.2f}, hour by hour as the generator says"
        if summary.is_revenue_right
        else "revenue is not what the generator says",
    ]
    problems = summary.problems
    command = "millstream" if shutil.which("millstream") else str(Path(sys.executable).parent / "millstream")
    lines += [f"IT DOES NOT ADD UP: {text}" for text in problems] or [f"it adds up, after {summary.seconds:.0f} s"]
    return [
        *lines,
        f"report: {(directory / 'report.html').absolute()}",
        "to go on:",
        f"  {command} serve --dir {directory / 'data'} --port 6380",
        f"  {command} dead ls orders --group {GROUP} --url redis://127.0.0.1:6380",
        f"  {command} pipeline init my-pipeline",
    ]
