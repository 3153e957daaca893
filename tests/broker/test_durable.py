"""A broker that is kept in a directory: what it answered is there again, and nobody else touches it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import Broker, CommandError, ConfigError, ManualClock
from millstream.errors import CorruptFile, PersistenceError, WriteFailed
from millstream.persistence.aof.check import check
from tests.broker.test_broker import perform, random_call
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import state_of
from tests.persistence.test_crash import Found, is_as_answered, run_and_kill

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("MILLSTREAM_KILLS", "10")) // 2
WAIT_S = 60
LIBRARY = "#!lua name=lib\nredis.register_function('twice', function(keys, args) return args[1] * 2 end)"


def increment(directory: Path) -> Path:
    """The file that is being appended to."""
    return max((directory / "appendonlydir").glob("*.incr.aof"))


def durable(files: MemoryFiles) -> bytes:
    """All bytes that a power cut would leave."""
    return b"".join(content.synced for content in files._durable.values())


def program(source: str, *arguments: object) -> subprocess.Popen[str]:
    """A program of its own, whose output can be read."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", source, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )


# What is kept


def test_everything_is_there_again_after_a_close(tmp_path: Path) -> None:
    with Broker(tmp_path / "new" / "data") as broker:
        kept = broker.xadd("s", {"a": 1})
        done = broker.xadd("s", {"a": 2})
        released = broker.xadd("s", {"a": 3})
        broker.xgroup_create("s", "g", "0")
        broker.xreadgroup("g", "c", {"s": ">"})
        broker.xack("s", "g", done or b"")
        broker.xnack("s", "g", released or b"")
        broker.execute("SET", "text", "v")
        broker.client().hset("hash", "f", "v")
        rows = [(row.id, row.consumer, row.delivery_count) for row in broker.xpending_range("s", "g")]
        assert rows == [(kept, b"c", 1), (released, None, 1)]
    with Broker(tmp_path / "new" / "data") as broker:
        assert [entry.id for entry in broker.xrange("s")] == [kept, done, released]
        assert [(row.id, row.consumer, row.delivery_count) for row in broker.xpending_range("s", "g")] == rows
        assert broker.xinfo_groups("s")[0][b"entries-read"] == 3
        assert broker.execute("GET", "text") == b"v"
        assert broker.client().hgetall("hash") == {b"f": b"v"}


@pytest.mark.parametrize("seed", range(8))
def test_what_direct_calls_did_is_there_again_whatever_they_were(seed: int, tmp_path: Path) -> None:
    clock, rng = ManualClock(), random.Random(seed)
    broker = Broker(tmp_path, clock=clock, appendfsync="no")
    broker.xgroup_create("s", "g", "0", mkstream=True)
    for _ in range(300):
        clock.advance(rng.randrange(3))
        call = random_call(rng)
        if call[0] != "xreadgroup" or "0" not in call[1][2].values():  # type: ignore[attr-defined]
            perform(broker, call)  # a history read moves nothing that is kept
    before = state_of(broker._hub.keyspace)
    broker.close()
    with Broker(tmp_path, clock=clock) as again:
        assert state_of(again._hub.keyspace) == before


@pytest.mark.parametrize("seed", range(12))
def test_the_short_way_of_a_hot_call_logs_what_the_long_way_does(seed: int) -> None:
    logs = []
    for is_long in (False, True):
        files, clock, rng = MemoryFiles(), ManualClock(), random.Random(seed)
        with Broker("/data", clock=clock, appendfsync="no", files=files) as broker:
            if is_long:  # somebody might have to be told
                broker.execute("CONFIG", "SET", "notify-keyspace-events", "Kt")
            assert broker._hub.is_told is is_long
            broker.xgroup_create("s", "g", "0", mkstream=True)
            for _ in range(300):
                clock.advance(rng.randrange(3))
                perform(broker, random_call(rng))
                if rng.randrange(4) == 0:
                    work_on_one(broker)
        logs.append(files.content(Path("/data/appendonlydir/appendonly.aof.1.incr.aof")))
    assert logs[0] == logs[1]
    assert all(word in logs[0] for word in (b"XADD", b"XCLAIM", b"XACK"))


def work_on_one(broker: Broker) -> None:
    """What a worker does all day."""
    broker.xadd("s", {"f": "v"})
    if not broker.xinfo_groups("s"):
        broker.xgroup_create("s", "g", "0")
    for entry in broker.xreadgroup("g", "a", {"s": ">"}, 1).get(b"s", []):
        assert broker.xack("s", "g", entry.id) == 1


