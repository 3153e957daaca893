"""Real files, and the twin in memory that the other tests let fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millstream.errors import PersistenceError
from millstream.persistence.files import ByteSource, Files, RealFiles, copy_file, write_all, write_file
from tests.persistence.memory_files import MemoryFiles, PowerCut


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    """Both kinds of files: what holds for one holds for the other."""
    return (RealFiles() if request.param == "real" else MemoryFiles()), tmp_path


def test_what_is_written_is_read(place: tuple[Files, Path]) -> None:
    files, directory = place
    path = directory / "a"
    handle = files.create(path)
    assert write_all(handle, 0, b"x" * 5000) == 5000
    assert write_all(handle, 4000, b"y" * 2000) == 6000
    handle.sync()
    handle.close()
    assert b"".join(files.read(path)) == b"x" * 4000 + b"y" * 2000
    assert b"".join(files.read(path, 5990)) == b"y" * 10
    assert files.size(path) == 6000
    assert files.names(directory) == ["a"]


def test_a_file_can_be_opened_again_and_cut(place: tuple[Files, Path]) -> None:
    files, directory = place
    write_file(files, directory / "a", [b"one", b"two"])
    handle = files.open(directory / "a")
    handle.truncate(4)
    handle.close()
    assert b"".join(files.read(directory / "a")) == b"onet"


def test_creating_a_file_again_empties_it(place: tuple[Files, Path]) -> None:
    files, directory = place
    write_file(files, directory / "a", [b"old"])
    files.create(directory / "a").close()
    assert files.size(directory / "a") == 0


def test_a_missing_file_and_a_missing_directory(place: tuple[Files, Path]) -> None:
    files, directory = place
    assert not files.exists(directory / "none")
    assert files.names(directory / "none") == []
    files.remove(directory / "none")
    with pytest.raises(FileNotFoundError):
        files.size(directory / "none")


def test_a_written_file_takes_the_place_of_the_old_one(place: tuple[Files, Path]) -> None:
    files, directory = place
    write_file(files, directory / "a", [b"old"])
    assert write_file(files, directory / "a", [b"n", b"ew"]) == 3
    assert b"".join(files.read(directory / "a")) == b"new"
    assert files.names(directory) == ["a"]


def test_what_cannot_be_finished_leaves_the_old_file_and_nothing_else(place: tuple[Files, Path]) -> None:
    files, directory = place
    write_file(files, directory / "a", [b"old"])

    def broken() -> list[bytes]:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_file(files, directory / "a", (piece for piece in broken()))
    assert b"".join(files.read(directory / "a")) == b"old"
    assert files.names(directory) == ["a"]


def test_a_copy_is_the_same(place: tuple[Files, Path]) -> None:
    files, directory = place
    write_file(files, directory / "a", [b"abc" * 1000])
    copy_file(files, directory / "a", directory / "b")
    assert b"".join(files.read(directory / "b")) == b"abc" * 1000


def test_a_write_that_takes_only_some_is_gone_on_with() -> None:
    files = MemoryFiles()
    files.longest_write = 7
    write_file(files, Path("/a"), [b"0123456789" * 10])
    assert files.content(Path("/a")) == b"0123456789" * 10


def test_a_directory_is_locked_for_one(tmp_path: Path) -> None:
    files = RealFiles()
    unlock = files.lock(tmp_path)
    with pytest.raises(PersistenceError, match="in use"):
        files.lock(tmp_path)
    unlock()
    files.lock(tmp_path)()


def test_a_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    files = RealFiles()
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("step", range(1, 8))
def test_a_power_cut_leaves_the_old_file_or_the_new_one(step: int) -> None:
    files = MemoryFiles()
    files.put(Path("/d/a"), b"old")
    files.cut_at = step
    try:
        write_file(files, Path("/d/a"), [b"ne", b"w"])
    except PowerCut:
        files.power_cut()
    assert files.content(Path("/d/a")) in (b"old", b"new")


def test_a_source_gives_as_much_as_asked_for() -> None:
    source = ByteSource(iter([b"abc", b"de"]))
    assert source.starts_with((b"x", b"ab"))
    assert [source.read(2), source.read(2), source.read(9), source.read(9)] == [b"ab", b"c", b"de", b""]
    assert source.given == 5


def test_the_twin_fails_as_told() -> None:
    files = MemoryFiles()
    files.free = 4
    handle = files.create(Path("/a"))
    assert handle.write_at(0, b"123456") == 4
    with pytest.raises(OSError, match="No space"):
        handle.write_at(4, b"56")
    assert handle.write_at(0, b"abcd") == 4
    files.broken["sync"] = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        handle.sync()
