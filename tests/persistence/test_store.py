"""A store: what it finds, when it writes, and what the administrator can ask of it."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import CorruptFile, PersistenceError
from millstream.persistence.aof.manifest import parse_manifest
from millstream.persistence.store import Store
from millstream.server.core.hub import Hub
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import DIRECTORY, LOGS, NOW_MS, Broker, without_tie_order
from tests.support.wire import pack

MANIFEST = LOGS / "appendonly.aof.manifest"
INCREMENT = LOGS / "appendonly.aof.1.incr.aof"


def manifest(files: MemoryFiles) -> list[str]:
    return files.content(MANIFEST).decode().splitlines()


# Opening


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_is_opened_again_has_its_state(policy: str, seed: int) -> None:
    broker = Broker(appendfsync=policy)
    broker.run_program(seed)
    assert broker.reopened().state == broker.state


def test_a_broker_can_be_closed_and_opened_many_times() -> None:
    files = MemoryFiles()
    for number in range(5):
        broker = Broker(files)
        assert broker.opened.keys == number
        broker(f"SET k{number} v")
        broker.store.close()
        broker("SET lost v")
    assert Broker(files)("DBSIZE") == 5


def test_opening_says_what_was_found() -> None:
    broker = Broker()
    assert str(broker.opened) == "nothing was there yet"
    broker("SET a 1")
    broker("SET b 1")
    opened = broker.reopened().opened
    assert (opened.source, opened.keys, opened.commands) == ("log", 2, 3)
    assert str(opened).startswith("2 keys from the log, 3 commands replayed")


def test_a_torn_end_is_cut_off_for_good() -> None:
    broker = Broker()
    broker("SET a 1")
    whole = broker.log()
    broker.files.put(INCREMENT, whole + b"*3\r\n$3\r\nSET\r\n$1")
    again = broker.reopened()
    assert again.opened.cut_bytes == 15
    assert broker.files.content(INCREMENT) == whole
    again("SET b 2")
    assert again.reopened()("DBSIZE") == 2


def test_a_transaction_is_there_whole_or_not_at_all() -> None:
    broker = Broker()
    peer = broker.peer()
    peer("SET before 1")
    start = len(broker.log())
    for request in ("MULTI", "SET a 1", "SELECT 3", "XADD s 1-1 f v", "SELECT 0", "INCR n", "EXEC"):
        peer(request)
    for size in range(start, len(broker.log()) + 1):
        files = broker.files.copy()
        files.put(INCREMENT, broker.log()[:size])
        found = broker.reopened(files).state
        assert len(found) == (4 if size == len(broker.log()) else 1)


def test_damage_before_the_end_is_refused() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("SET b 1")
    data = broker.log()
    broken = data.replace(b"$1\r\na", b"$7\r\na")
    broker.files.put(INCREMENT, broken)
    with pytest.raises(CorruptFile) as corrupt:
        broker.reopened()
    assert corrupt.value.path == INCREMENT
    assert corrupt.value.at == data.index(b"*3")
    assert broker.files.content(INCREMENT) == broken


def test_a_torn_file_that_others_follow_is_damaged() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("BGREWRITEAOF")
    broker("SET b 1")
    broker.files.put(INCREMENT, broker.files.content(INCREMENT)[:-3])
    with pytest.raises(CorruptFile) as corrupt:
        broker.reopened()
    assert corrupt.value.path == INCREMENT


def test_a_torn_file_that_only_empty_ones_follow_is_the_last() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("BGREWRITEAOF")
    broker.files.put(INCREMENT, broker.files.content(INCREMENT)[:-3])
    assert broker.reopened().opened.keys == 0


def test_a_file_that_is_missing_is_named() -> None:
    broker = Broker()
    broker.files.remove(INCREMENT)
    with pytest.raises(CorruptFile, match=r"appendonly\.aof\.1\.incr\.aof"):
        broker.reopened()


def test_a_manifest_that_makes_no_sense_is_refused() -> None:
    broker = Broker()
    broker.files.put(MANIFEST, b"nonsense\n")
    with pytest.raises(CorruptFile, match="line 1"):
        broker.reopened()


def test_the_single_file_of_an_old_redis_becomes_the_base() -> None:
    files = MemoryFiles()
    files.put(DIRECTORY / "appendonly.aof", pack([b"SET", b"a", b"1"]))
    broker = Broker(files)
    assert broker("GET a") == b"1"
    broker("SET b 2")
    assert manifest(files) == ["file appendonly.aof seq 1 type b", "file appendonly.aof.1.incr.aof seq 1 type i"]
    assert broker.reopened()("DBSIZE") == 2
    broker = broker.reopened()
    broker("BGREWRITEAOF")
    broker.store.tick()
    assert broker.reopened()("DBSIZE") == 2


def test_files_have_the_names_that_the_settings_give_them() -> None:
    broker = Broker(appenddirname="logs", appendfilename="my log")
    broker("SET a 1")
    names = broker.files.names(DIRECTORY / "logs")
    assert names == ["my log.1.base.rdb", "my log.1.incr.aof", "my log.manifest"]
    assert broker.reopened(appenddirname="logs", appendfilename="my log")("GET a") == b"1"


def test_a_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    first = Store(Hub(settings={"appendonly": "yes"}), tmp_path)
    first.open()
    with pytest.raises(PersistenceError, match="in use"):
        Store(Hub(settings={"appendonly": "yes"}), tmp_path).open()
    first.close()
    second = Store(Hub(settings={"appendonly": "yes"}), tmp_path)
    second.open()
    second.close()


# Idempotent production, whose records expire without a trace in the log


@pytest.mark.parametrize("rewrites", [False, True])
def test_an_idempotent_append_after_its_record_has_expired_is_kept(rewrites: bool) -> None:
    broker = Broker()
    broker("XADD s IDMP p one * n 1")
    broker("XCFGSET s IDMP-DURATION 1")
    broker("XADD s IDMP p one * n 2")
    if rewrites:
        broker("BGREWRITEAOF")
        broker.store.tick()
    broker.clock.advance(5000)
    broker.hub.tick()
    broker("XADD s IDMP p one * n 3")
    assert broker("XLEN s") == 3
    again = broker.reopened()
    assert again.state == broker.state
    duplicate = again("XADD s IDMP p one * n 4")
    assert again("XLEN s") == 3
    assert duplicate == broker("XADD s IDMP p one * n 4")


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_repeated_append_is_not_appended_by_a_replay_long_after(preamble: str) -> None:
    broker = Broker(aof_use_rdb_preamble=preamble)
    broker("XCFGSET s IDMP-DURATION 1")
    first = broker("XADD s IDMP p one * n 1")
    broker("XADD s * n 2")
    broker(["XDEL", "s", first])  # type: ignore[list-item]
    broker.clock.advance(1500)  # expired, and not swept yet
    broker("BGREWRITEAOF")
    broker.store.tick()
    assert broker("XADD s IDMP p one * n 1") == first
    broker.clock.advance(1_000_000)
    assert broker.reopened()("XLEN s") == 1


# When it is written


def test_with_always_a_reply_comes_after_one_sync() -> None:
    broker = Broker(appendfsync="always")
    peer = broker.peer()
    del broker.files.log[:]
    received: list[bytes] = []
    broker.files.before_sync = lambda: received.append(peer.read())
    assert peer.raw(pack([b"SET", b"a", b"1"]) * 5) == b"+OK\r\n" * 5
    assert received == [b""]
    assert [what for what, _ in broker.files.log] == ["write", "sync"]


def test_all_that_a_turn_of_a_loop_brings_is_synced_at_once() -> None:
    broker = Broker(appendfsync="always")
    peers = [broker.peer() for _ in range(10)]
    del broker.files.log[:]
    broker.hub.turn_end = lambda: True
    assert [peer("INCR n") for peer in peers] == [b""] * 10
    assert broker.files.log == []
    broker.hub.send_output()
    assert [peer.read() for peer in peers] == [b":%d\r\n" % number for number in range(1, 11)]
    assert [what for what, _ in broker.files.log] == ["write", "sync"]


def test_a_direct_call_does_not_wait_for_the_end_of_a_turn() -> None:
    broker = Broker(appendfsync="always")
    broker.hub.turn_end = lambda: True
    peer = broker.peer()
    assert peer("SET a 1") == b""
    assert broker("SET b 1") == b"OK"
    assert peer.read() == b"+OK\r\n"
    assert broker.reopened()("DBSIZE") == 2


def test_a_read_neither_writes_nor_syncs() -> None:
    broker = Broker(appendfsync="always")
    broker("SET a 1")
    del broker.files.log[:]
    broker("GET a")
    assert broker.files.log == []


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_otherwise_a_reply_comes_after_a_write(policy: str) -> None:
    broker = Broker(appendfsync=policy)
    del broker.files.log[:]
    broker("SET a 1")
    assert [what for what, _ in broker.files.log] == ["write"]


def test_with_everysec_a_tick_syncs_what_was_written() -> None:
    broker = Broker(appendfsync="everysec")
    broker("SET a 1")
    del broker.files.log[:]
    broker.store.tick()
    broker.store.tick()
    assert [what for what, _ in broker.files.log] == ["sync"]


def test_with_no_nothing_is_synced_until_the_end() -> None:
    broker = Broker(appendfsync="no")
    broker("SET a 1")
    del broker.files.log[:]
    broker.store.tick()
    assert broker.files.log == []


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_a_reply_comes_after_a_write_although_a_sync_runs(policy: str) -> None:
    broker = Broker(appendfsync="everysec")
    broker("SET a 1")
    written: list[int] = []

    def meanwhile() -> None:
        broker(f"CONFIG SET appendfsync {policy}")
        for value in range(3):
            broker(f"SET b {value}")
            written.append(broker.log().count(b"SET"))

    broker.files.before_sync = meanwhile
    broker.store.tick()
    assert written == [2, 3, 4]
    assert broker.info("aof_buffer_length") == 0
    assert broker.info("aof_delayed_fsync") == 3


def test_an_expired_key_is_logged_as_deleted() -> None:
    broker = Broker()
    broker("SET a 1 PX 10")
    broker.clock.advance(11)
    broker.hub.tick()
    assert broker.log().endswith(pack([b"DEL", b"a"]))


def test_a_blocked_reader_is_answered_after_its_delivery_is_synced() -> None:
    broker = Broker()
    reader, writer = broker.peer(), broker.peer()
    writer("XGROUP CREATE s g $ MKSTREAM")
    reader("XREADGROUP GROUP g c BLOCK 0 STREAMS s >")
    seen: list[bytes] = []
    broker.files.before_sync = lambda: seen.append(reader.read() + writer.read())
    writer("XADD s * f v")
    assert seen == [b""]
    assert b"XCLAIM" in broker.log()
    assert reader.read().startswith(b"*1\r\n")


# Rewriting


@pytest.mark.parametrize("form", ["yes", "no"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rewritten_log_gives_the_same_state(form: str, seed: int) -> None:
    broker = Broker(aof_use_rdb_preamble=form)
    for number in range(60):
        broker(f"XADD big * n {number}")
    broker("XGROUP CREATE big g 0")
    broker("XREADGROUP GROUP g c COUNT 20 STREAMS big >")
    assert broker("BGREWRITEAOF") == b"Background append only file rewriting started"
    broker.run_program(seed)
    broker.store.tick()
    broker("XACK big g 0-1")
    ending = "rdb" if form == "yes" else "aof"
    assert manifest(broker.files) == [
        f"file appendonly.aof.2.base.{ending} seq 2 type b",
        "file appendonly.aof.2.incr.aof seq 2 type i",
    ]
    assert without_tie_order(broker.reopened().state) == without_tie_order(broker.state)


def test_commands_during_a_rewrite_go_to_a_new_file_that_the_manifest_names() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("BGREWRITEAOF")
    assert broker.info("aof_rewrite_in_progress") == 1
    assert broker("BGREWRITEAOF") == "ERR Background append only file rewriting already in progress"
    broker("SET b 1")
    parsed = parse_manifest("\n".join(manifest(broker.files)))
    assert [file.seq for file in parsed.incrs] == [1, 2]
    assert broker.reopened(broker.files.copy())("DBSIZE") == 2
    broker.store.tick()
    assert broker.info("aof_rewrite_in_progress") == 0
    assert broker.increments() == ["appendonly.aof.2.incr.aof"]
    assert broker.reopened()("DBSIZE") == 2


def test_a_log_that_has_doubled_is_rewritten() -> None:
    broker = Broker(auto_aof_rewrite_min_size="2000")
    for number in range(70):
        broker(f"SET a {number}")
        broker.store.tick()
    broker.store.tick()
    assert broker.info("aof_rewrites") == 1
    assert len(broker.log()) < 600
    assert broker.reopened()("GET a") == b"69"


def test_growth_is_not_looked_at_when_the_percentage_is_0() -> None:
    broker = Broker(auto_aof_rewrite_min_size="100", auto_aof_rewrite_percentage="0")
    for number in range(70):
        broker(f"SET a {number}")
    broker.store.tick()
    assert broker.info("aof_rewrites") == 0


def test_a_rewrite_inside_a_transaction_is_done_afterwards() -> None:
    broker = Broker()
    peer = broker.peer()
    peer("MULTI")
    peer("BGREWRITEAOF")
    peer("BGSAVE")
    assert peer("EXEC") == (
        b"*2\r\n+Background append only file rewriting scheduled\r\n+Background saving scheduled\r\n"
    )
    assert broker.info("aof_rewrite_scheduled") == 1
    for _ in range(4):
        broker.store.tick()
    assert (broker.info("aof_rewrites"), broker.info("rdb_saves")) == (1, 1)


def test_files_that_were_never_finished_are_removed() -> None:
    broker = Broker()
    broker("SET a 1")
    for path in (DIRECTORY / "temp-1-dump.rdb", LOGS / "temp-2-appendonly.aof.9.base.rdb"):
        broker.files.put(path, b"half")
    broker.files.put(DIRECTORY / "mine", b"whole")
    again = broker.reopened()
    assert again.files.names(DIRECTORY) == ["appendonlydir", "mine"]
    assert not [name for name in again.files.names(LOGS) if name.startswith("temp-")]


def test_a_rewrite_that_is_given_up_does_not_count() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("BGREWRITEAOF")
    broker("CONFIG SET appendonly no")
    assert broker.info("aof_rewrite_in_progress") == 0
    broker("CONFIG SET appendonly yes")
    assert broker.info("aof_rewrite_in_progress") == 1  # another one
    broker.store.tick()
    assert broker.info("aof_rewrite_in_progress") == 0
    broker("SET b 1")
    assert broker.reopened()("DBSIZE") == 2


# Snapshots


def test_a_snapshot_is_loaded_when_there_is_no_log() -> None:
    broker = Broker(appendonly="no")
    broker.run_program(7)
    assert broker("SAVE") == b"OK"
    again = broker.reopened(appendonly="no")
    assert again.opened.source == "snapshot"
    assert without_tie_order(again.state) == without_tie_order(broker.state)


def test_a_log_begins_with_the_snapshot_that_was_there() -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    broker("SAVE")
    logged = broker.reopened()
    assert logged("GET a") == b"1"
    assert logged.reopened().opened.source == "log"
    assert logged.reopened()("GET a") == b"1"


def test_a_background_save_has_what_was_there_when_it_began() -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    assert broker("BGSAVE") == b"Background saving started"
    assert broker("BGSAVE") == "ERR Background save already in progress"
    assert broker("SAVE") == "ERR Background save already in progress"
    broker("SET a 2")
    broker.clock.advance(5000)
    broker.store.tick()
    assert broker("LASTSAVE") == NOW_MS // 1000 + 5
    assert broker.info("rdb_changes_since_last_save") == 1
    assert broker.info("rdb_last_bgsave_time_sec") == 5
    assert broker.reopened(appendonly="no")("GET a") == b"1"


def test_a_save_point_begins_a_snapshot() -> None:
    broker = Broker(appendonly="no", save="60 2")
    broker("SET a 1")
    broker.clock.advance(61_000)
    broker.store.tick()
    assert broker.info("rdb_bgsave_in_progress") == 0
    broker("SET a 2")
    broker.store.tick()
    assert broker.info("rdb_bgsave_in_progress") == 1
    broker.store.tick()
    assert broker.info("rdb_saves") == 1
    assert broker.info("rdb_changes_since_last_save") == 0


def test_one_thing_at_a_time_is_written_in_the_background() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("BGREWRITEAOF")
    assert str(broker("BGSAVE")).startswith("ERR Another child process is active (AOF?)")
    assert broker("BGSAVE SCHEDULE") == b"Background saving scheduled"
    assert broker("BGSAVE FOO") == "ERR syntax error"
    broker.store.tick()
    assert broker("BGREWRITEAOF") == b"Background append only file rewriting scheduled"
    for _ in range(3):
        broker.store.tick()
    assert (broker.info("aof_rewrites"), broker.info("rdb_saves")) == (2, 1)


# Settings and commands


def test_the_log_can_be_turned_on_and_off() -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    assert broker.hub.config.is_on("appendonly") is False
    broker("CONFIG SET appendonly yes")
    broker("SET b 2")
    broker.store.tick()
    assert broker.reopened(broker.files.copy())("DBSIZE") == 2
    broker("CONFIG SET appendonly no")
    broker("SET c 3")
    broker("DEL a")
    assert broker.reopened(broker.files.copy())("DBSIZE") == 2
    broker("CONFIG SET appendonly yes")
    broker("SET d 4")
    # until its base is there, a crash leaves what there was before, and no mixture
    assert sorted(broker.reopened(broker.files.copy())("KEYS *")) == [b"a", b"b"]  # type: ignore[call-overload]
    broker.store.tick()
    assert sorted(broker.reopened()("KEYS *")) == [b"b", b"c", b"d"]  # type: ignore[call-overload]


def test_a_log_that_cannot_be_turned_on_stays_off() -> None:
    broker = Broker(appendonly="no")
    broker.files.broken["create"] = errno.EROFS
    assert "Unable to turn on AOF" in str(broker("CONFIG SET appendonly yes"))
    assert not broker.hub.config.is_on("appendonly")
    broker("SET a 1")
    broker.store.tick()
    assert not broker.files.exists(MANIFEST)


def test_turning_the_log_on_waits_for_nothing() -> None:
    """Its base is written in the background, and meanwhile everybody is served."""
    files, goes_on = MemoryFiles(), threading.Event()
    hub = Hub(settings={"appendfsync": "always"})
    store = hub.store = Store(hub, DIRECTORY, files=files)
    store.open()
    hub.run([b"SET", b"a", b"1"])

    def hold_the_base() -> None:
        if threading.current_thread().name == "millstream-dump":
            assert goes_on.wait(60)

    files.before_sync = hold_the_base
    hub.run([b"CONFIG", b"SET", b"appendonly", b"yes"])
    hub.run([b"SET", b"b", b"2"])
    assert dict(store.info())["aof_rewrite_in_progress"] == 1
    assert not files.exists(MANIFEST)
    goes_on.set()
    deadline = time.monotonic() + 60
    while dict(store.info())["aof_rewrite_in_progress"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert Broker(files.copy())("DBSIZE") == 2
    store.close()


def test_a_first_base_that_cannot_be_written_is_tried_again() -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    broker.files.free = 0
    assert broker("CONFIG SET appendonly yes") == b"OK"
    for _ in range(3):
        broker.store.tick()
        assert (broker.info("aof_last_bgrewrite_status"), broker.info("aof_rewrite_scheduled")) == ("err", 0)
        assert broker.info("aof_rewrite_in_progress") == 1  # again
    broker.files.free = None
    broker("SET b 2")
    broker.store.tick()
    assert (broker.info("aof_last_bgrewrite_status"), broker.info("aof_rewrite_in_progress")) == ("ok", 0)
    assert broker.reopened()("DBSIZE") == 2
    assert [name for name in broker.files.names(LOGS) if ".incr." in name] == broker.increments()[-1:]


def test_closing_finishes_the_first_base() -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    broker("CONFIG SET appendonly yes")
    broker("SET b 2")
    broker.store.close()
    assert broker.reopened()("DBSIZE") == 2


def test_a_log_that_is_turned_on_during_a_snapshot_waits_for_it() -> None:
    broker = Broker(appendonly="no")
    broker("SET a 1")
    broker("BGSAVE")
    broker("CONFIG SET appendonly yes")
    broker("SET b 2")
    assert (broker.info("rdb_bgsave_in_progress"), broker.info("aof_rewrite_scheduled")) == (1, 1)
    for _ in range(2):
        broker.store.tick()
    assert (broker.info("rdb_saves"), broker.info("aof_rewrite_in_progress")) == (1, 0)
    assert broker.reopened(broker.files.copy())("DBSIZE") == 2
    assert broker.reopened(appendonly="no")("DBSIZE") == 1


def test_the_sync_policy_can_be_changed() -> None:
    broker = Broker(appendfsync="no")
    broker("SET a 1")
    broker("CONFIG SET appendfsync always")
    del broker.files.log[:]
    broker("SET a 2")
    assert [what for what, _ in broker.files.log] == ["write", "sync"]


def test_waitaof_waits_for_the_sync() -> None:
    broker = Broker(appendfsync="everysec")
    broker("SET a 1")
    del broker.files.log[:]
    assert broker("WAITAOF 1 0 0") == [1, 0]
    assert [what for what, _ in broker.files.log] == ["sync"]


@pytest.mark.parametrize("command", ["DEBUG LOADAOF", "DEBUG RELOAD"])
def test_state_survives_being_loaded_again(command: str) -> None:
    broker = Broker(enable_debug_command="yes")
    broker.run_program(11)
    before = broker.state
    assert broker(command) == b"OK"
    assert without_tie_order(broker.state) == without_tie_order(before)
    broker("SET after 1")
    assert broker.reopened()("GET after") == b"1"


def test_shutdown_brings_everything_to_the_disk_and_closes_connections() -> None:
    broker = Broker(appendfsync="no")
    peer, other = broker.peer(), broker.peer()
    ended: list[bool] = []
    broker.hub.on_shutdown = lambda: ended.append(True)
    peer("SET a 1")
    assert peer("SHUTDOWN FOO") == b"-ERR syntax error\r\n"
    assert peer("SHUTDOWN SAVE NOSAVE") == b"-ERR syntax error\r\n"
    assert peer("SHUTDOWN ABORT") == b"-ERR No shutdown in progress.\r\n"
    assert peer("SHUTDOWN") == b""
    assert peer.is_cut_off
    assert other.is_cut_off
    assert ended == [True]
    broker.files.power_cut()
    assert broker.reopened()("GET a") == b"1"


def test_shutdown_saves_a_snapshot_if_there_are_save_points() -> None:
    broker = Broker(appendonly="no", save="3600 1")
    broker("SET a 1")
    broker.peer()("SHUTDOWN NOSAVE")
    assert broker.files.names(DIRECTORY) == []
    broker.peer()("SHUTDOWN")
    assert broker.files.names(DIRECTORY) == ["dump.rdb"]


def test_a_broker_without_a_store_says_so() -> None:
    hub = Hub()
    for command in (b"SAVE", b"BGSAVE", b"BGREWRITEAOF"):
        with pytest.raises(Exception, match="in memory only"):
            hub.run([command])
    assert hub.run([b"LASTSAVE"]) == hub.started_ms // 1000


def test_info_tells_the_fields_of_redis_in_order() -> None:
    broker = Broker()
    broker("SET a 1")
    text = bytes(broker("INFO persistence")).decode()  # type: ignore[call-overload]
    fields = dict(line.split(":") for line in text.splitlines()[1:])
    assert fields["aof_enabled"] == "1"
    assert fields["aof_last_write_status"] == "ok"
    assert int(fields["aof_current_size"]) == len(broker.log()) + broker.files.size(LOGS / "appendonly.aof.1.base.rdb")
    assert list(fields)[-6:] == [
        "aof_current_size",
        "aof_base_size",
        "aof_pending_rewrite",
        "aof_buffer_length",
        "aof_pending_bio_fsync",
        "aof_delayed_fsync",
    ]


# With threads and a real disk


def test_a_store_works_by_itself(tmp_path: Path) -> None:
    hub = Hub(settings={"appendonly": "yes", "appendfsync": "everysec"})
    store = hub.store = Store(hub, tmp_path)
    store.open()
    for number in range(500):
        hub.run([b"XADD", b"s", b"*", b"n", b"%d" % number])
    hub.run([b"BGREWRITEAOF"])
    for number in range(500):
        hub.run([b"XADD", b"s", b"*", b"n", b"%d" % number])
    _wait_until(lambda: dict(store.info())["aof_rewrite_in_progress"] == 0)
    hub.run([b"BGSAVE"])
    _wait_until(lambda: dict(store.info())["rdb_bgsave_in_progress"] == 0)
    _wait_until(lambda: store._journal is not None and store._journal.is_synced)
    info = dict(store.info())
    assert (info["aof_last_bgrewrite_status"], info["rdb_saves"]) == ("ok", 1)
    store.close()
    again = Hub(settings={"appendonly": "yes"})
    other = Store(again, tmp_path)
    other.open()
    assert again.run([b"XLEN", b"s"]) == 1000
    other.close()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("temp-")]


def _wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
