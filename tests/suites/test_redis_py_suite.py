"""redis-py's own tests against this server: none fails here that passes on a real Redis."""

from __future__ import annotations

import os

import pytest

from tests.suites import chosen, fetching, python, run
from tests.support import servers

pytestmark = [pytest.mark.differential, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _at_hand() -> None:
    servers.require(servers.redis_binary(), "Redis 8.10")
    fetching.required(fetching.redis_py_suite)


FILES = chosen.PYTHON_FILES if os.environ.get("MILLSTREAM_SUITES") == "all" else chosen.QUICK_PYTHON_FILES


@pytest.mark.parametrize("name", FILES)
def test_no_test_fails_here_that_passes_there(name: str) -> None:
    files, expression = FILES[name]
    suite, interpreter = fetching.redis_py_suite()
    with run.ours() as port:
        results = python.run_files(suite, interpreter, port, files, expression)
    failed = {test for test, kind in results.items() if kind != "PASSED"}
    if failed:
        binary = servers.redis_binary()
        assert binary is not None
        with servers.running(binary) as real:
            wanted = python.run_files(suite, interpreter, real.port, files, expression)
        failed = {test for test in failed if wanted.get(test) == "PASSED"}
    assert list(results.values()).count("PASSED") > 0
    assert not failed
