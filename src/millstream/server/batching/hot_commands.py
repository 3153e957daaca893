"""Fast paths for the commands that workers and producers send most, from request words to reply bytes.

    XADD key * field value …                              XACK key group id
    XREADGROUP GROUP group consumer COUNT 1               XNACK key group <SILENT|FAIL|FATAL> IDS 1 id
        [BLOCK ms] STREAMS key >

Each function takes the requests of one read, runs those at the front that have the form above, appends a reply for
each, and returns how many it ran. The general path runs the rest. It also runs everything while a waiter of the key, a
watcher or a subscriber to events must be notified.

The log lines are encoded here and replay to the same state. Most of their bytes are already at hand: a chunk of
acknowledgements is its own log, and a chunk of appends lacks only the ids. A delivery is logged as one claim of all ids
that the consumer got in one read. Consecutive deliveries of a group are logged as one transaction, which ends with the
position of the group.

The twin of each function is the engine's command of that name, for deliveries `next_entries` and `deliver`.
Test: tests/server/batching/test_hot_commands.py compares both paths; the differential tests compare both with Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from millstream.engine.commands.streams.group import deliver_run
from millstream.engine.commands.streams.settle import RELEASE_MODES, ReleaseMode
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY
from millstream.engine.streams.stream import Stream
from millstream.server.batching.uniform import Alike
from millstream.server.core.blocking import Waiters


class Hub(Protocol):
    """The hub as the fast paths see it. Its attributes are explained there."""

    delivering: tuple[Group, bytes, bytes] | None
    dirty: int
    encoded: list[bytes]
    has_waiters: bool
    keeps_log: bool
    keyspace: Keyspace
    waiters: Waiters


# Arguments: hub, database, requests, time, protocol, output for the replies, and the bytes of the requests: one piece
# for each or one for all; an empty list if they are not known.
Express = Callable[["Hub", int, list[list[bytes]], int, int, list[bytes], list[bytes]], int]

# The same for requests that differ only in their last word.
ExpressAlike = Callable[["Hub", int, Alike, int, int, list[bytes], list[bytes]], int]

_LEAST_BULK: Final = len(b"$21\r\n\r\n") + 21  # see EntryLog.append_bulks
_SEQUENCE: Final = (1 << 64) - 1
_ONE: Final = [b"COUNT", b"1"]
_FIRST_RUN: Final = 16  # entries that are delivered before their size is known
_LONG_REPLY: Final = 1 << 14
_LONG: Final = 1 << 20  # bytes of a request from which on limits are checked
_ANY_ID: Final = b"$1\r\n*\r\n"
_DIGITS: Final = [b"%d" % number for number in range(1024)]
_BULK: Final = [b"$%d\r\n" % size for size in range(256)]
_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC: Final = b"*1\r\n$4\r\nEXEC\r\n"


def xadd(
    hub: Hub, db: int, requests: list[list[bytes]], now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XADD key * field value [field value ...]. Twin: `append.xadd`.

    Test: tests/server/batching/test_hot_commands.py.
    """
    if len(requests[0]) < 5:
        return 0
    word, name = requests[0][:2]
    database = hub.keyspace.databases[db]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires or (hub.has_waiters and (db, name) in hub.waiters):
        return 0
    start, size = [word, name, b"*"], len(requests[0])
    done = 0
    for argv in requests:
        if argv[:3] != start or len(argv) != size or (not pieces and sum(map(len, argv)) >= _LONG):
            break
        done += 1
    key = max(now_ms << 64, stream.last + 1)
    ids = _next_ids(key, done) if size & 1 else None
    if not done or ids is None:
        return 0
    output += [_BULK[len(entry_id)] + entry_id + b"\r\n" for entry_id in ids]
    # Build the log lines before the entries: if memory runs out here, nothing has changed.
    lines = _log_of_appends(hub, requests, done, output, pieces) if hub.keeps_log else []
    settings = hub.keyspace.settings
    for at in range(done):
        argv = requests[at]
        if size == 5:
            stream.append_field(ids[at], key + at, argv[3], argv[4], settings)
        else:
            stream.append(ids[at], key + at, argv[3:], settings)
    hub.encoded += lines
    database.accessed[name] = now_ms
    hub.dirty += done
    return done


