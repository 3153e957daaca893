"""`millstream worker app:orders`: runs the handlers of a program's streams until SIGTERM."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from millstream.aio import Stream as AsyncStream
from millstream.cli.exits import Failure
from millstream.errors import ConfigError
from millstream.worker.stream import Stream

HELP: Final = """Run the handlers of streams: MODULE:NAME names a Stream in a Python module that is found from here.

\b
  millstream worker app:orders
  millstream worker app:orders app:payments --url redis://localhost:6379 --metrics 9100

SIGTERM or Ctrl-C: reading stops, handlers get the stream's shutdown_grace to finish, the rest is released, uncounted.
--url, or else MILLSTREAM_URL, replaces the address that the program gave its streams.

Exit codes: 0 stopped on request, 1 a worker ended with an error, 2 wrong use.
"""


def run_workers(targets: Sequence[str], *, url: str | None, metrics_port: int | None, verbose: bool) -> None:
    """Run all named streams until a signal comes."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    streams = [load_stream(target) for target in targets]
    address = url or os.environ.get("MILLSTREAM_URL")
    for stream in streams:
        if address:
            stream._definition.url = address
    if metrics_port is not None:
        _serve_metrics(streams, metrics_port)
    failures = _run_all(streams)
    if failures:
        raise Failure(f"{failures[0][0].name}: {failures[0][1]}")


def load_stream(target: str) -> Stream[Any] | AsyncStream[Any]:
    """The stream that MODULE:NAME names; a clear error for everything that can be wrong with it."""
    module_name, mark, name = target.partition(":")
    if not mark or not module_name or not name:
        raise ConfigError(f"{target!r} does not name a stream: MODULE:NAME, such as app:orders")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # found, but something that it imports is not
        raise ConfigError(f"there is no module {module_name!r} to import from {here}") from error
    found = getattr(module, name, None)
    if not isinstance(found, Stream | AsyncStream):
        there = [each for each, value in vars(module).items() if isinstance(value, Stream | AsyncStream)]
        raise ConfigError(f"{module_name!r} has no Stream named {name!r}; it has {', '.join(there) or 'none'}")
    if found._definition.registered is None:
        raise ConfigError(f"{target}: the stream has no handler; put @{name}.handler() on a function")
    return found


def _run_all(streams: Sequence[Stream[Any] | AsyncStream[Any]]) -> list[tuple[Any, BaseException]]:
    """Each in a thread, this one waits: signals come to the main thread only."""
    failures: list[tuple[Any, BaseException]] = []
    is_over = threading.Event()

    def run(stream: Stream[Any] | AsyncStream[Any]) -> None:
        try:
            if isinstance(stream, AsyncStream):
                asyncio.run(stream.run(signals=False))
            else:
                stream.run(signals=False)
        except Exception as error:
            logging.getLogger(__name__).exception("the worker of %r has ended", stream.name)
            failures.append((stream, error))
        finally:
            is_over.set()

    threads = [threading.Thread(target=run, args=(stream,), name=f"worker-{stream.name}") for stream in streams]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    for thread in threads:
        thread.start()
    is_over.wait()
    for stream in streams:
        stream.stop()
    for thread in threads:
        thread.join()
    return failures


def _serve_metrics(streams: Sequence[Stream[Any] | AsyncStream[Any]], port: int) -> None:
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
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics: port {port} cannot be used: {error.strerror}") from error
