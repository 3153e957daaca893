"""Keyspace events: which are published, and on which channels (the setting `notify-keyspace-events`).

Each event has a class letter. The setting has class letters, and K or E (or both) for the kind of channel; without K or
E nothing is published. `A` stands for the classes in `ALL`.
"""

from __future__ import annotations

from typing import Final

from millstream.engine.outcome import Event

ALL: Final = "g$lshzxetda"
_CLASSES: Final = ALL + "noc"  # in the order they are printed
_OTHERS: Final = "KEmSTIV"  # printed after the classes; S T I V are for hash fields, which this server does not report

BAD_CLASS: Final = "Invalid event class character. Use 'Ag$lshzxeKEtmdnocaSTIV'."


def parse(text: bytes) -> frozenset[str] | None:
    """Return the letters of a setting with `A` expanded, or None if one is unknown."""
    letters: set[str] = set()
    for letter in text.decode("latin-1"):
        if letter == "A":
            letters.update(ALL)
        elif letter in _CLASSES or letter in _OTHERS:
            letters.add(letter)
        else:
            return None
    return frozenset(letters)


def to_text(letters: frozenset[str]) -> bytes:
    """Return the setting in its normal form. A complete set of classes is `A`, and then n, o and c are not shown."""
    if letters.issuperset(ALL):
        classes = "A"
    else:
        classes = "".join(letter for letter in _CLASSES if letter in letters)
    return (classes + "".join(letter for letter in _OTHERS if letter in letters)).encode()


def messages(event: Event, letters: frozenset[str]) -> list[tuple[bytes, bytes]]:
    """Yield the (channel, payload) pairs of an event: keyspace first, then keyevent."""
    if event.kind not in letters:
        return []
    told = []
    if "K" in letters:
        told.append((b"__keyspace@%d__:%b" % (event.db, event.key), event.name))
    if "E" in letters:
        told.append((b"__keyevent@%d__:%b" % (event.db, event.name), event.key))
    return told
