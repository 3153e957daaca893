"""Every exception class of the package.

    MillstreamError
    ├─ CommandError(text)         answered "-CODE text"; `code` is the first word
    ├─ ProtocolError              the peer broke RESP: answer once, close
    └─ ConfigError                a setting that cannot be used
"""

from __future__ import annotations


class MillstreamError(Exception):
    """Anything this package raises on purpose."""


class CommandError(MillstreamError):
    """A command was refused; the whole text as it goes over the wire, its code word first."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        raw = text if isinstance(text, bytes) else text.encode()
        self.wire = raw.replace(b"\r", b" ").replace(b"\n", b" ")  # an error is one line

    @property
    def code(self) -> str:
        """The first word of the text: ERR, WRONGTYPE, NOGROUP, ..."""
        return self.wire.split(b" ", 1)[0].decode("utf-8", "replace")


class ProtocolError(MillstreamError):
    """The peer broke the protocol: it is answered once and the connection is closed."""


class ConfigError(MillstreamError):
    """A setting cannot be used; the message names it."""
