"""Is a file a log or a snapshot at all? Nothing else may be changed, whatever its name is.

REDIS0015 …, VALKEY080 …      a snapshot, or a log that begins with one
*3 $3 SET …, #TS:… *2 …       a log: its first command is whole, known, and one that writes
anything else                 not ours
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Final

from millstream.engine.commands import find
from millstream.errors import CommandError
from millstream.persistence.aof.replay import is_known
from millstream.persistence.aof.scan import Damaged, Scanner, Torn
from millstream.persistence.files import Files, end_of_content, read_between

_SNAPSHOT: Final = re.compile(rb"REDIS[0-9]{4}|VALKEY[0-9]{3}")
_ENVELOPES: Final = frozenset({b"MULTI", b"SELECT", b"FUNCTION"})
_START: Final = re.compile(rb"(?:#[^\r\n]*\r\n)*\*[1-9][0-9]*\r\n\$[0-9]+\r\n([A-Za-z.]+)\r\n")
# A first command that ends before its name does: `*`, `*3 $3 SE`.
_NAMELESS: Final = re.compile(rb"\*([1-9][0-9]{0,8}(\r(\n(\$([1-9][0-9]?(\r(\n([A-Za-z.]*\r?)?)?)?)?)?)?)?)?\0*")
_LOOKED_AT: Final = 1 << 16


def why_foreign(files: Files, path: Path) -> str | None:
    """Return why this file is neither a log nor a snapshot; None if it is one."""
    if not files.is_regular(path):
        return "it is not a regular file"
    if not files.size(path):
        return "it is empty"
    beginning = b"".join(read_between(files, path, 0, min(_LOOKED_AT, files.size(path))))
    if _SNAPSHOT.match(beginning) or _begins_as_log(files, path, beginning):
        return None
    return "it begins neither as a log nor as a snapshot"


def _begins_as_log(files: Files, path: Path, beginning: bytes) -> bool:
    found = _START.match(beginning)
    if found is None and _NAMELESS.fullmatch(beginning):
        return True
    if found is None or not (is_known(found[1]) or found[1].upper() in _ENVELOPES):
        return False
    scanner = Scanner(read_between(files, path, 0, end_of_content(files, path)))
    try:
        (first,) = islice(scanner, 1)
    except Torn:
        return True  # of a command that has a known name
    except (Damaged, ValueError):
        return False
    return _writes(first.argv)


def _writes(argv: list[bytes]) -> bool:
    if argv[0].upper() in _ENVELOPES:
        return True
    try:
        return "write" in find(argv).flags
    except CommandError:
        return argv[0].upper() == b"RESTORE"
