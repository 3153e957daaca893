"""A real browser for tests: Chromium without a window, asked for the page as it has become.

Found on the path, or where MILLSTREAM_CHROMIUM says. On a desk without one the tests that want it skip; where CI
is set, it is installed from the system's packages (root, apt-get), and not having it is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_S = 120


@cache
def find_browser() -> str | None:
    """The program, or None."""
    given = os.environ.get("MILLSTREAM_CHROMIUM")
    if given:
        return given
    for name in NAMES:
        if found := shutil.which(name):
            return found
    return None


@cache
def install_browser() -> str | None:
    """The same, installed if that can be done here."""
    if find_browser() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *words], capture_output=True, timeout=600, check=False)
        find_browser.cache_clear()
    return find_browser()


def require_browser() -> str:
    """The program; without one a test skips, or in CI fails."""
    found = install_browser() if os.environ.get("CI") else find_browser()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium, and it could not be installed")
        pytest.skip("no Chromium here: install the package chromium, or set MILLSTREAM_CHROMIUM")
    return found


def rendered(page: Path) -> str:
    """The page's elements after the browser has loaded it and drawn it."""
    with tempfile.TemporaryDirectory(prefix="millstream-browser-") as home:
        done = subprocess.run(
            [
                require_browser(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                f"--user-data-dir={home}",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
            env=os.environ | {"HOME": home},
        )
    return done.stdout


class Texts(HTMLParser):
    """The text of each element that has an id; elements that are not closed end with their parent."""

    _EMPTY = frozenset({"meta", "br", "hr", "img", "input", "link", "line", "rect", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self.tags: list[str] = []
        self._open: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs).get("id")
        if found is not None:
            self.by_id.setdefault(found, "")
        if tag not in self._EMPTY:
            self._open.append(found)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._EMPTY and self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for each in self._open:
            if each is not None:
                self.by_id[each] += data
