"""The manifest: Redis's own text, read and written."""

from __future__ import annotations

import pytest

from millstream.errors import PersistenceError
from millstream.persistence.aof.manifest import LogFile, Manifest, parse_manifest

REDIS_8 = """file appendonly.aof.2.base.rdb seq 2 type b
file appendonly.aof.2.incr.aof seq 2 type i startoffset 8
"""


def test_a_manifest_of_redis_is_read() -> None:
    manifest = parse_manifest(REDIS_8)
    assert manifest.base == LogFile("appendonly.aof.2.base.rdb", 2)
    assert manifest.incrs == (LogFile("appendonly.aof.2.incr.aof", 2),)
    assert (manifest.base_seq, manifest.incr_seq) == (2, 2)


def test_what_is_written_is_read_again() -> None:
    manifest = Manifest(
        LogFile("a b.1.base.rdb", 1), (LogFile('q"\\\n.2.incr.aof', 2),), (LogFile("h.1.incr.aof", 1),), 1, 2
    )
    assert parse_manifest(manifest.to_text()) == manifest


def test_comments_empty_lines_and_unknown_keys_are_passed_over() -> None:
    text = "# a comment\n\nfile a.1.incr.aof seq 1 type i color blue\n"
    assert parse_manifest(text).incrs == (LogFile("a.1.incr.aof", 1),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "file a seq 1\n",
        "file a seq 1 type\n",
        "file a seq x type b\n",
        "file a seq 0 type b\n",
        "file a seq 1 type z\n",
        "file ../a seq 1 type b\n",
        "file .. seq 1 type b\n",
        'file "a seq 1 type b\n',
        "file a seq 1 type b\nfile b seq 2 type b\n",
        "file a seq 2 type i\nfile b seq 2 type i\n",
        "file a seq 2 type i\nfile b seq 1 type i\n",
        "garbage\n",
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(text: str) -> None:
    with pytest.raises(PersistenceError):
        parse_manifest(text)


def test_a_new_base_makes_history_of_what_it_replaces() -> None:
    manifest = parse_manifest(REDIS_8).with_incr("appendonly.aof").with_incr("appendonly.aof")
    since = manifest.incrs[-1]
    assert since == LogFile("appendonly.aof.4.incr.aof", 4)
    manifest = manifest.with_new_base_number()
    replaced = manifest.with_base(manifest.latest_base("appendonly.aof", "rdb"), since)
    assert replaced.to_text().splitlines() == [
        "file appendonly.aof.3.base.rdb seq 3 type b",
        "file appendonly.aof.2.incr.aof seq 2 type h",
        "file appendonly.aof.3.incr.aof seq 3 type h",
        "file appendonly.aof.2.base.rdb seq 2 type h",
        "file appendonly.aof.4.incr.aof seq 4 type i",
    ]


def test_numbers_that_were_given_out_are_not_given_again() -> None:
    manifest = parse_manifest(REDIS_8)
    failed = manifest.with_incr("a").with_new_base_number()
    assert manifest.with_numbers_of(failed).with_incr("a").incrs[-1].seq == 4
    assert manifest.with_numbers_of(failed).with_new_base_number().base_seq == 4
