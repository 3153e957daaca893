"""`millstream worker app:orders`: run the handlers of a program's streams until SIGTERM."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from millstream.aio import Stream as AsyncStream
from millstream.cli.exits import Exit, Failure
from millstream.cli.loading import load_object
from millstream.errors import BackendError, ConfigError
from millstream.printable import LineFormatter, safe_logger
from millstream.worker.runtime.stop_signals import StopSignals
from millstream.worker.stream import Stream

logger = safe_logger(logging.getLogger(__name__))
LISTEN_EVERY_S = 1.0  # no wait of the main thread is longer, so that signals are heard
END_WITHIN_S = 30.0  # after shutdown_grace: longer than a worker takes that cannot reach its server
END_AT_ONCE_WITHIN_S = 20.0  # after a second signal
STOP_AGAIN_S: Final = 0.5


def worker(
    targets: Annotated[list[str], typer.Argument(metavar="MODULE:NAME...", help="Streams of a Python program.")],
    url: Annotated[str | None, typer.Option("--url", help="URL of the server, instead of the program's own.")] = None,
    metrics: Annotated[int | None, typer.Option("--metrics", help="Port for Prometheus.", min=1, max=65535)] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address of that port; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no entry is undelivered or pending.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log at level DEBUG.")] = False,
) -> None:
    """Run the handlers of streams. MODULE:NAME names a Stream in a module that Python finds from this directory.

    \b
      millstream worker app:orders
      millstream worker app:orders app:payments --url redis://localhost:6379 --metrics 9100

    On SIGTERM or Ctrl-C reading stops, handlers get the stream's shutdown_grace to finish, and the rest is released,
    uncounted. --url, else MILLSTREAM_URL, replaces the URL that the program gave its streams.

    Exit codes: 0 stopped on request, 1 a worker ended with an error or did not end, 2 wrong use.
    """
    set_up_log(logging.DEBUG if verbose else logging.INFO)
    streams = load_streams(targets)
    address = url or os.environ.get("MILLSTREAM_URL")
    for stream in streams:
        if address:
            stream._definition.url = address
    if metrics is not None:
        _serve_metrics(streams, metrics_host, metrics)
    failures = _run_all(streams, until_idle)
    if failures:
        raise Failure(f"{failures[0][0].name}: {failures[0][1]}")


def set_up_log(level: int) -> None:
    """Log to standard error, one line a record, with data escaped; an application's own set-up wins."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def load_stream(target: str) -> Stream[Any] | AsyncStream[Any]:
    """Return the stream that MODULE:NAME names; an error says what is wrong with the target."""
    found: Stream[Any] | AsyncStream[Any] = load_object(target, (Stream, AsyncStream), "Stream")
    if found._definition.registered is None:
        name = target.partition(":")[2]
        raise ConfigError(f"{target!r}: the stream has no handler; put @{name}.handler() on a function")
    return found


def load_streams(targets: Sequence[str]) -> list[Stream[Any] | AsyncStream[Any]]:
    """Return the streams that MODULE:NAME names; refuse one that is named twice."""
    streams: dict[int, Stream[Any] | AsyncStream[Any]] = {}
    for target in targets:
        stream = load_stream(target)
        if id(stream) in streams:
            raise ConfigError(
                f"{target!r} is given twice: for more at a time use @{target.partition(':')[2]}.handler(concurrency=…)"
            )
        streams[id(stream)] = stream
    return list(streams.values())


def _run_all(streams: Sequence[Stream[Any] | AsyncStream[Any]], until_idle: bool) -> list[tuple[Any, BaseException]]:
    """Run each stream in a thread and wait here: only the main thread receives signals."""
    failures: list[tuple[Any, BaseException]] = []
    is_over = threading.Event()
    running = list(streams)

    def run(stream: Stream[Any] | AsyncStream[Any]) -> None:
        try:
            if isinstance(stream, AsyncStream):
                asyncio.run(stream.run(signals=False, until_idle=until_idle))
            else:
                stream.run(signals=False, until_idle=until_idle)
        except BaseException as error:  # CancelledError and SystemExit too: an end that nobody asked for is a failure
            is_expected = isinstance(error, BackendError | ConfigError)  # the text says all; a traceback adds nothing
            logger.error("the worker of %r has ended: %s", stream.name, error, exc_info=not is_expected)
            failures.append((stream, error))
            is_over.set()
        finally:
            running.remove(stream)
            if not running:
                is_over.set()

    threads = [threading.Thread(target=run, args=(stream,), name=f"worker-{stream.name}") for stream in streams]

    end = LastResort()
    grace_s = max(stream._definition.settings.shutdown_grace for stream in streams)

    def stop(at_once: bool) -> None:
        is_over.set()
        end.within(END_AT_ONCE_WITHIN_S if at_once else grace_s + END_WITHIN_S)
        for stream in streams:
            stream.stop(at_once=at_once)

    with StopSignals(stop, True):
        for thread in threads:
            thread.start()
        while not is_over.wait(LISTEN_EVERY_S):
            pass  # a signal that comes just before a wait does not end it, and is handled after it
        for thread in threads:
            while thread.is_alive():
                stop(False)  # again and again: a stream that is only starting has nothing to stop yet
                thread.join(STOP_AGAIN_S)
    return failures


class LastResort:
    """Ends the process at its deadline, also if a handler blocks its loop, or Python waits for a pool of threads."""

    def __init__(self) -> None:
        self._end_at = float("inf")
        self._is_started = False

    def within(self, seconds: float) -> None:
        """End it after this time, or when an earlier call said."""
        self._end_at = min(self._end_at, time.monotonic() + seconds)
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._end, name="millstream-end", daemon=True).start()

    def _end(self) -> None:
        while time.monotonic() < self._end_at:
            time.sleep(0.2)
        logger.critical("the process is ended with threads that did not end")
        faulthandler.dump_traceback(2)  # where they are; to the descriptor, as no lock must be waited for
        os._exit(Exit.FAILED)


def _serve_metrics(streams: Sequence[Stream[Any] | AsyncStream[Any]], host: str, port: int) -> None:
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise ConfigError('--metrics: pip install "millstream[metrics]"') from error

    from millstream.worker.metrics import PrometheusRecorder

    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry)
    for stream in streams:
        stream._definition.recorder = recorder
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics: {host}:{port} cannot be used: {error.strerror or error}") from error