def xadd_alike(
    hub: Hub, db: int, alike: Alike, now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XADD key * field value, one field of one stream, all or none. Twin: `xadd`.

    Test: tests/server/batching/test_hot_commands.py.
    """
    _, name, star, field = alike.words
    bulks = alike.bulks
    database = hub.keyspace.databases[db]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires or (hub.has_waiters and (db, name) in hub.waiters):
        return 0
    if star != b"*" or min(map(len, bulks)) < _LEAST_BULK:
        return 0
    key = max(now_ms << 64, stream.last + 1)
    done = len(bulks)
    ids = _next_ids(key, done)
    if ids is None:
        return 0
    stream.append_bulks(ids, key, field, bulks, hub.keyspace.settings)
    replies = [_BULK[len(entry_id)] + entry_id + b"\r\n" for entry_id in ids]
    output += replies
    database.accessed[name] = now_ms
    hub.dirty += done
    if hub.keeps_log:
        if hub.delivering is not None:
            end_deliveries(hub)
        behind = bulk(field)
        before = alike.opening[: -len(_ANY_ID) - len(behind)]
        lines = [before] * (4 * done)
        lines[1::4] = replies  # the id is a bulk string, here as there
        lines[2::4] = [behind] * done
        lines[3::4] = bulks
        hub.encoded += lines
    return done


def _next_ids(key: int, count: int) -> list[bytes] | None:
    """Return the texts of `count` ids from a key on, or None if its millisecond has fewer left."""
    seq = key & _SEQUENCE
    if seq + count > _SEQUENCE or key > MAX_KEY:  # the second: the last id there can be has been given
        return None
    stem = b"%d-" % (key >> 64)
    if seq + count <= len(_DIGITS):
        return [stem + text for text in _DIGITS[seq : seq + count]]
    return [b"%b%d" % (stem, seq + at) for at in range(count)]


def _log_of_appends(
    hub: Hub, requests: list[list[bytes]], done: int, output: list[bytes], pieces: list[bytes]
) -> list[bytes]:
    """Return the log lines of appends whose ids are at the end of `output`."""
    if hub.delivering is not None:
        end_deliveries(hub)
    chunk = _bytes_of(requests, done, pieces)
    parts = chunk.split(_ANY_ID)
    lines: list[bytes] = []
    if len(parts) == done + 1:  # no other word is a star
        lines = [b""] * (2 * done + 1)
        lines[::2] = parts
        lines[1::2] = output[-done:]  # the id is a bulk string, here as there
        return lines
    for argv, reply in zip(requests[:done], output[-done:], strict=True):
        lines += (b"*%d\r\n" % len(argv), *map(bulk, argv[:2]), reply, *map(bulk, argv[3:]))
    return lines


def _bytes_of(requests: list[list[bytes]], done: int, pieces: list[bytes]) -> bytes:
    """Return the bytes of the requests that were run, or no bytes if they are not known."""
    if len(pieces) == len(requests):
        return pieces[0] if done == 1 else b"".join(pieces[:done])
    return pieces[0] if pieces and done == len(requests) else b""


def xreadgroup(
    hub: Hub, db: int, requests: list[list[bytes]], now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XREADGROUP GROUP group consumer COUNT 1 [BLOCK ms] STREAMS key >.

    Twin: `group.xreadgroup`. Test: tests/server/batching/test_hot_commands.py.
    """
    first = requests[0]
    size = len(first)
    if size != 9 and not (size == 11 and first[6] == b"BLOCK" and first[7].isdigit() and len(first[7]) < 13):
        return 0
    if first[4:6] != _ONE or first[-1] != b">" or first[-3] != b"STREAMS" or first[1] != b"GROUP":
        return 0
    database = hub.keyspace.databases[db]
    name = first[-2]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires:
        return 0
    group = stream.groups.get(first[2])
    if group is None:
        return 0
    opening = (b"%%1\r\n%b*1\r\n*2\r\n" if protocol == 3 else b"*1\r\n*2\r\n%b*1\r\n*2\r\n") % bulk(name)
    log: list[bytes] | None = None
    claim, claim_end = _claim_of(name, first[2], now_ms)
    head, tail = first[:3], first[4:]
    done = 0
    most = _FIRST_RUN
    while done < len(requests):
        argv = requests[done]
        if argv[4:] != tail or argv[:3] != head:
            break
        consumer = group.consumers.get(argv[3])
        if consumer is None:
            break
        run = deliver_run(stream, group, consumer, now_ms, _alike(requests, done, most))
        if run is None:
            break
        consumer.seen_ms = now_ms
        ids = []
        for entry_id, fragment in zip(*run, strict=True):
            found = _BULK[len(entry_id)] + entry_id + b"\r\n"
            ids.append(found)
            output.append(opening + found + fragment)
        done += len(ids)
        if hub.keeps_log:
            log = log or _open_deliveries(hub, group, name, first[2])
            log += (b"*%d" % (11 + len(ids)), claim, bulk(argv[3]), b"$1\r\n0\r\n", *ids, claim_end)
        if len(output[-1]) >= _LONG_REPLY:  # large entries: let the session check its output
            break
        most *= 4
    if done:
        database.accessed[name] = now_ms
        hub.dirty += done
    return done


def _alike(requests: list[list[bytes]], at: int, most: int) -> int:
    """Count the requests from there on that are the same, up to a number."""
    first, end = requests[at], at + 1
    last = min(len(requests), at + most)
    while end < last and requests[end] == first:
        end += 1
    return end - at


def _open_deliveries(hub: Hub, group: Group, name: bytes, group_name: bytes) -> list[bytes]:
    """Return the log, ready for claims in a transaction that stays open while the same group is read."""
    if hub.delivering is None or hub.delivering[0] is not group:
        if hub.delivering is not None:
            end_deliveries(hub)
        hub.delivering = (group, name, group_name)
        hub.encoded.append(_MULTI)
    return hub.encoded


def _claim_of(name: bytes, group_name: bytes, now_ms: int) -> tuple[bytes, bytes]:
    """Return the parts of a logged claim before the consumer and after the ids."""
    start = b"\r\n$6\r\nXCLAIM\r\n" + bulk(name) + bulk(group_name)
    end = b"$4\r\nTIME\r\n%b$10\r\nRETRYCOUNT\r\n$1\r\n1\r\n$5\r\nFORCE\r\n$6\r\nJUSTID\r\n"
    return start, end % bulk(b"%d" % now_ms)


def end_deliveries(hub: Hub) -> None:
    """End the open transaction of deliveries by logging the position of the group."""
    assert hub.delivering is not None
    group, name, group_name = hub.delivering
    hub.delivering = None
    read = b"-1" if group.entries_read is None else b"%d" % group.entries_read
    opening = b"*7\r\n$6\r\nXGROUP\r\n$5\r\nSETID\r\n"
    words = (bulk(name), bulk(group_name), bulk(group.mark), b"$11\r\nENTRIESREAD\r\n", bulk(read))
    hub.encoded += (opening, *words, _EXEC)


def xack(
    hub: Hub, db: int, requests: list[list[bytes]], now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XACK key group id. Twin: `settle.xack`. Test: tests/server/batching/test_hot_commands.py."""
    if len(requests[0]) != 4:
        return 0
    word, name, group_name, _ = requests[0]
    database = hub.keyspace.databases[db]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires:
        return 0
    group = stream.groups.get(group_name)
    if group is None:
        return 0
    remove = group.pending.remove
    done = 0
    for argv in requests:
        # An id in another than its canonical form is not found here and takes the general path.
        if len(argv) != 4 or argv[2] != group_name or argv[1] != name or argv[0] != word or not remove(argv[3]):
            break
        done += 1
    if done:
        output += [b":1\r\n"] * done
        database.accessed[name] = now_ms
        hub.dirty += done
        if hub.keeps_log:
            if hub.delivering is not None:
                end_deliveries(hub)
            chunk = _bytes_of(requests, done, pieces)
            if chunk:
                hub.encoded.append(chunk)
            else:
                for argv in requests[:done]:
                    hub.encoded += (b"*4\r\n", *map(bulk, argv))
    return done


def xack_alike(
    hub: Hub, db: int, alike: Alike, now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XACK key group id, of one group. Twin: `xack`. Test: tests/server/batching/test_hot_commands.py."""
    _, name, group_name = alike.words
    bulks = alike.bulks
    database = hub.keyspace.databases[db]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires:
        return 0
    group = stream.groups.get(group_name)
    if group is None:
        return 0
    remove = group.pending.remove
    done = 0
    for text in bulks:
        if not remove(text[5:-2]):  # ids of ten bytes and more; shorter ones are not found and take the general path
            break
        done += 1
    if done:
        output += [b":1\r\n"] * done
        database.accessed[name] = now_ms
        hub.dirty += done
        if hub.keeps_log:
            if hub.delivering is not None:
                end_deliveries(hub)
            lines = [alike.opening] * (2 * done)
            lines[1::2] = bulks[:done]
            hub.encoded += lines
    return done


def xnack(
    hub: Hub, db: int, requests: list[list[bytes]], now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XNACK key group <SILENT|FAIL|FATAL> IDS 1 id. Twin: `settle.xnack`.

    Test: tests/server/batching/test_hot_commands.py.
    """
    start = requests[0][:6]
    found = _to_release(hub, db, start) if len(requests[0]) == 7 else None
    if found is None:
        return 0
    group, mode = found
    ids: list[bytes] = []
    for argv in requests:
        if len(argv) != 7 or argv[:6] != start:
            break
        ids.append(argv[6])
    done = group.pending.release_run(ids, mode.adjust)
    if done:
        _note_releases(hub, db, start[1], now_ms, done, output)
        if hub.keeps_log:
            chunk = _bytes_of(requests, done, pieces)
            if chunk:
                hub.encoded.append(chunk)
            else:
                opening = b"*7\r\n" + b"".join(map(bulk, start))
                for entry_id in ids[:done]:
                    hub.encoded += (opening, bulk(entry_id))
    return done


def xnack_alike(
    hub: Hub, db: int, alike: Alike, now_ms: int, protocol: int, output: list[bytes], pieces: list[bytes]
) -> int:
    """XNACK key group <SILENT|FAIL|FATAL> IDS 1 id, of one group and mode. Twin: `xnack`.

    Test: tests/server/batching/test_hot_commands.py.
    """
    found = _to_release(hub, db, alike.words)
    if found is None:
        return 0
    group, mode = found
    # The header of ids of ten to ninety-nine bytes has five; shorter ids are not found, and take the general path.
    done = group.pending.release_run([text[5:-2] for text in alike.bulks], mode.adjust)
    if done:
        _note_releases(hub, db, alike.words[1], now_ms, done, output)
        if hub.keeps_log:
            lines = [alike.opening] * (2 * done)
            lines[1::2] = alike.bulks[:done]
            hub.encoded += lines
    return done


def _to_release(hub: Hub, db: int, words: list[bytes]) -> tuple[Group, ReleaseMode] | None:
    """Return the group and mode of an XNACK that names one id, or None when the general path must run.

    Readers that wait for the key may want what is released: the general path serves them.
    """
    _, name, group_name, mode_name, ids_word, count = words
    database = hub.keyspace.databases[db]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires or (hub.has_waiters and (db, name) in hub.waiters):
        return None
    group = stream.groups.get(group_name)
    mode = RELEASE_MODES.get(mode_name)
    if group is None or mode is None or ids_word != b"IDS" or count != b"1":
        return None
    return group, mode


def _note_releases(hub: Hub, db: int, name: bytes, now_ms: int, done: int, output: list[bytes]) -> None:
    """Answer releases, count them, and end the deliveries that the log must have before them."""
    output += [b":1\r\n"] * done
    hub.keyspace.databases[db].accessed[name] = now_ms
    hub.dirty += done
    if hub.delivering is not None:
        end_deliveries(hub)


def bulk(word: bytes) -> bytes:
    """Encode a word as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


EXPRESS_ALIKE: Final[dict[bytes, tuple[str, ExpressAlike]]] = {
    b"XADD": ("xadd", xadd_alike),
    b"XACK": ("xack", xack_alike),
    b"XNACK": ("xnack", xnack_alike),
    b"xadd": ("xadd", xadd_alike),
    b"xack": ("xack", xack_alike),
    b"xnack": ("xnack", xnack_alike),
}

# By the name as clients write it; other spellings take the general path.
EXPRESS: Final[dict[bytes, tuple[str, Express]]] = {
    b"XADD": ("xadd", xadd),
    b"XREADGROUP": ("xreadgroup", xreadgroup),
    b"XACK": ("xack", xack),
    b"XNACK": ("xnack", xnack),
    b"xadd": ("xadd", xadd),
    b"xreadgroup": ("xreadgroup", xreadgroup),
    b"xack": ("xack", xack),
    b"xnack": ("xnack", xnack),
}
