"""What connections take of the memory is told, and `maxmemory-clients` closes the largest."""

from __future__ import annotations

import re
import socket

from tests.support.ours import Ours, eventually, read_all, read_until, serving
from tests.support.wire import Wire, pack

VALUE = b"v" * (1 << 20)


def listed(wire: Wire, name: bytes) -> dict[str, int]:
    """The numbers of CLIENT LIST about a client with this name."""
    for line in wire.ask(b"CLIENT", b"LIST").split(b"\n"):
        if b" name=%b " % name in line:
            return {key: int(value) for key, value in re.findall(r"(\S+)=(\d+)", line.decode())}
    return {}


def field(wire: Wire, section: bytes, name: bytes) -> int:
    found = re.search(rb"%b:(\d+)\r\n" % name, wire.ask(b"INFO", section))
    assert found is not None
    return int(found[1])


def named(ours: Ours, name: bytes) -> socket.socket:
    sock = ours.open()
    sock.sendall(pack([b"CLIENT", b"SETNAME", name]))
    assert read_until(sock, b"\r\n") == b"+OK\r\n"
    return sock


def test_client_list_tells_how_much_of_a_request_has_arrived() -> None:
    with serving() as ours, ours.connect() as wire, named(ours, b"half") as half:
        half.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n" + b"v" * 50_000)
        assert eventually(lambda: listed(wire, b"half")["qbuf"] >= 50_000)
        found = listed(wire, b"half")
        assert 50_000 <= found["qbuf"] < 50_100
        assert found["tot-mem"] >= found["qbuf"] + found["qbuf-free"]
        assert field(wire, b"clients", b"client_recent_max_input_buffer") >= 50_000
        assert field(wire, b"memory", b"mem_clients_normal") >= found["tot-mem"]


def test_client_list_tells_how_much_output_waits() -> None:
    with serving() as ours, ours.connect() as wire, named(ours, b"slow") as slow:
        wire.ask(b"SET", b"k", VALUE)
        slow.sendall(pack([b"GET", b"k"]) * 30)
        assert eventually(lambda: listed(wire, b"slow")["omem"] >= len(VALUE))
        found = listed(wire, b"slow")
        assert found["oll"] > 0
        assert found["tot-mem"] >= found["omem"] + found["obl"] + found["qbuf"]
        assert field(wire, b"clients", b"client_recent_max_output_buffer") >= len(VALUE)
        received = 0
        while received < 30 * (len(VALUE) + 12):
            received += len(slow.recv(1 << 20))
        assert eventually(lambda: listed(wire, b"slow")["omem"] == 0)


def test_commands_of_an_open_transaction_are_counted() -> None:
    with serving() as ours, ours.connect() as wire, named(ours, b"multi") as multi:
        multi.sendall(pack([b"MULTI"]) + pack([b"SET", b"k", b"v" * 10_000]))
        assert eventually(lambda: listed(wire, b"multi")["multi-mem"] >= 10_000)


def test_the_largest_client_is_closed_when_all_take_too_much() -> None:
    with serving(maxmemory_clients="8mb") as ours, ours.connect() as wire:
        with named(ours, b"small") as small, named(ours, b"large") as large:
            small.sendall(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n" + b"v" * 999_999)
            large.sendall(b"*2\r\n$4\r\nECHO\r\n$50000000\r\n" + b"v" * 12_000_000)
            assert read_all(large) == b""
            small.sendall(b"v\r\n")
            assert read_until(small, b"v\r\n").startswith(b"$1000000\r\n")
        assert field(wire, b"stats", b"evicted_clients") == 1


def test_a_client_that_does_not_read_is_closed_and_one_that_may_stay_is_not() -> None:
    with serving() as ours, ours.connect() as wire:
        wire.ask(b"SET", b"k", VALUE)
        with named(ours, b"spared") as spared, named(ours, b"slow") as slow:
            spared.sendall(pack([b"CLIENT", b"NO-EVICT", b"ON"]))
            assert read_until(spared, b"\r\n") == b"+OK\r\n"
            for sock in (spared, slow):
                sock.sendall(pack([b"GET", b"k"]) * 20)
            assert eventually(lambda: all(listed(wire, name)["omem"] for name in (b"spared", b"slow")))
            wire.ask(b"CONFIG", b"SET", b"maxmemory", b"100mb")
            wire.ask(b"CONFIG", b"SET", b"maxmemory-clients", b"25%")
            assert eventually(lambda: not listed(wire, b"slow"))
            assert listed(wire, b"spared")


def test_rates_are_those_of_the_last_seconds_and_fall_to_zero() -> None:
    with serving() as ours, ours.connect() as wire:
        assert eventually(
            lambda: wire.ask(b"ECHO", b"x" * 1000) and field(wire, b"stats", b"instantaneous_ops_per_sec") > 10
        )
        assert float(re.findall(rb"instantaneous_input_kbps:([0-9.]+)", wire.ask(b"INFO", b"stats"))[0]) > 1
        assert float(re.findall(rb"instantaneous_output_kbps:([0-9.]+)", wire.ask(b"INFO", b"stats"))[0]) > 1
        ours.hub.rates.forget()
        assert field(wire, b"stats", b"instantaneous_ops_per_sec") == 0
