"""`millstream check FILE [--fix]`: is what the server wrote whole?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from millstream.cli.exits import Exit, Failure
from millstream.persistence.aof import check as checking

HELP: Final = """Look for damage in an append-only log (its directory, its manifest or one of its files) or a snapshot.

Exit codes: 0 it is whole, or was repaired; 3 it is damaged; 1 it cannot be read.
"""


def check(file: str, *, fix: bool, as_json: bool) -> None:
    """Check a file or a directory, and repair it if asked to."""
    path = Path(file)
    if not path.exists():
        raise Failure(f"there is no file {file}")
    try:
        report = checking.check(path, fix=fix)
    except OSError as error:
        raise Failure(f"{error.filename or file}: {error.strerror}") from error
    print(json.dumps(_facts(file, report)) if as_json else report.text)
    if not report.ok:
        raise SystemExit(Exit.DAMAGED)


def _facts(file: str, report: checking.CheckReport) -> dict[str, Any]:
    """A report for programs."""
    damage = report.damage
    return {
        "file": file,
        "ok": report.ok,
        "fixed": report.fixed,
        "files": report.files,
        "commands": report.commands,
        "copy": None if report.copy is None else str(report.copy),
        "damage": None
        if damage is None
        else {
            "file": str(damage.path),
            "at": damage.at,
            "reason": damage.reason,
            "keeps": damage.keeps,
            "is_torn": damage.is_torn,
        },
    }
