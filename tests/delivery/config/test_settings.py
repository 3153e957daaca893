"""Settings: their defaults, the rules between them, and where they may come from."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as running
from hypothesis import strategies as st

from millstream.delivery.config.settings import Breaker, Discard, RecoveryConfig, Settings
from millstream.delivery.policy import Backoff
from millstream.errors import ConfigError


def test_the_defaults_are_those_of_the_rfc_where_it_has_any() -> None:
    settings = Settings()
    assert (settings.reconcile_every, settings.min_idle_s, settings.batch, settings.max_retries) == (60, 30, 50, 3)
    assert (settings.dead_letter, settings.field_prefix, settings.group_start) == ("{stream}:dlq", "_", "0")
    assert (settings.lease, settings.heartbeat_s) == (30, 10)
    assert (settings.recovery, settings.redeliver) == ("lease", "in_place")
    assert settings.keeps_dead
    assert not settings.has_lock_keys


def test_what_follows_from_the_lease_follows_it() -> None:
    settings = dataclasses.replace(Settings(), lease=6)
    assert (settings.heartbeat_s, settings.min_idle_s) == (2, 6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lease": 0}, "lease: must be above 0 seconds, not 0"),
        ({"lease": "30"}, "lease: must be a finite number, not '30'"),
        ({"lease": True}, "lease: must be a finite number, not True"),
        ({"lease": None}, "lease: must be a finite number, not None"),
        ({"lease": math.inf}, "lease: must be a finite number, not inf"),
        ({"heartbeat": 11}, "heartbeat: must be above 0 and at most lease / 3 (10), not 11"),
        ({"heartbeat": 0}, "heartbeat: must be above 0 and at most lease / 3 (10), not 0"),
        ({"min_idle": 29}, "min_idle: must not be below the lease (30), not 29"),
        ({"lease": 60, "min_idle": 30}, "min_idle: must not be below the lease (60), not 30"),
        ({"max_retries": -1}, "max_retries: must be a whole number, 0 or more, not -1"),
        ({"max_retries": 2.5}, "max_retries: must be a whole number, 0 or more, not 2.5"),
        ({"batch": 0}, "batch: must be a whole number, 1 or more, not 0"),
        ({"block": -1}, "block: must be above 0 seconds, not -1"),
        ({"shutdown_grace": -1}, "shutdown_grace: must be 0 seconds or more, not -1"),
        ({"listener_timeout": 59}, "listener_timeout: must be 60 seconds or more, not 59"),
        ({"redeliver": "new"}, "redeliver: must be one of in_place, copy, not 'new'"),
        ({"recovery": "none"}, "recovery: must be one of lease, rfc, not 'none'"),
        ({"retain": ""}, "retain: must be one of acked, all, not ''"),
        ({"dead_letter": ""}, "dead_letter: must be the name of a stream; to drop what is given up, say Discard"),
        ({"dead_letter": None}, "dead_letter: must be the name of a stream; to drop what is given up, say Discard"),
        ({"field_prefix": ""}, "field_prefix: must be text that is not empty, not ''"),
        ({"group_start": "now"}, """group_start: must be "0", "$" or an entry id, not 'now'"""),
        ({"group_start": 0}, "group_start: must be text that is not empty, not 0"),
        ({"consumer": " "}, "consumer: must be text that is not empty, not ' '"),
        ({"lock_keys": 1}, "lock_keys: must be true or false, not 1"),
        ({"backoff": 5}, "backoff: must be of type Backoff, not 5"),
        (
            {"recovery": "rfc", "lock_keys": False},
            'lock_keys: must be on with recovery="rfc", or every live delivery looks dead to others',
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize("given", [{"share": 0}, {"share": 1.1}, {"least": 0}, {"window": 0}, {"pause": "x"}])
def test_a_broken_breaker_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^breaker\.{next(iter(given))}: "):
        Breaker(**given)


@pytest.mark.parametrize("place", ["0", "$", "5", "1700000000000-3"])
def test_a_group_may_start_anywhere(place: str) -> None:
    assert Settings(group_start=place).group_start == place


def test_dropping_dead_letters_has_to_be_asked_for_by_name() -> None:
    assert not Settings(dead_letter=Discard).keeps_dead
    assert Settings(dead_letter=Discard).dead_letter_name == "{stream}:dlq"
    assert Settings.from_query({"dead_letter": "Discard"}).dead_letter is Discard


def test_settings_come_from_the_environment() -> None:
    settings = Settings.from_env(
        {
            "MILLSTREAM_LEASE": "9",
            "MILLSTREAM_MAX_RETRIES": "5",
            "MILLSTREAM_BACKOFF_CAP": "60",
            "MILLSTREAM_BACKOFF_JITTER": "no",
            "MILLSTREAM_RECONNECT_CAP": "5",
            "MILLSTREAM_BREAKER": "off",
            "MILLSTREAM_LOCK_KEYS": "true",
            "MILLSTREAM_DEAD_LETTER": "dead",
            "MILLSTREAM_RECONNECT_TRIES": "none",
            "MILLSTREAM_URL": "not a setting",
            "LEASE": "not ours",
        }
    )
    assert settings == Settings(
        lease=9,
        max_retries=5,
        backoff=Backoff(cap=60, jitter=False),
        reconnect=Backoff(first=0.1, cap=5),
        breaker=None,
        lock_keys=True,
        dead_letter="dead",
    )


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings() == Settings.from_query({})


def test_settings_come_from_a_query() -> None:
    settings = Settings.from_query({"lease": "9.5", "breaker.least": "5", "redeliver": "copy", "lock_keys": "none"})
    assert settings == Settings(lease=9.5, breaker=Breaker(least=5), redeliver="copy")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"leese": "9"}, "leese: there is no such setting; is lease meant?"),
        ({"qqqqq": "9"}, "qqqqq: there is no such setting"),
        ({"backoff": "9"}, "backoff: there is no such setting"),
        ({"lease": "long"}, "lease: must be a number, not 'long'"),
        ({"lease": "nan"}, "lease: must be a finite number, not nan"),
        ({"max_retries": "2.5"}, "max_retries: must be a whole number, not '2.5'"),
        ({"lock_keys": "maybe"}, "lock_keys: must be true or false, not 'maybe'"),
        ({"breaker": "5"}, "breaker: must be none, not '5'"),
        ({"breaker": "off", "breaker.least": "5"}, "breaker: is switched off and given in parts"),
        ({"reconnect.cap": "0.01"}, "reconnect.cap: must not be less than first (0.1), not 0.01"),
        ({"heartbeat": "20"}, "heartbeat: must be above 0 and at most lease / 3 (10), not 20.0"),
    ],
)
def test_a_query_that_cannot_be_used_is_refused_by_name(query: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_query(query)
    assert message in str(caught.value)


NAMES = st.sampled_from(sorted(Settings.names()))


@running(deadline=None)
@given(st.dictionaries(NAMES, st.text() | st.sampled_from(["1", "0", "none", "rfc"])))
def test_whatever_the_texts_there_are_settings_or_a_config_error(texts: dict[str, str]) -> None:
    try:
        assert isinstance(Settings.from_query(texts), Settings)
    except ConfigError as error:
        assert ": " in str(error)  # noqa: PT017


@pytest.mark.parametrize("table", ["millstream", "tool.millstream", None])
def test_settings_come_from_toml(tmp_path: Path, table: str | None) -> None:
    path = tmp_path / "settings.toml"
    head = f"[{table}]\n" if table else ""
    inner = f"[{table + '.' if table else ''}backoff]\n"
    path.write_text(f'{head}lease = 9\ndead_letter = "Discard"\nbreaker = false\nlock_keys = true\n{inner}cap = 60.0\n')
    assert Settings.from_toml(path) == Settings(
        lease=9, dead_letter=Discard, breaker=None, lock_keys=True, backoff=Backoff(cap=60)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lease = ", "cannot be read"),
        ('lease = "9"', "lease: must be a finite number, not '9'"),
        ("[millstream]\nleas = 9", "leas: there is no such setting; is lease meant?"),
        ("[backoff]\ncup = 9", "backoff.cup: there is no such setting; is backoff.cap meant?"),
        ("backoff = 5", "backoff: there is no such setting"),
        ("breaker = true", "breaker: must be of type"),
    ],
)
def test_toml_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Settings.from_toml(path)
    assert message in str(caught.value)


def test_a_missing_toml_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        Settings.from_toml(tmp_path / "none.toml")


def test_the_rfcs_names_and_defaults_give_its_profile() -> None:
    config = RecoveryConfig()
    assert (config.reconciliation_interval, config.min_idle_time) == (60, 30)
    assert (config.batch_size, config.max_retries) == (50, 3)
    assert (config.dlq_stream, config.field_prefix) == ("{stream}:dlq", "_")
    settings = config.settings()
    assert (settings.recovery, settings.redeliver, settings.has_lock_keys, settings.has_listener) == (
        "rfc",
        "copy",
        True,
        True,
    )
    assert (settings.reconcile_every, settings.min_idle_s, settings.batch, settings.max_retries) == (60, 30, 50, 3)
    # a lock lives for seconds: its expiry is how the others hear of a death long before the idle time is over
    assert settings.lease == 5
    assert settings.heartbeat_s <= 2
    assert RecoveryConfig(min_idle_time=1).settings().lease == 1


def test_the_rfcs_settings_leave_room_for_ours() -> None:
    settings = RecoveryConfig(min_idle_time=40, dlq_stream="dead", field_prefix="x-").settings(lease=12, heartbeat=2)
    assert (settings.lease, settings.heartbeat_s, settings.min_idle_s) == (12, 2, 40)
    assert (settings.dead_letter, settings.field_prefix) == ("dead", "x-")


def test_the_policy_of_the_settings_is_theirs() -> None:
    policy = Settings(max_retries=7, backoff=Backoff(first=3)).policy({ValueError: "reject"})
    assert (policy.max_retries, policy.backoff.first, policy.on) == (7, 3, {ValueError: "reject"})