def test_each_database_and_the_function_libraries_are_kept(tmp_path: Path) -> None:
    with Broker(tmp_path, db=3) as broker:
        broker.xadd("s", {"a": 1})
        broker.client(db=5).set("k", "v")
        broker.client().function_load(LIBRARY)
    with Broker(tmp_path, db=3) as broker:
        assert broker.xlen("s") == 1
        assert broker.client().dbsize() == broker.client(db=5).dbsize() == 1
        assert broker.client(db=0).dbsize() == 0
        assert broker.execute("FCALL", "twice", 0, 21) == 42
        broker.execute("BGREWRITEAOF")
        wait_until(lambda: b"aof_rewrite_in_progress:0" in broker.execute("INFO", "persistence"))
    with Broker(tmp_path, db=3) as broker:
        assert broker.execute("FCALL", "twice", 0, 21) == 42
        assert broker.xlen("s") == 1


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


def test_a_kept_broker_can_be_served(tmp_path: Path) -> None:
    with Broker(tmp_path, appendfsync="always") as broker:
        with broker.serve_in_background() as server, redis.Redis(port=server.port) as client:
            entry_id = client.xadd("s", {"a": 1})
            client.xgroup_create("s", "g", "0")
            client.xreadgroup("g", "c", {"s": ">"})
            assert broker.xlen("s") == 1
        broker.xadd("s", {"a": 2})
    with Broker(tmp_path) as broker:
        assert broker.xlen("s") == 2
        assert [row.id for row in broker.xpending_range("s", "g")] == [entry_id]


