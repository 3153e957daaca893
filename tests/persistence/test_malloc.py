"""What a rewrite of the log has freed goes back to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.persistence.malloc import give_back
from millstream.persistence.store import Store
from millstream.server.core.hub import Hub
from tests.support.ours import ROOT, SOURCE, eventually

MB = 1 << 20
COUNT, SIZE = 40_000, 2000  # 80 MB, in pieces that Python has from the C library

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc keeps free pages and can be asked"
)


def in_use() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def scattered() -> list[bytearray]:
    """A few pieces that are in use, with much that is free between them."""
    pieces = [bytearray(SIZE) for _ in range(COUNT)]
    return pieces[::50]


def test_pages_between_pieces_in_use_are_given_back() -> None:
    kept = scattered()
    before = in_use()
    assert give_back()
    assert before - in_use() > 40 * MB
    assert sum(map(len, kept)) == SIZE * COUNT // 50


def test_large_pieces_go_back_when_they_are_freed_wherever_they_lie() -> None:
    """In a process of its own, for the setting is one of a whole process."""
    script = """
import sys
from millstream.persistence.malloc import keep_large_apart
from tests.persistence.test_malloc import MB, in_use
if sys.argv[1] == "apart":
    assert keep_large_apart()
bytearray(16 * MB)  # from now on, unasked, glibc has pieces of up to this size from its heap
pieces, kept = [], []
for _ in range(60):
    pieces.append(bytearray(MB))
    kept.append(bytearray(2000))
before = in_use()
pieces.clear()
print(before - in_use() > 50 * MB)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)])}
    for mode, expected in (("apart", "True\n"), ("as it is", "False\n")):
        found = subprocess.run(
            [sys.executable, "-c", script, mode], capture_output=True, text=True, timeout=60, env=environment
        )
        assert (found.stdout, found.stderr) == (expected, "")


def test_a_rewrite_of_the_log_is_followed_by_giving_back(tmp_path: Path) -> None:
    hub = Hub(settings={"appendonly": "yes"})
    store = Store(hub, tmp_path)
    store.open()
    hub.store = store
    try:
        hub.run([b"SET", b"k", b"v"])
        kept = scattered()
        before = in_use()
        hub.run([b"BGREWRITEAOF"])
        assert eventually(lambda: before - in_use() > 40 * MB)
        assert len(kept) == COUNT // 50
    finally:
        store.close()
        hub.close()
