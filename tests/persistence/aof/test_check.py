"""Checking files, and repairing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import CorruptFile
from millstream.persistence.aof.check import check
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import DIRECTORY, LOGS, Broker
from tests.support.wire import pack

LOG = Path("/log.aof")
INCREMENT = LOGS / "appendonly.aof.1.incr.aof"
WHOLE = pack([b"SET", b"a", b"1"]) + pack([b"MULTI"]) + pack([b"SET", b"b", b"2"]) + pack([b"EXEC"])


def holding(data: bytes) -> MemoryFiles:
    files = MemoryFiles()
    files.put(LOG, data)
    return files


def test_a_whole_file_is_reported_as_such() -> None:
    report = check(LOG, files=holding(WHOLE))
    assert report.ok
    assert report.text == "whole: 1 file, 4 commands"


def test_a_whole_log_is_checked_from_its_directory_or_its_manifest() -> None:
    broker = Broker()
    broker("SET a 1")
    for path in (DIRECTORY, LOGS, LOGS / "appendonly.aof.manifest"):
        assert check(path, files=broker.files).text == "whole: 2 files, 2 commands"


@pytest.mark.parametrize("size", range(1, len(WHOLE)))
def test_a_log_cut_anywhere_is_repaired_to_its_last_whole_transaction(size: int) -> None:
    files = holding(WHOLE[:size])
    first = len(pack([b"SET", b"a", b"1"]))
    report = check(LOG, fix=True, files=files)
    assert report.ok
    if size == first:
        assert report.damage is None
        return
    assert report.fixed
    assert files.content(LOG) == (WHOLE[:first] if size > first else b"")
    assert report.copy is not None
    assert files.content(report.copy) == WHOLE[:size]
    assert check(LOG, files=files).damage is None


def test_damage_in_the_middle_is_reported_and_cut_only_when_asked_to() -> None:
    data = WHOLE + b"garbage\r\n" + WHOLE
    files = holding(data)
    report = check(LOG, files=files)
    assert not report.ok
    assert report.damage is not None
    assert (report.damage.at, report.damage.keeps) == (len(WHOLE), len(WHOLE))
    assert f"{LOG} is damaged at offset {len(WHOLE)}" in report.text
    assert files.content(LOG) == data
    assert check(LOG, fix=True, files=files).fixed
    assert files.content(LOG) == WHOLE


def test_a_copy_never_takes_the_place_of_another() -> None:
    files = holding(WHOLE + b"x")
    first = check(LOG, fix=True, files=files)
    files.put(LOG, WHOLE + b"y")
    second = check(LOG, fix=True, files=files)
    assert first.copy != second.copy
    assert len(files.names(LOG.parent)) == 3


def test_an_exec_without_multi_is_damage() -> None:
    report = check(LOG, files=holding(WHOLE + pack([b"EXEC"])))
    assert report.damage is not None
    assert report.damage.at == len(WHOLE)


def test_a_broker_starts_again_after_a_repair() -> None:
    broker = Broker()
    broker("SET a 1")
    broker("SET b 2")
    data = broker.log()
    at = data.index(b"*3", data.index(b"*3") + 1)
    broker.files.put(INCREMENT, data[:at] + b"?" + data[at + 1 :] + data)
    with pytest.raises(CorruptFile) as corrupt:
        broker.reopened()
    report = check(DIRECTORY, fix=True, files=broker.files)
    assert report.damage is not None
    assert (report.damage.path, report.damage.at) == (corrupt.value.path, corrupt.value.at)
    assert broker.reopened()("KEYS *") == [b"a"]


def test_a_damaged_base_cannot_be_repaired() -> None:
    broker = Broker()
    base = LOGS / "appendonly.aof.1.base.rdb"
    broker.files.put(base, broker.files.content(base)[:-1])
    report = check(DIRECTORY, fix=True, files=broker.files)
    assert not report.ok
    assert "cannot be repaired" in report.text


def test_a_base_with_commands_behind_it_is_checked_to_the_end() -> None:
    broker = Broker()
    base = broker.files.content(LOGS / "appendonly.aof.1.base.rdb")
    assert check(LOG, files=holding(base + WHOLE)).commands == 4
    report = check(LOG, files=holding(base + WHOLE + b"*"))
    assert report.damage is not None
    assert report.damage.at == len(base + WHOLE)


def test_what_is_missing_or_makes_no_sense_is_named() -> None:
    broker = Broker()
    assert "no such file" in check(Path("/none"), files=broker.files).text
    broker.files.remove(INCREMENT)
    assert "does not exist" in check(DIRECTORY, files=broker.files).text
    broker.files.put(LOGS / "appendonly.aof.manifest", b"nonsense")
    assert "line 1" in check(DIRECTORY, files=broker.files).text


def test_a_torn_end_is_told_from_other_damage() -> None:
    torn = check(LOG, files=holding(WHOLE[:-3])).damage
    assert torn is not None
    assert torn.is_torn
    damaged = check(LOG, files=holding(WHOLE + b"x" * 50)).damage
    assert damaged is not None
    assert not damaged.is_torn


def test_real_files_are_repaired_too(tmp_path: Path) -> None:
    path = tmp_path / "log.aof"
    path.write_bytes(WHOLE + b"*3\r\n")
    assert check(path, fix=True).fixed
    assert path.read_bytes() == WHOLE
    assert (tmp_path / "log.aof.damaged.1").read_bytes() == WHOLE + b"*3\r\n"
