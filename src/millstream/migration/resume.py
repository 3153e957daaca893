"""Progress of a move in a file, so that an interrupted move can continue.

    begun     keys that are ours to overwrite: they were not there, or were to be replaced
    done      keys that are copied, and how
    current   the long stream that is being copied, and the last id that is

The file is replaced as a whole, and written before the target is touched: a key that is neither begun nor done has
not been touched by us.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from millstream.errors import ConfigError
from millstream.persistence.files import RealFiles, write_file

_FORMAT: Final = 1
_PERIOD_S: Final = 0.5  # between two notes about the current stream
_SHARE: Final = 10  # writing may take up one part in so many of the time


class Notes:
    """The progress of a move; kept in a file if there is a path."""

    def __init__(
        self, path: Path | None, about: dict[str, Any], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Load the file. `about` identifies the move; raises ConfigError if the file belongs to another one."""
        self.path = path
        self.begun: set[bytes] = set()
        self.done: dict[bytes, str] = {}
        self.current: bytes | None = None
        self.current_id: bytes | None = None
        self.is_resumed = False
        self._about = about
        self._monotonic = monotonic
        self._next_s = 0.0
        if path is not None and path.exists():
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text("ascii"))
            about, version = found["about"], found["version"]
            self.begun = set(map(_key, found["begun"]))
            self.done = {_key(name): way for name, way in found["done"].items()}
            if found["current"] is not None:
                self.current, self.current_id = _key(found["current"]["key"]), _id(found["current"]["last_id"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not the state of a move; name another file or remove it") from error
        if about != self._about or version != _FORMAT:
            raise ConfigError(f"{path} is about another move: {json.dumps(about)}")
        self.is_resumed = True

    def begin(self, keys: Iterable[bytes]) -> None:
        """Note keys that are going to be overwritten."""
        self.begun = {key for key in (*self.begun, *keys) if key not in self.done}
        self.save()

    def begin_stream(self, key: bytes) -> None:
        """Note that a long stream is being copied, and that its part on the target is ours."""
        self.current, self.current_id = key, None
        self.save()

    def at(self, last: bytes) -> None:
        """Note the id up to which the current stream is copied; saved now and then."""
        self.current_id = last
        if self._monotonic() >= self._next_s:
            self.save()

    def finish(self, key: bytes, way: str) -> None:
        """Note that a key is copied; saved with the next batch."""
        self.done[key] = way
        self.begun.discard(key)
        if key == self.current:
            self.current = self.current_id = None

    def forget(self, key: bytes) -> None:
        """Note that a key no longer exists."""
        self.done.pop(key, None)

    def save(self) -> None:
        """Write the file."""
        if self.path is None:
            return
        started_s = self._monotonic()
        write_file(RealFiles(), self.path, [json.dumps(self._content()).encode()])
        ended_s = self._monotonic()
        self._next_s = ended_s + max(_PERIOD_S, _SHARE * (ended_s - started_s))

    def _content(self) -> dict[str, Any]:
        current = None
        if self.current is not None:
            current = {"key": _text(self.current), "last_id": self.current_id and self.current_id.decode()}
        return {
            "version": _FORMAT,
            "about": self._about,
            "begun": sorted(map(_text, self.begun)),
            "done": {_text(key): way for key, way in self.done.items()},
            "current": current,
        }

    def remove(self) -> None:
        """Remove the file of a move that is complete and verified."""
        if self.path is not None:
            RealFiles().remove(self.path)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _key(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _id(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
