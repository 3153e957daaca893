"""Batches of a consumer group, planned, run and ended as Spark does it, without Spark: also when it dies anywhere."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from millstream.cli.main import main
from millstream.client.calls import Call
from millstream.delivery.keys import Keys
from millstream.delivery.steps import NewEntry, Publishing, Settle, Steps
from millstream.errors import ConfigError, Unavailable
from millstream.spark.group import member
from millstream.spark.group.missing import read_accounted
from millstream.spark.group.offsets import from_json
from millstream.spark.group.options import GroupRead, parse_group_read, parse_settling
from millstream.spark.group.planner import GroupPlanner
from millstream.spark.settlement.sender import Settler, Tally
from millstream.spark.wire.metadata import StreamMetadata
from millstream.worker.audit import Audit, audit_of
from tests.support.ours import Process
from tests.support.places import Site, visit

PLACES = ("valkey", "redis", "ours")


@pytest.fixture(scope="module")
def ours_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    process = Process(directory=tmp_path_factory.mktemp("ours")).await_start()
    try:
        yield process.port
    finally:
        process.close()


@pytest.fixture(params=PLACES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Each of these servers, empty."""
    if request.param == "ours":
        found = Site("ours", f"redis://127.0.0.1:{request.getfixturevalue('ours_port')}")
        found.connect()
        found.empty()
        yield found
        found.leave()
        return
    with contextlib.contextmanager(visit)(request.param, request, tmp_path) as found:
        yield found


