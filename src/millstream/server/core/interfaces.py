"""A session and a hub as other modules see them, so that those modules need not import `session` and `hub`.

    features, access, scripting, batching ──▶ interfaces ◀── session, hub

`services.Services` adds the features themselves, for commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.engine.keys.keyspace import Keyspace
    from millstream.engine.outcome import Reply, Wait
    from millstream.engine.table import Command
    from millstream.errors import CommandError
    from millstream.server.access.users import User
    from millstream.server.config.settings import Config
    from millstream.server.core.blocking import Place, Waiter, WaitOwner
    from millstream.server.core.stats import Stats
    from millstream.server.features.client_memory import Pacer
    from millstream.server.features.pubsub import PubSub
    from millstream.server.protocol.resp import RequestDecoder


class ReplyMode(Enum):
    """CLIENT REPLY: which replies are sent."""

    ON = "on"
    OFF = "off"
    SKIP_NEXT = "skip next"  # CLIENT REPLY SKIP is running
    SKIP = "skip"  # the command after it is


class Client(Protocol):
    """A connection: `Session`. Its attributes are explained there."""

    aborted: bool
    address: bytes
    bytes_in: int
    bytes_out: int
    channels: dict[bytes, None]
    commands: int
    created_ms: int
    db: int
    id: int
    is_authenticated: bool
    is_closed: bool
    is_closing: bool
    is_cut: bool
    is_running: bool
    is_spared: bool
    is_trusted: bool
    last_command: str
    last_ms: int
    leaves_untouched: bool
    lib_name: bytes
    lib_version: bytes
    local_address: bytes
    name: bytes
    pacer: Pacer | None
    patterns: dict[bytes, None]
    protocol: int
    queue: list[tuple[Command, list[bytes]]] | None
    reply_mode: ReplyMode
    shards: dict[bytes, None]
    user: bytes
    waiter: Waiter | None
    watch_failed: bool
    watched: dict[Place, bool]

    @property
    def decoder(self) -> RequestDecoder:
        """Return the decoder, which holds the bytes of requests that are not complete."""

    @property
    def is_subscriber(self) -> bool:
        """Return whether only commands for subscribers are allowed."""

    @property
    def queued_bytes(self) -> int:
        """Return the bytes of the commands in the open transaction."""

    @property
    def subscriptions(self) -> int:
        """Return the number of channels and patterns."""

    @property
    def unsent(self) -> int:
        """Return the bytes of output that were not handed over yet."""

    def end_transaction(self) -> None:
        """Drop the open transaction and all watches."""

    def follow_limits(self) -> None:
        """Take over the limits of requests from the settings."""

    def leave_everything(self) -> None:
        """Drop the transaction, subscriptions, monitoring and tracking."""

    def push(self, data: bytes) -> None:
        """Send an encoded message."""

    def resume(self, reply: Reply) -> None:
        """Answer the command that blocks."""

    def run_later(self, argv: list[bytes]) -> None:
        """Run a request that had to wait, before those that came after it."""

    def run_queue(self, queue: list[tuple[Command, list[bytes]]], now_ms: int) -> list[Reply]:
        """Run the commands of a transaction. Returns their replies."""

    def shut(self) -> None:
        """Close the connection once its output is sent."""

    def start_over(self) -> None:
        """Reset the connection to its first state."""


Gate = Callable[[Client, "Command", list[bytes]], "CommandError | None"]


class Access(Protocol):
    """Access control: `AccessControl`."""

    users: dict[bytes, User]

    def gate(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Return the reason to refuse a command, or None."""


class Blocker(Protocol):
    """The commands that wait: `Blocking`."""

    def begin(self, owner: WaitOwner, row: Command, wait: Wait, db: int, protocol: int) -> Waiter:
        """Let a command wait."""

    def end(self, waiter: Waiter, reply: Reply) -> None:
        """End a wait with a reply."""

    def give_up(self, waiter: Waiter) -> None:
        """End a wait without a reply."""


class Server(Protocol):
    """The shared state: `Hub`. Its attributes are explained there."""

    config: Config
    counts_memory: bool
    gates: list[Gate]
    keyspace: Keyspace
    monitors: dict[Client, None]
    now_ms: Callable[[], int]
    pubsub: PubSub
    stats: Stats

    @property
    def access(self) -> Access:
        """Return the access control."""

    @property
    def blocking(self) -> Blocker:
        """Return the waiting commands."""

    @property
    def sessions(self) -> Mapping[int, Client]:
        """Return all connections by number."""

    def is_read_only_script(self, row: Command, argv: list[bytes]) -> bool:
        """Return whether a call of a script declares not to write."""

    def keep_swept(self) -> None:
        """Let the timer know of keys that may expire now."""

    def observe(self) -> None:
        """Bring the flags that fast paths check up to date."""

    def perform(self, session: Client, row: Command, argv: list[bytes], now_ms: int, may_block: bool) -> Reply | Wait:
        """Run one command and hand out its effects."""

    def show(self, session: Client, row: Command, argv: list[bytes]) -> None:
        """Show a command to those who monitor."""