def test_the_log_is_rewritten_by_itself_when_it_grows(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.execute("CONFIG", "SET", "auto-aof-rewrite-min-size", 10_000, "auto-aof-rewrite-percentage", 10)
        for _ in range(300):
            broker.xadd("s", {"f": "v" * 50}, maxlen=3)
        wait_until(lambda: increment(tmp_path).name != "appendonly.aof.1.incr.aof")
        wait_until(lambda: b"aof_rewrite_in_progress:0" in broker.execute("INFO", "persistence"))
        # Perhaps more than once: as long as one is under way, files of two generations are there, and some just not.
        wait_until(lambda: sum(map(size, (tmp_path / "appendonlydir").iterdir())) < 5000)
    with Broker(tmp_path) as broker:
        assert broker.xlen("s") == 3


def size(file: Path) -> int:
    """The bytes of a file; one that has just been deleted has none."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


# When it is safe


def test_with_always_a_call_returns_only_after_its_sync() -> None:
    files = MemoryFiles()
    broker = Broker("/data", appendfsync="always", files=files)
    client: Any = broker.client()

    async def add_in_a_loop() -> Any:
        async with broker.aclient() as own:
            return await own.xadd("s", {"a": 1})

    ways: list[Callable[[], Any]] = [
        lambda: broker.xadd("s", {"a": 1}),
        lambda: broker.xadd("s", {"a": 1}, maxlen=100),
        lambda: client.xadd("s", {"a": 1}),
        lambda: client.pipeline().xadd("s", {"a": 1}).execute()[0],
        lambda: client.pipeline(transaction=False).xadd("s", {"a": 1}).execute()[0],
        lambda: asyncio.run(add_in_a_loop()),
    ]
    for way in ways:
        entry_id = way()
        assert entry_id in durable(files), way
    broker.xgroup_create("s", "g", "0")
    for read in (1, 2):
        (entry,) = broker.xreadgroup("g", f"c{read}", {"s": ">"}, 1)[b"s"]
        assert durable(files).count(b"c%d\r\n$1\r\n0\r\n$%d\r\n%b" % (read, len(entry.id), entry.id)) == 1
    assert broker.xack("s", "g", entry.id) == 1
    assert b"XACK\r\n$1\r\ns\r\n$1\r\ng\r\n$%d\r\n%b\r\n" % (len(entry.id), entry.id) in durable(files)
    broker.close()


def test_with_always_a_blocked_read_returns_only_after_its_sync() -> None:
    files = MemoryFiles()
    with Broker("/data", appendfsync="always", files=files) as broker:
        broker.xgroup_create("s", "g", "$", mkstream=True)
        seen: list[bool] = []

        def read() -> None:
            (entry,) = broker.xreadgroup("g", "c", {"s": ">"}, block_ms=10_000)[b"s"]
            seen.append(b"XCLAIM" in durable(files) and entry.id in durable(files))

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: b"blocked_clients:1" in broker.execute("INFO", "clients"))
        broker.xadd("s", {"a": 1})
        reader.join(WAIT_S)
        assert seen == [True]


@pytest.mark.parametrize("tail", [0.0, 0.3, 0.77, 1.0])
def test_with_everysec_a_power_cut_leaves_a_beginning_of_what_was_done(tail: float) -> None:
    files = MemoryFiles()
    broker = Broker("/data", appendfsync="everysec", files=files)
    added = [broker.xadd("s", {"n": index}) for index in range(40)]
    store = broker._hub.store
    assert store is not None
    store.tick()  # a second has gone by
    added += [broker.xadd("s", {"n": index}) for index in range(40)]
    store.abandon()  # the machine is off
    files.power_cut(tail)
    with Broker("/data", files=files) as again:
        found = [entry.id for entry in again.xrange("s")]
        assert len(found) >= 40
        assert found == added[: len(found)]


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_everything_that_was_answered_is_there_after_a_kill(policy: str, tmp_path: Path) -> None:
    """The system outlives the process, and what is answered has been written: everysec loses nothing either."""
    choose = random.Random(policy)
    added: list[bytes] = []
    last: dict[bytes, str] = {}  # entry to what was last answered about it
    for round_ in range(max(2, KILLS)):
        said = run_and_kill(tmp_path, policy, round_, choose.uniform(0.02, 0.3), "tests.support.kept_child")
        assert said
        for what, text in said:
            if what == "added":
                added.append(text.encode())
            else:
                last[text.encode()] = what
        found = Found(tmp_path)
        assert set(added) <= found.entries
        # The last thing the process did may not have been said any more: one entry may be a step further.
        further = [entry_id for entry_id, what in last.items() if not is_as_answered(found, entry_id, what)]
        assert len(further) <= 1, further
        for entry_id in further:
            assert last[entry_id] == "claimed"
            last[entry_id] = "released" if entry_id in found.released else "acked"


def test_a_program_that_ends_without_closing_has_synced_everything(tmp_path: Path) -> None:
    source = """if True:
        import atexit
        from tests.persistence.memory_files import MemoryFiles
        files = MemoryFiles()
        atexit.register(lambda: print(b"marker" in b"".join(c.synced for c in files._durable.values())))
        from millstream import Broker
        broker = Broker("/data", files=files)
        broker.xadd("s", {"a": "marker"})
        print(b"marker" in b"".join(c.synced for c in files._durable.values()), flush=True)
    """
    with program(source) as process:
        assert process.communicate(timeout=WAIT_S)[0].split() == ["False", "True"]


# One process at a time


def test_a_directory_is_one_process_at_a_time_and_the_error_names_both(tmp_path: Path) -> None:
    source = "import sys, millstream\nb = millstream.Broker(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()"
    with program(source, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(PersistenceError) as caught:
            Broker(tmp_path)
        assert str(caught.value) == f"{tmp_path} is in use by another broker, process {process.pid}"
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        Broker(tmp_path).close()  # what a dead process left behind is no obstacle


def test_a_second_broker_of_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with Broker(tmp_path), pytest.raises(PersistenceError, match=rf"process {os.getpid()} \(this one\)$"):
        Broker(tmp_path)
    Broker(tmp_path).close()


FORKING = """if True:
    import os, sys, time
    from millstream import Broker, CommandError
    broker = Broker(sys.argv[1], appendfsync="always")
    broker.xadd("s", {"who": "parent"})
    client = broker.client()
    if os.fork() == 0:
        for call in (lambda: broker.xadd("s", {"who": "child"}), lambda: client.xadd("s", {"who": "child"})):
            try:
                call()
                print("answered", flush=True)
            except Exception as error:
                print("child of it" in str(error), flush=True)
        print("child is through", flush=True)
        time.sleep(30)
    else:
        os.wait() if len(sys.argv) > 2 else sys.stdin.read()
"""


def test_a_child_of_a_fork_is_refused_and_does_not_keep_the_directory(tmp_path: Path) -> None:
    with program(FORKING, tmp_path) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["True\n", "True\n", "child is through\n"]
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        with Broker(tmp_path) as broker:  # although the child lives on
            assert [entry.fields for entry in broker.xrange("s")] == [{b"who": b"parent"}]


# What goes wrong


def test_a_damaged_log_is_refused_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        for index in range(20):
            broker.xadd("s", {"n": index})
    log = increment(tmp_path)
    data = bytearray(log.read_bytes())
    at = data.index(b"*5", len(data) // 2)
    data[at] = ord("!")
    log.write_bytes(data)
    with pytest.raises(CorruptFile) as caught:
        Broker(tmp_path)
    assert (Path(str(caught.value.path)), caught.value.at) == (log, at)
    assert f"{log} is damaged at offset {at}" in str(caught.value)
    assert f"`millstream check {log}`" in str(caught.value)
    assert check(tmp_path, fix=True).fixed
    with Broker(tmp_path) as broker:
        assert 0 < broker.xlen("s") < 20


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        for index in range(20):
            broker.xadd("s", {"n": index})
    log = increment(tmp_path)
    log.write_bytes(log.read_bytes()[:-3])
    with Broker(tmp_path) as broker:
        assert broker.xlen("s") == 19
        broker.xadd("s", {"n": 20})
    with Broker(tmp_path) as broker:
        assert broker.xlen("s") == 20


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_a_full_disk_refuses_what_writes_until_there_is_room_again(policy: Any) -> None:
    files = MemoryFiles()
    broker = Broker("/data", appendfsync=policy, files=files)
    client = broker.client()
    kept = [broker.xadd("s", {"n": index}) for index in range(10)]
    broker.xgroup_create("s", "g", "0")
    broker.xreadgroup("g", "c", {"s": ">"}, 1)
    files.free = 20
    for call in (
        lambda: broker.xadd("s", {"n": "x" * 100}),
        lambda: broker.xadd("s", {"n": 1}),
        lambda: broker.xack("s", "g", kept[0] or b""),
        lambda: broker.xreadgroup("g", "c", {"s": ">"}, 1),
        lambda: broker.execute("SET", "k", "v"),
    ):
        with pytest.raises(CommandError, match="No space left on device") as caught:
            call()
        assert caught.value.code == "MISCONF"
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        client.xadd("s", {"n": 1})
    assert [entry.id for entry in broker.xrange("s")][:10] == kept  # reads go on
    assert client.xlen("s") >= 10
    files.free = None
    wait_until(lambda: _is_taken(broker))
    kept.append(broker.xadd("s", {"n": "after"}))
    broker.close()
    with Broker("/data", files=files) as again:
        found = [entry.id for entry in again.xrange("s")]
        assert set(kept) <= set(found)
        assert found[-1] == kept[-1]


def _is_taken(broker: Broker) -> bool:
    try:
        broker.execute("SET", "k", "v")
    except CommandError:
        return False
    return True


def test_closing_says_when_the_log_cannot_be_finished() -> None:
    files = MemoryFiles()
    broker = Broker("/data", files=files)
    broker.xadd("s", {"a": 1})
    files.broken["sync"] = errno.EIO
    with pytest.raises(WriteFailed, match="Input/output error"):
        broker.close()
    broker.close()  # once is enough


def test_a_closed_broker_refuses_every_way_in(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    client = broker.client()
    entry_id = broker.xadd("s", {"a": 1}) or b""
    broker.xgroup_create("s", "g", "0")
    broker.xreadgroup("g", "c", {"s": ">"})
    broker.xadd("s", {"a": 1})
    broker.close()
    calls: list[Callable[[], Any]] = [
        lambda: broker.xadd("s", {"a": 1}),
        lambda: broker.xreadgroup("g", "c", {"s": ">"}, 1),
        lambda: broker.xack("s", "g", entry_id),
        lambda: broker.xnack("s", "g", entry_id),
        lambda: broker.xlen("s"),
        lambda: broker.xread({"s": "$"}, block_ms=60_000),
    ]
    for call in calls:
        with pytest.raises(CommandError, match="The broker is closed"):
            call()
    with pytest.raises(redis.RedisError):
        client.xadd("s", {"a": 1})
    with Broker(tmp_path) as again:
        assert again.xlen("s") == 2


def test_closing_lets_blocked_readers_go(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(broker.xread({"s": "$"}, block_ms=0)))
    reader.start()
    wait_until(lambda: b"blocked_clients:1" in broker.execute("INFO", "clients"))
    broker.close()
    reader.join(WAIT_S)
    assert found == [{}]


def test_a_policy_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="appendfsync"):
        Broker(tmp_path, appendfsync="often")  # type: ignore[arg-type]


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match="file"):
        Broker(tmp_path / "file" / "below")
