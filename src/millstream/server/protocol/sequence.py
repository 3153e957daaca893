"""Replies that follow one another. A module of its own: a class of this kind cannot be compiled, its users can."""

from __future__ import annotations

from typing import Final

from millstream.engine.outcome import Reply


class Several(list[Reply]):
    """Replies that follow one another without an array around them: what SUBSCRIBE answers."""


NOTHING: Final = Several()  # for commands that answer nothing
