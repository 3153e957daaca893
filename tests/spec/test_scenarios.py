"""The end-to-end scenarios of new §11, A to N (O needs a rewritten log and is persistence's)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .support import LLMAX, NIL_ARRAY, Engine, engine_only, entry, ids_of, spelled


def test_scenario_a_zone_order_and_priority(e: Engine) -> None:
    e.stream(4, "g")
    e.deliver("g", "c1")
    e.nack("FAIL", "3-0")
    e.nack("FAIL", "1-0")
    e.wait(10)
    now = e.near(e.now_ms)
    assert e.claim("g", "c2", 5, "COUNT", 3) == [
        [*entry("3-0"), now, 1],
        [*entry("1-0"), now, 1],
        [*entry("2-0"), e.near(10), 1],
    ]
    group = e.full_group()
    assert (group["nacked-count"], group["pel-count"]) == (0, 4)


def test_scenario_b_releasing_again_rotates(e: Engine) -> None:
    e.stream(3, "g")
    e.deliver("g", "c1")
    e.nack("FAIL", "1-0", "2-0", "3-0")
    e.nack("FAIL", "1-0")
    assert [ids_of(e.claim("g", "c2", 0, "COUNT", 1)) for _ in range(3)] == [["2-0"], ["3-0"], ["1-0"]]


def test_scenario_c_counters(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    assert e.counts() == {"1-0": 1}
    e.nack("SILENT", "1-0")
    assert e.counts() == {"1-0": 0}
    e.nack("SILENT", "1-0")
    assert e.counts() == {"1-0": 0}
    e("XCLAIM", "s", "g", "c2", 0, "1-0")
    assert e.counts() == {"1-0": 1}
    e.nack("FATAL", "1-0")
    assert e.counts() == {"1-0": LLMAX}
    assert e.claim("g", "c2", 0)[0][3] == LLMAX
    assert e.counts() == {"1-0": LLMAX}
    e.nack("SILENT", "1-0")
    assert e.counts() == {"1-0": LLMAX - 1}
    e("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", "RETRYCOUNT", 0)
    assert e.counts() == {"1-0": 0}


def test_scenario_d_force_ahead(e: Engine) -> None:
    e.stream(2, "g")
    assert e("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "2-0", "FORCE") == 2
    assert e.pending() == [["1-0", "", -1, 0], ["2-0", "", -1, 0]]
    assert e.deliver("g", "c") == ["1-0", "2-0"]
    assert e.counts() == {"1-0": 1, "2-0": 1}
    assert e.full_group()["nacked-count"] == 0


def test_scenario_e_ghost(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    e.nack("FAIL", "1-0")
    e("XDEL", "s", "1-0")
    assert e.claim("g", "c2", 0) is NIL_ARRAY
    assert e.owners() == {"1-0": ""}
    did = e.did("XAUTOCLAIM", "s", "g", "c2", 0, 0)
    assert (did.reply, did.log) == (["0-0", [], ["1-0"]], ["XACK s g 1-0"])
    assert e("XPENDING", "s", "g")[0] == 0


def test_scenario_f_delconsumer(e: Engine) -> None:
    e.stream(2, "g")
    e.deliver("g", "c1")
    e.nack("FAIL", "1-0")
    assert e("XGROUP", "DELCONSUMER", "s", "g", "c1") == 1
    assert spelled(e.wire("XPENDING", "s", "g")) == "*4 :1 $3 1-0 $3 1-0 *0"


def test_scenario_g_wake_up(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 5000, "CLAIM", 1000, "STREAMS", "s", ">")
    now = e.near(e.now_ms)
    e.nack("FAIL", "1-0")
    assert reader.reply() == [["s", [[*entry("1-0"), now, 1]]]]


def test_scenario_h_delayed_claim(e: Engine) -> None:
    """The first possible idle is 1001: strictly more than min-idle."""
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 5000, "CLAIM", 1000, "STREAMS", "s", ">")
    e.wait(900)
    assert reader.is_waiting()
    e.wait(101)
    ((_, ((entry_id, _, idle, count),)),) = reader.reply()
    assert (entry_id, count) == ("1-0", 1)
    assert idle >= 1001
    assert idle == e.near(1001)


@engine_only
def test_scenario_h_to_the_millisecond(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 5000, "CLAIM", 1000, "STREAMS", "s", ">")
    e.wait(1000)
    assert reader.is_waiting()
    e.wait(1)
    assert reader.reply() == [["s", [[*entry("1-0"), 1001, 1]]]]


def test_scenario_i_mixed_history(e: Engine) -> None:
    for key in ("s1", "s2"):
        e.stream(1, "g", key=key)
        e.deliver("g", "c", key=key)
    read = ("XREADGROUP", "GROUP", "g", "c", "CLAIM", 0, "STREAMS")
    assert e(*read, "s1", "s2", 0, ">") == [["s1", [entry("1-0")]]]
    e.fill(2, 2, "s2")
    assert e(*read, "s1", "s2", 0, ">") == [["s1", [entry("1-0")]], ["s2", [entry("2-0")]]]
    reply = e(*read, "s2", "s1", ">", 0)
    assert [key for key, _ in reply] == ["s2", "s1"]
    assert [(item[0], len(item)) for item in reply[0][1]] == [("1-0", 4), ("2-0", 4)]
    assert reply[1][1] == [entry("1-0")]


def test_scenario_j_acked_lifecycle(e: Engine) -> None:
    e.stream(1, "g1", "g2")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [2]
    e.deliver("g1", "c")
    e("XACK", "s", "g1", "1-0")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [2]
    e.deliver("g2", "c")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [2]
    assert e("XACKDEL", "s", "g2", "ACKED", "IDS", 1, "1-0") == [1]
    info = e.info()
    assert (e("XLEN", "s"), info["max-deleted-entry-id"], info["recorded-first-entry-id"]) == (0, "1-0", "0-0")


def test_scenario_k_noack_and_acked(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c", "NOACK")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [1]


def test_scenario_l_setid_back(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c", "NOACK")
    e("XGROUP", "SETID", "s", "g", "0")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [2]


def test_scenario_m_idempotency_eviction(e: Engine) -> None:
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    e("XCFGSET", "s", "IDMP-MAXSIZE", 3)
    made = {iid: e("XADD", "s", "IDMP", "p", iid, "*", "f", "v") for iid in ("r1", "r2", "r3", "r4")}
    assert e("XADD", "s", "IDMP", "p", "r1", "*", "f", "v") not in made.values()
    assert e("XADD", "s", "IDMP", "p", "r3", "*", "f", "v") == made["r3"]
    assert e.info()["iids-tracked"] == 3
    assert e("XADD", "s", "IDMP", "p", "r2", "*", "f", "v") not in made.values()


def copied(e: Engine) -> Engine:
    """The state moved to a new stream and back."""
    e("COPY", "s", "t")
    e("DEL", "s")
    e("RENAME", "t", "s")
    return e


def from_log(e: Engine) -> Engine:
    """The state replayed from the log; a real server reloads its snapshot."""
    if hasattr(e, "replayed"):
        return e.replayed()
    assert e("DEBUG", "RELOAD") == "OK"
    return e


@pytest.mark.parametrize("reload", [copied, from_log])
def test_scenario_n_silent_release_and_reload(e: Engine, reload: Callable[[Engine], Engine]) -> None:
    """Saving and loading a snapshot is persistence's; here a copy and a replay stand for it."""
    e.stream(3, "g")
    e.deliver("g", "c")
    e.nack("SILENT", "1-0")
    e.nack("FATAL", "3-0")
    again = reload(e)
    first, second, third = again.pending()
    assert (first, third) == (["1-0", "", -1, 0], ["3-0", "", -1, LLMAX])
    assert (second[0], second[1], second[3]) == ("2-0", "c", 1)
    assert ids_of(again.claim("g", "d", 0, "COUNT", 1)) == ["1-0"]
    assert ids_of(again.claim("g", "d", 0, "COUNT", 1)) == ["3-0"]