@pytest.fixture
def valkey(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with contextlib.contextmanager(visit)("valkey", request, tmp_path) as found:
        yield found


class Died(BaseException):
    """The process ended here."""


@dataclass
class Fate:
    """When the process dies: before or after its n-th exchange with the server."""

    at: int = 1 << 60
    is_after: bool = False
    seen: int = 0
    names: list[str] = field(default_factory=list)

    def around(self, name: str, act: Callable[[], Any]) -> Any:
        self.seen += 1
        self.names.append(name)
        is_now = self.seen == self.at
        if is_now and not self.is_after:
            raise Died
        found = act()
        if is_now:
            raise Died
        return found


class MortalServer(StreamMetadata):
    """A server whose user may die at any exchange with it."""

    def __init__(self, connection: Any, fate: Fate) -> None:
        super().__init__(connection)
        self.fate = fate

    @property
    def backend(self) -> Any:
        real, fate = super().backend, self.fate

        class Mortal:
            def run(self, call: Call[Any]) -> Any:
                return fate.around(str(call.argv[0]), lambda: real.run(call))

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        return Mortal()


def options(site: Site, **more: object) -> GroupRead:
    given = {"url": site.url, "stream": "orders", "group": "g", "retryTimeout": "5s", **more}
    return parse_group_read({name: str(value) for name, value in given.items()})


@dataclass
class Query:
    """A query as Spark runs it: a log of offsets, a log of commits, an output that has each batch once."""

    read: GroupRead
    site: Site
    decide: Callable[[dict[str, Any]], str | None] = lambda row: "ack"
    offsets: list[dict[str, Any]] = field(default_factory=list)  # the first is where it began
    commits: int = 0
    output: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    fate: Fate = field(default_factory=Fate)
    planner: GroupPlanner | None = None

    def start(self) -> GroupPlanner:
        self.planner = GroupPlanner(self.read, MortalServer(self.read.read.connection, self.fate))
        return self.planner

    def run(self, *, most: int = 100, is_available_now: bool = False) -> Query:
        """Run batches until there is nothing new."""
        planner = self.start()
        try:
            if is_available_now:
                planner.aim()
            for _ in range(most):
                if not self.step(planner):
                    return self
        finally:
            self.planner = None
            planner.keeper.close()
            planner.keeper.join()
        return self

    def step(self, planner: GroupPlanner) -> bool:
        if len(self.offsets) <= self.commits + 1:
            start = self.offsets[-1] if self.offsets else planner.initial()
            end = planner.latest(start)
            if json.dumps(end) == json.dumps(start):
                return False
            self.offsets = self.offsets or [start]
            self.offsets.append(json.loads(json.dumps(end)))
        self.batch(planner, self.offsets[-1])
        self.commits += 1
        return True

    def batch(self, planner: GroupPlanner, end: dict[str, Any]) -> None:
        rows = [row for part in planner.parts(end) for row in self.rows(part)]
        self.fate.around("write", lambda: self.output.__setitem__(end["batch"], rows))
        settler = Settler(parse_settling({"url": self.site.url, "group": "g", "backoff": "0s"}), refused_s=0.5)
        decided = [{**row, "outcome": self.decide(row)} for row in rows]
        decided = [row for row in decided if row["outcome"] != "none"]
        names = ("stream", "id", "consumer", "delivery_count", "outcome")
        kinds = (pa.string(), pa.string(), pa.string(), pa.int32(), pa.string())
        columns = [pa.array([row[name] for row in decided], kind) for name, kind in zip(names, kinds, strict=True)]
        settler.add(pa.RecordBatch.from_arrays(columns, names))
        self.tally.add(self.fate.around("settle", settler.finish))

    def rows(self, part: Any) -> list[dict[str, Any]]:
        found = []
        for chunk in read_accounted(self.read, part):
            about = chunk.about()
            for at, entry_id in enumerate(chunk.entries.ids().to_pylist()):
                row = {name: column[at].as_py() for name, column in about.items()}
                found.append({"stream": part.stream, "id": entry_id.decode(), **row})
        return found

    @property
    def ids(self) -> list[str]:
        return [row["id"] for rows in self.output.values() for row in rows]

    @property
    def token(self) -> str:
        return str(self.offsets[0]["token"])


@pytest.fixture(autouse=True)
def mortal_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries go over a connection of their own: it is an exchange too."""
    real = member.Member._delivered

    def delivered(self: Any, consumer: bytes, count: int) -> Any:
        return self._server.fate.around("XREADGROUP", lambda: real(self, consumer, count))

    monkeypatch.setattr(member.Member, "_delivered", delivered)


def steps(site: Site, stream: str = "orders", **more: Any) -> Steps:
    return Steps(Keys(stream.encode()), b"g", site.connect().capabilities, **more)


def publish(
    site: Site, count: int, stream: str = "orders", extra: list[tuple[bytes, bytes]] | None = None
) -> list[str]:
    backend = site.connect()
    publishing = Publishing(Keys(stream.encode()), backend.capabilities)
    entries = [NewEntry([(b"n", b"%d" % n), *(extra or [])]) for n in range(count)]
    found = backend.run(publishing.append(secrets.token_bytes(8), 1, entries))
    return [made.id.decode() for made in found]


def audit(site: Site, stream: str = "orders") -> Audit:
    return audit_of(site.connect().run(steps(site, stream).audit()), "g")


def consumers(site: Site) -> list[bytes]:
    return [row[1] for row in site.connect().execute("XINFO", "CONSUMERS", "orders", "g")]


def ended(site: Site, count: int) -> None:
    """Everything is done, once, and nothing is left."""
    now = audit(site)
    assert (now.done, now.pending, now.undelivered, now.dead, now.balanced) == (count, 0, 0, 0, True)
    assert site.connect().execute("XLEN", "orders") == 0


def test_all_there_is_is_taken_read_and_settled(site: Site) -> None:
    ids = publish(site, 2500)
    query = Query(options(site, maxOffsetsPerTrigger=1000), site).run()
    assert query.ids == ids
    assert [len(rows) for rows in query.output.values()] == [1000, 1000, 500]
    assert {(row["delivery_count"], row["idle_ms"]) for rows in query.output.values() for row in rows} == {(1, 0)}
    assert {row["consumer"] for row in query.output[2]} == {f"spark-{query.token}-2"}
    assert query.tally == Tally({"ack": 2500})
    ended(site, 2500)


def test_a_batch_is_split_as_its_offset_says(valkey: Site) -> None:
    ids = publish(valkey, 1000)
    query = Query(options(valkey, minPartitions=4), valkey)
    planner = query.start()
    end = planner.latest(planner.initial())
    parts = planner.parts(end)
    assert [part.rows for part in parts] == [250] * 4
    assert [row["id"] for part in parts for row in query.rows(part)] == ids
    other = GroupPlanner(options(valkey, minPartitions=1), MortalServer(query.read.read.connection, Fate()))
    assert other.parts(end) == parts  # another process, other options, the same batch
    planner.close()


def test_nothing_new_is_the_very_same_offset(site: Site) -> None:
    query = Query(options(site), site)
    planner = query.start()
    start = planner.initial()
    assert planner.initial() == start
    assert planner.latest(start) is start
    planner.close()


def test_a_batch_that_is_asked_for_again_is_the_same(site: Site) -> None:
    publish(site, 10)
    query = Query(options(site), site)
    planner = query.start()
    start = planner.initial()
    first = planner.latest(start)
    publish(site, 5)
    assert planner.latest(start) == first
    planner.close()


def test_a_batch_that_was_not_written_down_is_found_again(site: Site) -> None:
    ids = publish(site, 2500)
    query = Query(options(site), site)
    planners = [query.start() for _ in range(2)]
    start = planners[0].initial()
    taken = planners[0].latest(start)
    publish(site, 5)
    again = from_json(planners[1].latest(start))
    for planner in planners:
        planner.close()
    assert again.rows == 2500
    before, after = from_json(taken).streams["orders"].ranges, again.streams["orders"].ranges
    assert (before[0].first, before[-1].last) == (after[0].first, after[-1].last)
    query.offsets = [start]
    query.run()
    assert query.ids[:2500] == ids
    ended(site, 2505)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_dying_at_any_exchange_loses_and_doubles_nothing(site: Site, is_after: bool) -> None:
    """The output of a batch that is run again takes the place of the first: as a file sink does it."""
    probe = Fate()
    publish(site, 60)
    Query(options(site, maxOffsetsPerTrigger=25), site, fate=probe).run()
    for at in range(1, probe.seen + 1):
        site.empty()
        ids = publish(site, 60)
        query = Query(options(site, maxOffsetsPerTrigger=25, lease="1s"), site, fate=Fate(at, is_after))
        for _ in range(3):
            with contextlib.suppress(Died):
                query.run()
                break
        for _ in range(20):  # it had not written down its own name: what it had taken comes back after its lease
            if len(query.ids) == 60:
                break
            time.sleep(0.6)
            query.run()
        assert sorted(query.ids, key=ids.index) == ids, (at, probe.names[at - 1])
        ended(site, 60)


def test_rows_without_an_outcome_are_tried_again_and_then_given_up(site: Site) -> None:
    ids = publish(site, 10)
    decide = lambda row: "none" if row["id"] == ids[3] else "ack"  # noqa: E731
    query = Query(options(site, maxRetries=2, backoff="0s"), site, decide)
    planner = query.start()
    for _ in range(40):
        if not query.step(planner) and audit(site).dead:
            break
        time.sleep(0.1)
    planner.close()
    tries = [row["delivery_count"] for rows in query.output.values() for row in rows if row["id"] == ids[3]]
    assert tries == [1, 2, 3]
    now = audit(site)
    assert (now.done, now.dead, now.pending, now.balanced) == (9, 1, 0, True)
    ((_, record),) = site.connect().execute("XRANGE", "{orders}:dlq", "-", "+")
    about = dict(zip(record[::2], record[1::2], strict=True))
    assert (about[b"_reason"], about[b"_attempts"], about[b"_retry_count"]) == (b"retries", b"3", b"2")
    assert about[b"_consumer"].startswith(b"spark-")


def test_a_batch_can_be_acknowledged_as_a_whole(site: Site) -> None:
    publish(site, 2500)
    query = Query(options(site, settle="batch"), site, lambda row: "dead" if row["id"].endswith("7") else "none")
    query.run()
    dead = query.tally.settled.get("dead", 0)
    now = audit(site)
    assert dead > 0
    assert (now.done, now.dead, now.pending, now.balanced) == (2500 - dead, dead, 0, True)


def test_entries_stay_if_they_are_retained(site: Site) -> None:
    publish(site, 10)
    Query(options(site, retain="all"), site).run()
    assert site.connect().execute("XLEN", "orders") == 10
    assert audit(site).done == 10


def test_released_retried_and_forgotten_entries_come_first(site: Site) -> None:
    ids = publish(site, 8)
    backend, group = site.connect(), steps(site)
    backend.run(group.create_group("0"))
    a, b, c, d = backend.run(group.read(b"w", 4, None))
    backend.run(group.settle(b"w", [Settle(a.id, 1, "release"), Settle(b.id, 1, "retry", (0,))]))
    for each in (c, d):
        backend.execute("XCLAIM", "orders", "g", "w", 0, each.id, "IDLE", 60_000, "JUSTID")
    backend.execute("XCLAIM", "orders", "g", "alive", 0, d.id, "JUSTID")  # a worker that lives has this one
    query = Query(options(site), site).run()
    (rows,) = query.output.values()
    counts = [(row["id"], row["delivery_count"]) for row in rows]
    assert counts[:3] == [(a.id.decode(), 1), (b.id.decode(), 2), (c.id.decode(), 2)]
    assert counts[3:] == [(entry_id, 1) for entry_id in ids[4:]]
    assert rows[2]["idle_ms"] >= 60_000


def test_two_queries_and_a_worker_share_a_group(site: Site) -> None:
    ids = publish(site, 3000)
    one, two = (Query(options(site, maxOffsetsPerTrigger=400), site) for _ in range(2))
    planners = one.start(), two.start()
    backend, group = site.connect(), steps(site)
    done: list[str] = []
    for _ in itertools.repeat(None, 30):
        moved = [query.step(planner) for query, planner in zip((one, two), planners, strict=True)]
        page = backend.run(group.read(b"w", 37, None))
        backend.run(group.settle(b"w", [Settle(each.id, each.number) for each in page]))
        done += [each.id.decode() for each in page]
        if not any(moved) and not page:
            break
    for planner in planners:
        planner.close()
    assert sorted(one.ids + two.ids + done, key=ids.index) == ids
    assert one.ids
    assert two.ids
    assert done
    ended(site, 3000)


def test_a_batch_that_is_run_again_finds_entries_that_others_would_have_removed(site: Site) -> None:
    publish(site, 40)
    one, two = (Query(options(site, maxOffsetsPerTrigger=20), site) for _ in range(2))
    planner = one.start()
    start = planner.initial()
    end = planner.latest(start)
    one.batch(planner, end)  # settled, but not committed
    planner.close()
    two.run()
    assert len(two.ids) == 20
    again = Query(one.read, site, offsets=[start, end], commits=0)
    again.run()
    assert again.ids == one.ids
    assert again.tally.before == 20
    ended(site, 40)


def test_entries_that_were_trimmed_before_they_were_read_are_not_done(site: Site) -> None:
    """Those that were handed out are, also if they are trimmed later."""
    ids = publish(site, 900)
    query = Query(options(site, settle="batch", minPartitions=3), site, lambda row: "none")
    planner = query.start()
    query.offsets = [planner.initial()]
    query.offsets.append(planner.latest(query.offsets[0]))
    site.connect().execute("XTRIM", "orders", "MINID", ids[400])
    query.batch(planner, query.offsets[1])
    query.commits = 1
    site.connect().execute("XTRIM", "orders", "MINID", ids[500])
    assert not query.step(planner)
    planner.close()
    assert query.ids == ids[400:]
    now = audit(site)
    assert (now.done, now.trimmed, now.pending, now.balanced) == (500, 400, 0, True)


@pytest.mark.parametrize("retain", ["acked", "all"])
def test_an_abandoned_query_is_seen_named_and_released(
    site: Site, retain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is settled, and the query ended before its batch was over."""
    publish(site, 40)
    query = Query(options(site, retain=retain), site)
    planner = query.start()
    end = planner.latest(planner.initial())
    query.batch(planner, end)
    planner.close()
    backend, key = site.connect(), Keys(b"orders").base + b":holds"
    token = end["token"].encode()
    first, at, *rest = backend.execute("HGET", key, token).split(b" ")
    assert main(["doctor", "--url", site.url]) in (0, 1)
    assert end["token"] not in capsys.readouterr().out  # a batch may take a while
    backend.execute("HSET", key, token, b" ".join([first, b"%d" % (int(at) - 400_000), *rest]))
    backend.execute("XGROUP", "DELCONSUMER", "orders", "g", f"spark-{end['token']}-1")
    assert main(["doctor", "--url", site.url]) in (0, 1)
    assert f"millstream holds orders --release {end['token']}" in capsys.readouterr().out
    assert main(["holds", "orders", "--release", end["token"], "--url", site.url]) == 0
    assert backend.execute("XLEN", "orders") == (0 if retain == "acked" else 40)
    assert main(["holds", "--url", site.url]) == 0
    assert "no query keeps anything" in "".join(capsys.readouterr())
    assert main(["holds", "orders", "--release", "nobody", "--url", site.url]) == 2


def test_leases_are_kept_while_a_batch_runs(site: Site) -> None:
    publish(site, 1500)
    query = Query(options(site, lease="1s"), site)
    planner = query.start()
    end = planner.latest(planner.initial())
    for _ in range(4):
        time.sleep(0.4)
        rows = site.connect().run(steps(site).pending_page(b"0-0", 2000))
        assert len(rows) == 1500
        assert max(row[2] for row in rows) < 1000
        assert {row[3] for row in rows} == {1}
    planner.close()
    assert end["rows"] == 1500


def test_a_lost_lease_is_counted_and_no_error(site: Site) -> None:
    ids = publish(site, 10)
    query = Query(options(site), site)
    planner = query.start()
    query.offsets = [planner.initial()]
    query.offsets.append(planner.latest(query.offsets[0]))
    site.connect().execute("XCLAIM", "orders", "g", "w", 0, ids[4])
    query.step(planner)
    assert (query.tally.settled, query.tally.lost) == ({"ack": 9}, 1)
    query.step(planner)
    now = audit(site)
    assert (now.done, now.pending, now.balanced) == (9, 1, True)
    planner.close()


def test_a_reply_that_was_lost_is_made_good(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries were delivered, and nobody was told which."""
    publish(site, 30)
    real, failed = member.Member._delivered, []

    def delivered(self: Any, consumer: bytes, count: int) -> Any:
        found = real(self, consumer, count)
        if not failed:
            failed.append(1)
            self.disconnect()
            raise Unavailable("the reply is lost")
        return found

    monkeypatch.setattr(member.Member, "_delivered", delivered)
    query = Query(options(site, settle="batch"), site, lambda row: "none").run()
    assert len(query.ids) == 30
    ended(site, 30)


def test_available_now_takes_what_was_there_and_nothing_twice(site: Site) -> None:
    ids = publish(site, 20)
    query = Query(options(site, maxOffsetsPerTrigger=8), site, lambda row: "release" if row["id"] == ids[2] else "ack")
    planner = query.start()
    planner.aim()
    assert query.step(planner)
    publish(site, 7)
    for _ in range(10):
        if not query.step(planner):
            break
    planner.close()
    assert query.ids == ids
    now = audit(site)
    assert (now.done, now.pending, now.released, now.undelivered, now.balanced) == (19, 1, 1, 7, True)


def test_what_must_not_be_worked_on_is_in_no_batch(site: Site) -> None:
    good = publish(site, 3)
    publish(site, 2, extra=[(b"_redrive_group", b"other")])
    publish(site, 1, extra=[(b"_expires_at", b"5")])
    good += publish(site, 2, extra=[(b"_redrive_group", b"g"), (b"_expires_at", b"99999999999999")])
    query = Query(options(site), site).run()
    assert query.ids == good
    now = audit(site)
    assert (now.done, now.dead, now.pending, now.balanced) == (7, 1, 0, True)


def test_irregular_entries_are_taken_too(site: Site) -> None:
    backend = site.connect()
    ids = []
    for n in range(50):
        words = [word for k in range(n % 4 + 1) for word in (f"f{k}", "\r\n$3\r\n" * k)]
        ids.append(backend.execute("XADD", "orders", "*", *words).decode())
    query = Query(options(site), site).run()
    assert query.ids == ids
    ended(site, 50)


def test_several_streams_share_a_batch(valkey: Site) -> None:
    ids = {name: publish(valkey, 300, name) for name in ("a", "b")}
    query = Query(options(valkey, stream="a,b", maxOffsetsPerTrigger=100), valkey).run()
    for name, expected in ids.items():
        found = [row["id"] for rows in query.output.values() for row in rows if row["stream"] == name]
        assert found == expected
        assert audit(valkey, name).done == 300
    assert max(len(rows) for rows in query.output.values()) <= 110


def test_delayed_entries_are_let_go_when_they_are_due(site: Site) -> None:
    backend = site.connect()
    publishing = Publishing(Keys(b"orders"), backend.capabilities)
    backend.run(publishing.append(b"p", 1, [NewEntry([(b"n", b"1")], delay_ms=300)]))
    query = Query(options(site), site)
    planner = query.start()
    for _ in range(40):
        if query.step(planner):
            break
        time.sleep(0.05)
    planner.close()
    assert len(query.ids) == 1


def test_a_group_that_is_gone_is_made_again(site: Site) -> None:
    publish(site, 5)
    query = Query(options(site), site)
    planner = query.start()
    assert query.step(planner)
    site.connect().execute("DEL", "orders")
    query.step(planner)
    publish(site, 3)
    for _ in range(3):
        query.step(planner)
    planner.close()
    assert len(query.ids) == 8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group": ""}, "which group"),
        ({"startingOffsets": "earliest"}, "'startingOffsets' is not for group mode"),
        ({"settle": "all"}, "option 'settle': 'all' must be one of rows, batch"),
        ({"consumer": "a*"}, "cannot begin the name of a consumer"),
        ({"lease": "10ms"}, "option 'lease'"),
        ({"groupStart": "now"}, "is not a start"),
        ({"maxRetrys": "2"}, "did you mean 'maxRetries'"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_group_read({"stream": "orders", "group": "g", **given})


def test_a_checkpoint_of_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="not one of group mode"):
        from_json({"v": 1, "streams": {}})


def test_a_beat_that_comes_too_late_keeps_no_entries(site: Site) -> None:
    publish(site, 10)
    query = Query(options(site), site)
    planner = query.start()
    assert query.step(planner)
    late = [keep for each in planner.keeper._kept.values() for keep in each]
    assert late
    assert not query.step(planner)
    for keep in late:
        keep()
    planner.keeper.close()
    publish(site, 10)
    Query(options(site), site).run()
    ended(site, 20)
