"""TLS: contexts from the `tls-…` settings, handshakes, and encrypting sockets that look like plain ones.

accept ──▶ Handshake.step … step ──▶ TlsSocket ──▶ SocketTransport, which reads and writes it as any socket
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from millstream.errors import ConfigError
from millstream.server.config.settings import Config

logger = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0  # how long a client may take to agree on keys
_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {b"yes": ssl.CERT_REQUIRED, b"optional": ssl.CERT_OPTIONAL, b"no": ssl.CERT_NONE}


def server_context(config: Config) -> ssl.SSLContext:
    """How connections are encrypted; ConfigError names the setting that keeps it from working."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _versions(config["tls-protocols"].decode())
    _load_certificate(context, config)
    context.verify_mode = _CLIENTS[config["tls-auth-clients"]]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_authorities(context, config)
    if ciphers := config["tls-ciphers"].decode():
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"tls-ciphers: none of {ciphers!r} is known") from error
    if config.is_on("tls-prefer-server-ciphers"):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def _versions(text: str) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """Return the oldest and the newest accepted version; the default is 1.2 and later."""
    words = text.lower().split()
    unknown = [word for word in words if word not in _VERSIONS]
    if unknown:
        raise ConfigError(f"tls-protocols: {unknown[0]!r} is not spoken here, only TLSv1.2 and TLSv1.3")
    versions = [_VERSIONS[word] for word in words] or list(_VERSIONS.values())
    return min(versions), max(versions)


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    certificate, key = _file(config, "tls-cert-file"), _file(config, "tls-key-file")
    password = config["tls-key-file-pass"]
    try:
        # A password is always given: OpenSSL would ask for a missing one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(f"tls-cert-file {certificate}, tls-key-file {key}: {reason}") from error


def _load_authorities(context: ssl.SSLContext, config: Config) -> None:
    """Whom to believe who a client is."""
    directory = config["tls-ca-cert-dir"].decode() or None
    file = _file(config, "tls-ca-cert-file") if config["tls-ca-cert-file"] or directory is None else None
    try:
        context.load_verify_locations(file, directory)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(f"tls-ca-cert-file {file}, tls-ca-cert-dir {directory}: {reason}") from error


def _file(config: Config, name: str) -> Path:
    path = config[name].decode()
    if not path:
        hint = ", or `tls-auth-clients no`" if name == "tls-ca-cert-file" else ""
        raise ConfigError(f"tls-port needs {name}{hint}")
    if not Path(path).is_file():
        raise ConfigError(f"{name}: there is no file {path}")
    return Path(path)


class TlsSocket:
    """A socket that encrypts, with the methods that a transport calls and the errors that it knows."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.family = sock.family
        self.context = sock.context
        for name in ("fileno", "getpeername", "getsockname", "setsockopt"):
            setattr(self, name, getattr(sock, name))

    def recv(self, size: int) -> bytes:
        """Return what has arrived, at most one record of TLS. Raises BlockingIOError when there is none."""
        try:
            return self._sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send as much as there is room for. Raises BlockingIOError when there is none."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        """Tell the peer that this was all, and close."""
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()  # does not wait for the peer's answer
        self._sock.close()


class Handshake:
    """A client that agrees on keys; then `done` gets its socket. One that fails or takes too long is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        context: ssl.SSLContext,
        done: Callable[[TlsSocket], Any],
        pending: dict[Handshake, None],
    ) -> None:
        """`pending` holds all handshakes that are under way."""
        self._loop = loop
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._fd = self._sock.fileno()
        self._done = done
        self._pending = pending
        self._timeout = loop.call_later(HANDSHAKE_S, self.close)
        pending[self] = None
        loop.add_reader(self._fd, self.step)

    def step(self) -> None:
        """Go on as far as possible without waiting."""
        if self not in self._pending:
            return
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.remove_writer(self._fd)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._fd, self.step)
        except (OSError, ValueError) as error:
            logger.info("A client could not agree on keys: %s", getattr(error, "reason", None) or error)
            self.close()
        else:
            self._leave()
            self._done(TlsSocket(self._sock))

    def close(self) -> None:
        """Give up."""
        if self in self._pending:
            self._leave()
            self._sock.close()

    def _leave(self) -> None:
        del self._pending[self]
        self._timeout.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
