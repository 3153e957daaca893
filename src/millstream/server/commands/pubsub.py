"""SUBSCRIBE and its family, PUBLISH, PUBSUB."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.engine.faults import bad_subcommand_use
from millstream.engine.outcome import Push, Reply
from millstream.server.commands.common import add_help
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.features.pubsub import Topics
from millstream.server.protocol.sequence import Several

if TYPE_CHECKING:
    from millstream.server.core.interfaces import Client

COMMANDS = ServerRegistry("pubsub")
COMMANDS.contains("pubsub", since="2.8.0", summary="A container for Pub/Sub commands.")

_SUBSCRIBE = "denyoom pubsub noscript loading stale"
_UNSUBSCRIBE = "pubsub noscript loading stale"
_PUBLISH = "pubsub loading stale fast"
_INTROSPECT = "pubsub loading stale"


def _register_pair(
    prefix: str,
    topics_of: Callable[[ServerCall], Topics],
    names_of: Callable[[Client], dict[bytes, None]],
    counted: Callable[[Client], int],
    *,
    what: str,
    keys: tuple[int, int, int],
    since: str,
) -> None:
    """Register the two commands of a kind of subscription."""
    access = "not_key" if keys[0] else ""
    upper = prefix.upper()

    @COMMANDS.serves(
        f"{prefix}subscribe", -2, _SUBSCRIBE, keys=keys, access=access, since=since, summary=f"Listens to {what}s."
    )
    def subscribe(call: ServerCall, argv: list[bytes]) -> Reply:
        session, topics = call.session, topics_of(call)
        told = Several()
        for name in argv[1:]:
            names_of(session)[name] = None
            topics.add(name, session)
            told.append(Push([topics.kind + b"subscribe", name, counted(session)]))
        return told

    @COMMANDS.serves(
        f"{prefix}unsubscribe",
        -1,
        _UNSUBSCRIBE,
        keys=keys,
        access=access,
        since=since,
        summary=f"Stops listening to {what}s.",
    )
    def unsubscribe(call: ServerCall, argv: list[bytes]) -> Reply:
        session, topics = call.session, topics_of(call)
        told = Several()
        leaving: list[bytes | None] = [*(argv[1:] or names_of(session))]
        for name in leaving or [None]:
            if name is not None:
                names_of(session).pop(name, None)
                topics.drop(name, session)
            told.append(Push([topics.kind + b"unsubscribe", name, counted(session)]))
        return told

    subscribe.__doc__ = f"{upper}SUBSCRIBE {what} [{what} ...]"
    unsubscribe.__doc__ = f"{upper}UNSUBSCRIBE [{what} [{what} ...]]"


_register_pair(
    "",
    lambda call: call.hub.pubsub.channels,
    lambda session: session.channels,
    lambda session: session.subscriptions,
    what="channel",
    keys=(0, 0, 0),
    since="2.0.0",
)
_register_pair(
    "p",
    lambda call: call.hub.pubsub.patterns,
    lambda session: session.patterns,
    lambda session: session.subscriptions,
    what="pattern",
    keys=(0, 0, 0),
    since="2.0.0",
)
_register_pair(
    "s",
    lambda call: call.hub.pubsub.shards,
    lambda session: session.shards,
    lambda session: len(session.shards),
    what="shardchannel",
    keys=(1, -1, 1),
    since="7.0.0",
)


@COMMANDS.serves("publish", 3, _PUBLISH, since="2.0.0", summary="Posts a message to a channel.")
def publish(call: ServerCall, argv: list[bytes]) -> Reply:
    """PUBLISH channel message"""
    return call.hub.pubsub.publish(argv[1], argv[2])


@COMMANDS.serves(
    "spublish",
    3,
    _PUBLISH,
    keys=(1, 1, 1),
    access="not_key",
    since="7.0.0",
    summary="Posts a message to a shard channel.",
)
def spublish(call: ServerCall, argv: list[bytes]) -> Reply:
    """SPUBLISH shardchannel message"""
    return call.hub.pubsub.publish_to_shard(argv[1], argv[2])


def _names(topics: Topics, argv: list[bytes]) -> Reply:
    if len(argv) > 3:
        raise bad_subcommand_use("pubsub", argv[1])
    return list[Reply](topics.matching(argv[2] if len(argv) == 3 else None))


def _counts(topics: Topics, argv: list[bytes]) -> Reply:
    flat: list[Reply] = []
    for name in argv[2:]:
        flat += [name, topics.count(name)]
    return flat


@COMMANDS.serves("pubsub|channels", -2, _INTROSPECT, since="2.8.0", summary="Lists channels that have subscribers.")
def channels(call: ServerCall, argv: list[bytes]) -> Reply:
    """PUBSUB CHANNELS [pattern]"""
    return _names(call.hub.pubsub.channels, argv)


@COMMANDS.serves("pubsub|numsub", -2, _INTROSPECT, since="2.8.0", summary="Counts subscribers of channels.")
def numsub(call: ServerCall, argv: list[bytes]) -> Reply:
    """PUBSUB NUMSUB [channel [channel ...]]"""
    return _counts(call.hub.pubsub.channels, argv)


@COMMANDS.serves("pubsub|numpat", 2, _INTROSPECT, since="2.8.0", summary="Counts subscribed patterns.")
def numpat(call: ServerCall, argv: list[bytes]) -> Reply:
    """PUBSUB NUMPAT"""
    return len(call.hub.pubsub.patterns.by_name)


@COMMANDS.serves(
    "pubsub|shardchannels", -2, _INTROSPECT, since="7.0.0", summary="Lists shard channels that have subscribers."
)
def shardchannels(call: ServerCall, argv: list[bytes]) -> Reply:
    """PUBSUB SHARDCHANNELS [pattern]"""
    return _names(call.hub.pubsub.shards, argv)


@COMMANDS.serves("pubsub|shardnumsub", -2, _INTROSPECT, since="7.0.0", summary="Counts subscribers of shard channels.")
def shardnumsub(call: ServerCall, argv: list[bytes]) -> Reply:
    """PUBSUB SHARDNUMSUB [shardchannel [shardchannel ...]]"""
    return _counts(call.hub.pubsub.shards, argv)


add_help(COMMANDS, "pubsub", since="6.2.0", group="server")
