"""A socket to the server that has a stream, for moving many bytes. Everything else goes through `millstream.client`.

    Wire.open ──▶ TLS? ──▶ AUTH? ──▶ SELECT? ──▶ send, ask, read entries

The executors of Spark open these. They need no map of a cluster: the planner says where a stream is, and if it has
moved since, the server's own MOVED says where to.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import hiredis

from millstream.client.urls import ServerUrl, hide_password, parse_url
from millstream.errors import CommandError, ConfigError, ServerReplied, Unavailable
from millstream.spark.options import ConnectionOptions
from millstream.spark.wire.resp_arrow import Entries, EntriesReader

Word = bytes | str | int
MOST_HOPS = 5  # from one node of a cluster to the next
RECEIVE_BUFFER = 4 << 20  # the server can be that far ahead while we parse


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens; the host is a path for a unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


def first_address(place: ServerUrl, timeout_s: float) -> Address:
    """Where to begin: the only server, the first node of a cluster, or the primary that the sentinels name."""
    if place.scheme == "unix":
        return Address(place.path, 0)
    if place.scheme.endswith("+sentinel"):
        return _told_by_sentinels(place, timeout_s)
    return Address(*place.hosts[0])


def _told_by_sentinels(place: ServerUrl, timeout_s: float) -> Address:
    from redis import RedisError
    from redis.backoff import NoBackoff
    from redis.retry import Retry
    from redis.sentinel import Sentinel

    name = place.path.strip("/").partition("/")[0]
    asking = {"socket_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel(list(place.hosts), sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    try:
        return Address(*sentinel.discover_master(name))
    except RedisError as error:  # as while one server takes over from another: it will be told when it is asked again
        raise Unavailable(f"the sentinels name no server for {name!r}: {error}") from error


class Wire:
    """One connection. Not shared between threads."""

    def __init__(self, connection: ConnectionOptions, address: Address | None = None) -> None:
        self._connection = connection
        self._place = parse_url(connection.url)
        self.address = address or first_address(self._place, connection.timeout_s)
        self._entries = EntriesReader()
        self._replies = hiredis.Reader()
        self._lines_owed = 0  # waited for by `confirm`; below zero if some came early
        self._last_byte = b"\n"
        self._socket = self._open()
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes; a server that takes too long counts as gone."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._gone(error) from error

    def ask(self, *words: Word) -> Any:
        """One command and its reply; an error is raised as ServerReplied."""
        self.send(packed(words))
        return self.reply()

    def reply(self) -> Any:
        """Return the next reply. Raises an error reply as ServerReplied."""
        while (found := self._replies.gets()) is False:
            self._replies.feed(self._receive())
        if isinstance(found, hiredis.ReplyError):
            raise ServerReplied(str(found))
        return found

    def replies(self, count: int) -> list[Any]:
        """Return the next replies, with errors as hiredis.ReplyError."""
        found: list[Any] = []
        while len(found) < count:
            while (reply := self._replies.gets()) is not False:
                found.append(reply)
                if len(found) == count:
                    return found
            self._replies.feed(self._receive())
        return found

    def confirm(self, lines: int) -> None:
        """Wait until so many lines of reply have come; the first error is raised as ServerReplied.

        For ids (two lines) and numbers (one), of which there are millions: no object each. None begins with a minus,
        and after an error it is not known what had come: the wire is to be closed.
        """
        self._lines_owed += lines
        while self._lines_owed > 0:
            data = self._receive()
            if (at := (self._last_byte + data).find(b"\n-")) >= 0:
                self._replies.feed(data[at:])
                self.reply()
            self._lines_owed -= data.count(b"\n")
            self._last_byte = data[-1:]

    def entries(self) -> Entries:
        """Return the entries of the next reply, valid until the next call."""
        reader, sock = self._entries, self._socket
        try:
            while True:
                received = sock.recv_into(reader.space())
                if not received:
                    raise self._gone(None)
                reader.fill(received)
                # A reply that goes on is not worth a look, unless the server has paused.
                if reader.could_be_whole and not self._has_more() and (found := reader.take()) is not None:
                    return found
        except CommandError as error:
            raise ServerReplied(str(error)) from None
        except OSError as error:
            raise self._gone(error) from error

    def _has_more(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> socket.socket:
        timeout_s = self._connection.timeout_s
        try:
            if not self.address.port:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(timeout_s)
                sock.connect(self.address.host)
                return sock
            sock = socket.create_connection((self.address.host, self.address.port), timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            return self._secured(sock) if self._place.is_tls else sock
        except OSError as error:
            raise self._gone(error) from error

    def _secured(self, sock: socket.socket) -> socket.socket:
        options = self._place.options
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if options.get("ssl_check_hostname", "").lower() in ("0", "no", "false", "off"):
            context.check_hostname = False
        if options.get("ssl_cert_reqs") == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate := options.get("ssl_certfile"):
            context.load_cert_chain(certificate, options.get("ssl_keyfile"))
        return context.wrap_socket(sock, server_hostname=self.address.host)

    def _greet(self) -> None:
        place = self._place
        if place.password is not None:
            self.ask("AUTH", *filter(None, [place.username]), place.password)
        if database := _database(place):
            self.ask("SELECT", database)

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(1 << 18)
        except OSError as error:
            raise self._gone(error) from error
        if not data:
            raise self._gone(None)
        return data

    def _gone(self, error: OSError | None) -> Unavailable:
        reason = "it closed the connection" if error is None else (error.strerror or str(error))
        return Unavailable(f"{hide_password(self._connection.url)} ({self.address}): {reason}")


def _database(place: ServerUrl) -> str:
    if place.is_cluster:
        return ""
    text = place.options.get("db") or ("" if place.scheme == "unix" else place.path.strip("/"))
    if place.scheme.endswith("+sentinel"):
        text = text.partition("/")[2]
    if text and not text.isdigit():
        raise ConfigError(f"{text!r} is not a database number")
    return "" if text == "0" else text


def packed(words: Sequence[Word]) -> bytes:
    """Encode a command."""
    data: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]
    return data


def moved_to(error: ServerReplied, before: Address) -> Address | None:
    """Where a cluster says that the key is; a host may be left out if it is the same."""
    words = str(error).split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    return Address(host or before.host, int(port))


def open_for(connection: ConnectionOptions, key: str, hint: Address | None = None) -> Wire:
    """Connect to the server that has this key. `hint` is its last known address."""
    wire = _begin(connection, hint)
    for _ in range(MOST_HOPS):
        try:
            wire.ask("XLEN", key)
            return wire
        except ServerReplied as error:
            address = moved_to(error, wire.address)
            wire.close()
            if address is None:
                raise
        wire = Wire(connection, address)
    wire.close()
    raise Unavailable(f"{hide_password(connection.url)}: no node of the cluster says that it has {key!r}")


def _begin(connection: ConnectionOptions, hint: Address | None) -> Wire:
    """Connect to the last known server of a key, or else to any node of the cluster in the URL."""
    place = parse_url(connection.url)
    if not place.is_cluster:
        return Wire(connection, hint)
    named = [Address(*host) for host in place.hosts]
    *others, last = dict.fromkeys([hint, *named] if hint is not None else named)
    for address in others:
        with suppress(Unavailable):  # a node that is gone: one that has taken over from it is known to the others
            return Wire(connection, address)
    return Wire(connection, last)
