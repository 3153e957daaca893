"""Every exception class of the package.

MillstreamError
├─ CommandError(text)         answered "-CODE text"; `code` is the first word
├─ ProtocolError              the peer broke RESP: answer once, close
├─ ConfigError                a setting that cannot be used
├─ WorkerFailed(part)         a part of a worker ended unexpectedly; the reason is its cause
├─ ScriptError(text, place)   a Lua script ended with an error; becomes a CommandError that names the script
├─ BackendError               a server could not do what it was asked for; `is_retryable`
│  ├─ Unavailable             cannot be reached, or no answer came
│  ├─ ServerReplied(text)     answered with an error; `code` is its first word
│  └─ CapabilityMissing       lacks something that is needed
├─ DeliveryError              something about one delivery
│  ├─ LeaseLost(stream, id)   it is somebody else's now
│  ├─ NotSettled(…, reason)   the server refused; the entry stays pending
│  └─ MalformedPayload        an entry's fields are not what the stream carries
└─ PersistenceError           what is kept cannot be read or written
   ├─ CorruptFile(path, at)   a file is damaged, and where
   ├─ WriteFailed(path)       the system refused a write
   └─ BadFormat(what, at)     bytes that are not what they should be, and where
      └─ NewerFormat          a newer version has written them
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


class WorkerFailed(MillstreamError):
    """A part of a worker (a thread, its event loop) ended unexpectedly, and the worker with it; see the cause."""

    def __init__(self, part: str, error: BaseException | None) -> None:
        super().__init__(f"{part} has ended: {'it returned' if error is None else repr(error)}")
        self.part = part


class ScriptError(MillstreamError):
    """A script raised an error that nobody caught, or answered with one."""

    def __init__(self, text: bytes, place: bytes | None = None, *, is_counted: bool = False) -> None:
        super().__init__(text.decode("utf-8", "replace"))
        self.text = text
        self.place = place  # the line it was raised at; None for an answer
        self.is_counted = is_counted  # the command that failed has been counted as failed


class PersistenceError(MillstreamError):
    """What is kept cannot be read or written."""


class BadFormat(PersistenceError):
    """Bytes that are not what they should be; `at` is where in the file or payload, as far as that is known."""

    def __init__(self, what: str, at: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.at = at

    def __str__(self) -> str:
        return self.what if self.at is None else f"{self.what}, before offset {self.at}"

    def locate(self, at: int) -> None:
        """Say where it was, unless that is known better already."""
        if self.at is None:
            self.at = at


class NewerFormat(BadFormat):
    """A whole format that a newer version made, and that this one does not know."""


class CorruptFile(PersistenceError):
    """A file is damaged in a way that cannot be put right without losing something."""

    def __init__(self, path: object, at: int, reason: str, *, can_be_cut: bool = False) -> None:
        super().__init__(f"{path} is damaged at offset {at}: {reason}")
        self.path = path
        self.can_be_cut = can_be_cut  # what stands before is a whole, shorter log
        self.at = at  # where the first command stands that cannot be read
        self.reason = reason

    @property
    def hint(self) -> str:
        """What can be done about it."""
        if self.can_be_cut:
            return f"`millstream check {self.path}` says more, and with --fix cuts it after the last whole command"
        return f"`millstream check {self.path}` says more; it cannot be repaired, only replaced by a backup"

    @classmethod
    def of(cls, path: object, error: BadFormat, at: int = 0) -> PersistenceError:
        """Return the error for a file that cannot be read; one of a newer version is not damaged."""
        if isinstance(error, NewerFormat):
            return PersistenceError(f"{path} cannot be read: {error.what}")
        return cls(path, at if error.at is None else error.at, error.what)


class WriteFailed(PersistenceError):
    """The system refused a write; its own error is the cause."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(f"{path} cannot be written: {error.strerror or error}")
        self.path = path
        self.reason = error.strerror or str(error)


class BackendError(MillstreamError):
    """A server could not do what it was asked for; `is_retryable` says whether asking again later can help."""

    is_retryable = False


class Unavailable(BackendError):
    """The server cannot be reached, or the connection broke before its answer came: it may have done it or not."""

    is_retryable = True


# A stream that is something else, credentials that no longer hold: asking again gives the same answer.
HOPELESS_CODES = frozenset({"CROSSSLOT", "NOAUTH", "NOPERM", "WRONGPASS", "WRONGTYPE"})
# What a script calls and the user may not: the code is ERR then. The second is Redis 7.0's.
DENIED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
RETRYABLE_CODES = frozenset(
    {
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    }
)


class ServerReplied(BackendError):
    """The server answered with an error; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0]
        self.is_retryable = self.code in RETRYABLE_CODES

    @property
    def is_hopeless(self) -> bool:
        """Whether the same call fails until somebody changes the server, the URL or the keys."""
        return self.code in HOPELESS_CODES or self.is_denied

    @property
    def is_denied(self) -> bool:
        """Whether the user lacks a right, also if it was a script that needed it."""
        return self.code == "NOPERM" or any(text in str(self) for text in DENIED_IN_SCRIPT)


class CapabilityMissing(BackendError):
    """The server lacks something that what was asked for cannot do without; the message says how to go on."""


class DeliveryError(MillstreamError):
    """Something about one delivery."""


class LeaseLost(DeliveryError):
    """The delivery is no longer ours: its lease ran out and somebody else has the entry. Nothing was changed."""

    def __init__(self, stream: str, entry_id: str) -> None:
        super().__init__(f"the lease on {entry_id} of {stream!r} ran out: the entry is somebody else's now")
        self.stream = stream
        self.entry_id = entry_id


class NotSettled(DeliveryError):
    """The server refused to settle a delivery; the entry is pending as before."""

    def __init__(self, stream: str, entry_id: str, reason: str) -> None:
        super().__init__(f"{entry_id} of {stream!r} could not be settled and stays pending: {reason}")
        self.stream = stream
        self.entry_id = entry_id
        self.reason = reason


class MalformedPayload(DeliveryError):
    """A value that the stream's type does not allow, on its way in or out; names field and rule, not the value."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}" if field else rule)
        self.field = field  # where, as in `data.items[3].price`
        self.rule = rule

    def within(self, outer: str) -> MalformedPayload:
        """Return the same error, seen from the value that holds the field."""
        inner = self.field
        return MalformedPayload(f"{outer}{'' if not inner or inner.startswith('[') else '.'}{inner}", self.rule)
