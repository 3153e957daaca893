"""The names of consumers: by pod where there is one, and another for every life."""

from __future__ import annotations

import os
import re
import socket

import pytest

from millstream.delivery import identity
from millstream.delivery.config.settings import Settings


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"POD_NAME": "billing-0", "POD_IP": "10.0.0.7"}, "redis-consumer-billing-0-life"),
        ({"POD_IP": "10.0.0.7"}, "redis-consumer-10.0.0.7-life"),
        ({"POD_NAME": "", "POD_IP": "10.0.0.7"}, "redis-consumer-10.0.0.7-life"),
    ],
)
def test_a_pod_gives_its_name(environ: dict[str, str], expected: str) -> None:
    assert identity.consumer_name(None, environ, "life") == expected


def test_a_process_without_a_pod_is_named_after_host_and_pid() -> None:
    name = identity.consumer_name(None, {}, "life")
    assert name.startswith(f"{socket.gethostname()}-{os.getpid()}-")
    assert name.endswith("-life")
    assert identity.boot_id() in name


def test_a_name_of_ones_own_comes_first() -> None:
    assert identity.consumer_name("mine", {"POD_NAME": "billing-0"}, "life") == "mine-life"


def test_every_life_has_another_name() -> None:
    settings = Settings(consumer="mine")
    names = {settings.consumer_name() for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch("mine-[0-9a-f]{8}", name) for name in names)
