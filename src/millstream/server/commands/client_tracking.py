"""CLIENT TRACKING and what belongs to it: client-side caching. Adds to the container that `client` registers."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from millstream.engine.faults import SYNTAX, fault
from millstream.engine.outcome import OK, Members, Pairs, Reply
from millstream.engine.text.args import integer
from millstream.errors import CommandError
from millstream.server.commands import client
from millstream.server.core.call import ServerCall
from millstream.server.features.tracking import Subscription

if TYPE_CHECKING:
    from millstream.server.core.services import Services

COMMANDS = client.COMMANDS
_PLAIN = "noscript loading stale"
_OVERLAP = b". Prefixes for a single client must not overlap."


@COMMANDS.serves("client|tracking", -3, _PLAIN, since="6.0.0", summary="Controls client-side caching.")
def tracking(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT TRACKING <ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT]
    [NOLOOP]
    """
    wanted = _parse(call.hub, argv[3:])
    tracker, session = call.hub.tracking, call.session
    match argv[2].upper():
        case b"ON":
            _check(wanted, tracker.of(session))
            if wanted.bcast and not wanted.prefixes:
                wanted.prefixes[b""] = None
            tracker.start(session, wanted)
        case b"OFF":
            tracker.stop(session)
        case _:
            raise fault(SYNTAX)
    return OK


def _parse(hub: Services, words: list[bytes]) -> Subscription:
    wanted = Subscription()
    at = 0
    while at < len(words):
        word = words[at].upper()
        has_value = at + 1 < len(words)
        if word == b"REDIRECT" and has_value:
            wanted.redirect = integer(words[at + 1])
            if wanted.redirect not in hub.sessions:
                raise fault("ERR The client ID you want redirect to does not exist")
            at += 1
        elif word == b"PREFIX" and has_value:
            wanted.prefixes[words[at + 1]] = None
            at += 1
        elif word in (b"BCAST", b"OPTIN", b"OPTOUT", b"NOLOOP"):
            setattr(wanted, word.lower().decode(), True)
        else:
            raise fault(SYNTAX)
        at += 1
    return wanted


def _check(wanted: Subscription, known: Subscription | None) -> None:
    """Raise what there is against this way to track, in Redis's order."""
    if wanted.prefixes and not wanted.bcast:
        raise fault("ERR PREFIX option requires BCAST mode to be enabled")
    if known is not None and known.bcast != wanted.bcast:
        raise fault(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling "
            "it with a different mode."
        )
    if wanted.bcast and (wanted.optin or wanted.optout):
        raise fault("ERR OPTIN and OPTOUT are not compatible with BCAST")
    if wanted.optin and wanted.optout:
        raise fault("ERR You can't specify both OPTIN mode and OPTOUT mode")
    if known is not None and ((wanted.optin and known.optout) or (wanted.optout and known.optin)):
        raise fault(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling "
            "it with a different mode."
        )
    for prefix in wanted.prefixes:
        for other in known.prefixes if known is not None else ():
            if _overlaps(prefix, other):
                raise _clash(prefix, b"an existing prefix", other)
    for prefix, other in combinations(wanted.prefixes, 2):
        if _overlaps(prefix, other):
            raise _clash(prefix, b"another provided prefix", other)


def _overlaps(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


def _clash(prefix: bytes, what: bytes, other: bytes) -> CommandError:
    return fault(b"ERR Prefix '" + prefix + b"' overlaps with " + what + b" '" + other + b"'" + _OVERLAP)


@COMMANDS.serves("client|caching", 3, _PLAIN, since="6.0.0", summary="Tells whether the next command is cached.")
def caching(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT CACHING <YES | NO>"""
    known = call.hub.tracking.of(call.session)
    if known is None or not (known.optin or known.optout):
        raise fault(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode "
            "enabled"
        )
    match argv[2].upper():
        case b"YES":
            if not known.optin:
                raise fault("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
            known.caching = True
        case b"NO":
            if not known.optout:
                raise fault("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")
            known.caching = False
        case _:
            raise fault(SYNTAX)
    return OK


@COMMANDS.serves("client|trackinginfo", 2, _PLAIN, since="6.2.0", summary="Describes client-side caching.")
def trackinginfo(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT TRACKINGINFO"""
    known = call.hub.tracking.of(call.session)
    if known is None:
        return Pairs([b"flags", Members([b"off"]), b"redirect", -1, b"prefixes", []])
    flags = [b"on"] + [
        name
        for name, applies in (
            (b"bcast", known.bcast),
            (b"optin", known.optin),
            (b"caching-yes", known.optin and known.caching),
            (b"optout", known.optout),
            (b"caching-no", known.optout and known.caching is False),
            (b"noloop", known.noloop),
            (b"broken_redirect", known.is_broken),
        )
        if applies
    ]
    return Pairs([b"flags", Members(flags), b"redirect", known.redirect, b"prefixes", [*sorted(known.prefixes)]])


@COMMANDS.serves("client|getredir", 2, _PLAIN, since="6.0.0", summary="Returns where invalidations go.")
def getredir(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT GETREDIR"""
    known = call.hub.tracking.of(call.session)
    return -1 if known is None else known.redirect
