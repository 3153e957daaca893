"""`millstream check FILE [--fix]`: is what the server wrote whole?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.cli import output
from millstream.cli.common import confirm
from millstream.cli.exits import Exit, Failure
from millstream.persistence.aof import check as checking


def check(file: str, *, fix: bool, yes: bool, as_json: bool) -> None:
    """Check a file or a directory, and repair it if asked to."""

    def agree(damage: checking.Damage, size: int) -> None:
        goes = size - (damage.keeps or 0)
        confirm(f"{damage}\nCut it to {damage.keeps} bytes? {goes} go; a copy of the file stays beside it.", yes=yes)

    path = Path(file)
    if not path.exists():
        raise Failure(f"there is no file {file}")
    try:
        report = checking.check(path, fix=fix, agree=agree)
    except OSError as error:
        raise Failure(f"{error.filename or file}: {error.strerror}") from error
    if as_json:
        output.say_json(_facts(file, report))
    else:
        output.say(report.text)
    if not report.ok:
        raise SystemExit(Exit.DAMAGED if report.foreign is None else Exit.FAILED)


def _facts(file: str, report: checking.CheckReport) -> dict[str, Any]:
    """Return a report for programs."""
    damage = report.damage
    return {
        "file": file,
        "ok": report.ok,
        "fixed": report.fixed,
        "files": report.files,
        "commands": report.commands,
        "in_use": report.in_use or None,
        "reason": report.foreign,
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
