"""Options and their errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.spark.ids import first_of, parse_id
from millstream.spark.options import Bounds, parse_read, parse_table, parse_write


def test_streams_are_named_in_several_ways() -> None:
    assert parse_read({"stream": "a, b,a"}).choice.names == ("a", "b")
    assert parse_read({"stream": "s-{8..10}"}).choice.names == ("s-8", "s-9", "s-10")
    assert parse_read({"stream": "{t}:jobs"}).choice.names == ("{t}:jobs",)
    assert parse_read({"stream": '["a,b", "c"]'}).choice.names == ("a,b", "c")
    assert parse_read({"path": "a"}).choice.names == ("a",)
    assert parse_read({"streamPattern": "orders:*"}).choice.pattern == "orders:*"


def test_bounds_are_words_ids_times_or_one_a_stream() -> None:
    assert parse_read({"stream": "a"}).starting == Bounds("earliest")
    assert parse_read({"stream": "a", "startingOffsets": "LATEST"}).starting == Bounds("latest")
    assert parse_read({"stream": "a", "startingOffsets": "5-1"}).starting == Bounds(parse_id("5-1"))
    both = parse_read({"stream": "a,b", "startingOffsets": '{"b": "5"}', "startingTimestamp": "1000"}).starting
    assert (both.of("a"), both.of("b")) == (first_of(1000), parse_id("5-0"))
    assert parse_read({"stream": "a", "endingTimestamp": "1970-01-01T00:00:02"}).ending == Bounds(first_of(2000))


def test_sizes_and_durations_have_units() -> None:
    read = parse_read({"stream": "a", "maxBytesPerTrigger": "16m", "maxTriggerDelay": "2m", "timeout": "500ms"})
    assert (read.max_bytes, read.max_delay_s, read.connection.timeout_s) == (16 << 20, 120, 0.5)


def test_what_the_options_say_completes_the_url(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3/cret\n")
    options = {"url": "rediss://h:1/2", "username": "me", "passwordFile": str(secret), "tlsCaFile": "/ca"}
    assert parse_read({"stream": "a", **options}).connection.url == "rediss://me:s3%2Fcret@h:1/2?ssl_ca_certs=%2Fca"


def test_a_password_is_shown_nowhere() -> None:
    for options in ({"url": "redis://u:hunter2@h"}, {"password": "hunter2"}):
        assert "hunter2" not in repr(parse_read({"stream": "a", **options}))
        assert "hunter2" not in repr(parse_write({"stream": "a", **options}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "which stream?"),
        ({"stream": "a", "streamPattern": "b"}, "exclude each other"),
        ({}, "a table in Spark's catalog (CREATE TABLE) loses its options"),
        ({"provider": "millstream", "stream": "a"}, "use CREATE TEMPORARY VIEW"),
        ({"stream": " "}, "option 'stream': it is empty"),
        ({"stream": ""}, "option 'stream': it is empty"),
        ({"path": ""}, "option 'path': it is empty"),
        ({"stream": "a,b", "startingOffsets": '{"c": "5"}'}, "option 'startingOffsets': 'c' is not among the streams"),
        ({"stream": "a", "mode": "strict"}, "option 'mode': 'strict' must be one of PERMISSIVE, FAILFAST"),
        ({"stream": "a", "failOnDataLoss": "maybe"}, "option 'failOnDataLoss': 'maybe' is neither true nor false"),
        ({"stream": "a", "maxOffsetsPerTrigger": "0"}, "option 'maxOffsetsPerTrigger': '0' must be a number, 1 or"),
        ({"stream": "a", "maxBytesPerTrigger": "lots"}, "option 'maxBytesPerTrigger': 'lots' is not a size"),
        ({"stream": "a", "maxTriggerDelay": "soon"}, "option 'maxTriggerDelay': 'soon' is not a duration"),
        ({"stream": "a", "startingOffsets": "{x"}, "option 'startingOffsets': this is not JSON"),
        ({"stream": "a", "startingTimestamp": "noon"}, "option 'startingTimestamp': 'noon' is neither milliseconds"),
        ({"stream": "s-{3..1}"}, "option 'stream': {3..1} is not a range of numbers"),
        ({"stream": "a", "url": "localhost"}, "option 'url': it has no scheme"),
        ({"stream": "a", "url": "memory://x"}, "memory:// is inside one process"),
        ({"stream": "a", "passwordFile": "/nowhere"}, "option 'passwordFile': /nowhere cannot be read"),
        ({"stream": "a", "maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'?"),
    ],
)
def test_bad_options_say_what_would_do(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_read(options)


def test_writes_and_tables_have_options_of_their_own() -> None:
    assert parse_write({"stream": "a", "maxlen": "5", "trim": "exact"}).trim == ("MAXLEN", "=", "5")
    assert parse_write({"stream": "a", "minid": "5-0"}).trim == ("MINID", "~", "5-0")
    assert parse_table({"table": "Pending"}).choice.pattern == "*"
    with pytest.raises(ConfigError, match="option 'stream': it is empty"):
        parse_write({"stream": ""})
    with pytest.raises(ConfigError, match="option 'table': 'pendings' must be one of pending, groups"):
        parse_table({"table": "pendings"})
    with pytest.raises(ConfigError, match="exclude each other"):
        parse_write({"stream": "a", "maxlen": "5", "minid": "1"})
