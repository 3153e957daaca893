"""`millstream worker app:orders`: run the handlers of a program's streams until SIGTERM."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from millstream.aio import Stream as AsyncStream
from millstream.cli.exits import Failure
from millstream.errors import ConfigError
from millstream.printable import LineFormatter
from millstream.worker.stream import Stream


def worker(
    targets: Annotated[list[str], typer.Argument(metavar="MODULE:NAME...", help="Streams of a Python program.")],
    url: Annotated[str | None, typer.Option("--url", help="URL of the server, instead of the program's own.")] = None,
    metrics: Annotated[
        int | None, typer.Option("--metrics", help="Port for Prometheus, on loopback.", min=1, max=65535)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log at level DEBUG.")] = False,
) -> None:
    """Run the handlers of streams. MODULE:NAME names a Stream in a module that Python finds from this directory.

    \b
      millstream worker app:orders
      millstream worker app:orders app:payments --url redis://localhost:6379 --metrics 9100

    On SIGTERM or Ctrl-C reading stops, handlers get the stream's shutdown_grace to finish, and the rest is released,
    uncounted. --url, else MILLSTREAM_URL, replaces the URL that the program gave its streams.

    Exit codes: 0 stopped on request, 1 a worker ended with an error, 2 wrong use.
    """
    set_up_log(logging.DEBUG if verbose else logging.INFO)
    streams = [load_stream(target) for target in targets]
    address = url or os.environ.get("MILLSTREAM_URL")
    for stream in streams:
        if address:
            stream._definition.url = address
    if metrics is not None:
        _serve_metrics(streams, metrics)
    failures = _run_all(streams)
    if failures:
        raise Failure(f"{failures[0][0].name}: {failures[0][1]}")


def set_up_log(level: int) -> None:
    """Log to standard error, one line a record, with data escaped; an application's own set-up wins."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def load_stream(target: str) -> Stream[Any] | AsyncStream[Any]:
    """Return the stream that MODULE:NAME names; a ConfigError says what is wrong with the target."""
    module_name, mark, name = target.partition(":")
    if not mark or not module_name or not name:
        raise ConfigError(f"{target!r} is not the name of a stream: use MODULE:NAME, such as app:orders")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module was found, but not something that it imports
        raise ConfigError(f"there is no module {module_name!r} to import from {here}") from error
    found = getattr(module, name, None)
    if not isinstance(found, Stream | AsyncStream):
        there = [each for each, value in vars(module).items() if isinstance(value, Stream | AsyncStream)]
        raise ConfigError(f"{module_name!r} has no Stream named {name!r}; it has {', '.join(there) or 'none'}")
    if found._definition.registered is None:
        raise ConfigError(f"{target}: the stream has no handler; put @{name}.handler() on a function")
    return found


def _run_all(streams: Sequence[Stream[Any] | AsyncStream[Any]]) -> list[tuple[Any, BaseException]]:
    """Run each stream in a thread and wait here: only the main thread receives signals."""
    failures: list[tuple[Any, BaseException]] = []
    is_over = threading.Event()

    def run(stream: Stream[Any] | AsyncStream[Any]) -> None:
        try:
            if isinstance(stream, AsyncStream):
                asyncio.run(stream.run(signals=False))
            else:
                stream.run(signals=False)
        except Exception as error:
            logging.getLogger(__name__).exception("the worker of %r has ended with an error", stream.name)
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
