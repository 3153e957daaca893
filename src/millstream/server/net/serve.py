"""A listener with a loop around it: in the caller's thread until it is told to stop, or in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from millstream.server.core.hub import Hub
from millstream.server.net.listener import Endpoints, Listener

logger = logging.getLogger(__name__)

Ready = Callable[[Listener], None]


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop if it is installed, else Python's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Server:
    """Serves a hub until `stop` is called, from any thread or from a signal."""

    def __init__(self, hub: Hub, endpoints: Endpoints) -> None:
        self._hub = hub
        self._endpoints = endpoints
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._is_stopping = False
        self.on_hangup: Callable[[], None] = _nothing  # what SIGHUP asks for
        self.was_told_to_stop = False  # by SHUTDOWN, which has saved what was to be saved
        self._lock = threading.Lock()

    def run(self, ready: Ready | None = None, *, signals: bool = False) -> None:
        """Serve in this thread; `ready` is called when clients can connect. With `signals`, SIGTERM and SIGINT end it,
        and SIGHUP calls `on_hangup`.

        What keeps it from listening is raised.
        """
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._serve(ready, signals))

    def stop(self) -> None:
        """Let `run` end: no new clients, the last replies, closed sockets."""
        with self._lock:
            self._is_stopping = True
            if self._loop is not None and self._stopped is not None:
                with contextlib.suppress(RuntimeError):  # it has ended already
                    self._loop.call_soon_threadsafe(self._stopped.set)

    def _obey(self) -> None:
        self.was_told_to_stop = True
        self.stop()

    async def _serve(self, ready: Ready | None, signals: bool) -> None:
        listener = Listener(self._hub)
        await listener.start(self._endpoints)
        self._hub.on_shutdown = self._obey
        try:
            stopped = self._prepare_to_stop()
            with self._obeying_signals() if signals else contextlib.nullcontext():
                if ready is not None:
                    ready(listener)
                await stopped.wait()
        finally:
            self._hub.on_shutdown = None
            await listener.stop()
            self._hub.is_ending = False

    @contextlib.contextmanager
    def _obeying_signals(self) -> Iterator[None]:
        """End on SIGTERM and SIGINT, also while a script keeps the loop from running; call `on_hangup` on SIGHUP.

        A handler of the loop would wait for the loop. These run between two steps of Python, so in a script, too.
        """
        handlers: dict[signal.Signals, Callable[[int, object], None]] = {
            signal.SIGTERM: self._end,
            signal.SIGINT: self._end,
            signal.SIGHUP: self._hang_up,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: object) -> None:
        self._hub.is_ending = True
        if self._loop is not None and self._stopped is not None:  # no lock: the thread that we interrupt may have it
            self._loop.call_soon_threadsafe(self._stopped.set)

    def _hang_up(self, number: int, frame: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.on_hangup)

    def _prepare_to_stop(self) -> asyncio.Event:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._stopped = stopped = asyncio.Event()
            if self._is_stopping:
                stopped.set()
        return stopped


def _nothing() -> None:
    """Do nothing on SIGHUP."""


class BackgroundServer:
    """A server in a thread of its own; a context manager that stops it at the end."""

    def __init__(self, hub: Hub, endpoints: Endpoints) -> None:
        """Start it; returns when clients can connect, or raises what kept it from listening."""
        self._server = Server(hub, endpoints)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="millstream-server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self) -> None:
        try:
            self._server.run(self._note_start)
        except BaseException as error:
            if self._started.is_set():
                logger.critical("the server in this process has ended unexpectedly", exc_info=error)
            self._failure = error
        finally:
            self._started.set()

    def _note_start(self, listener: Listener) -> None:
        self._listener = listener
        self._address = listener.tcp[0] if listener.tcp else None
        self._started.set()

    @property
    def host(self) -> str:
        """The address it listens on."""
        return self._tcp()[0]

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._tcp()[1]

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._listener.connections) if self._listener is not None else 0

    def _tcp(self) -> tuple[str, int]:
        if self._address is None:
            raise AttributeError("this server listens on no port")
        return self._address

    def stop(self) -> None:
        """Close all connections and end the thread."""
        self._server.stop()
        self._thread.join()

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
