"""The syntax line of a command as a tree of arguments, as COMMAND DOCS describes them.

"[LIMIT offset count]"   an optional block with the token LIMIT
"<MIN | MAX>"            one of two tokens
"key [key ...]"          a key, once or more often
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_WORD: Final = re.compile(r"\.\.\.|[\[\]<>|]|[^\s\[\]<>|]+")
_LITERALS: Final = frozenset({"*", "$", "=", "~", "0", "1"})


@dataclass(frozen=True, slots=True)
class Argument:
    """A word of the caller's, a fixed token, a block of arguments, or a choice between some."""

    kind: str  # string, key, pure-token, block, oneof
    name: str
    token: str = ""
    is_optional: bool = False
    is_multiple: bool = False
    repeats_token: bool = False
    parts: tuple[Argument, ...] = ()

    def text(self) -> str:
        """Return the argument as a syntax line has it."""
        once = self._once()
        whole = f"{self.token} {once}" if self.token and self.kind != "pure-token" else once
        if self.is_multiple:
            whole += f" [{whole if self.repeats_token else once} ...]"
        return f"[{whole}]" if self.is_optional else whole

    def _once(self) -> str:
        if self.kind == "oneof":
            choices = " | ".join(part.text() for part in self.parts)
            return choices if self.is_optional and not self.token else f"<{choices}>"
        return " ".join(part.text() for part in self.parts) if self.parts else self.name


def arguments(syntax: str, name: str) -> tuple[Argument, ...]:
    """Return the arguments in a syntax line that begins with the name of the command (`XGROUP CREATE`)."""
    words = _WORD.findall(syntax.removeprefix(name))
    return _Reader(words).sequence()


def _is_token(word: str) -> bool:
    return word in _LITERALS or (word.upper() == word and any(letter.isalpha() for letter in word))


class _Reader:
    """Reads one sequence after the other from the words of a syntax line."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = 0

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def sequence(self) -> tuple[Argument, ...]:
        """Read arguments up to a closing bracket, a bar, or the end."""
        found: list[Argument] = []
        while (word := self._next()) not in ("", "]", ">", "|", "..."):
            self._at += 1
            if word == "[":
                self._option(found)
            elif word == "<":
                found.append(self._choice(">"))
            elif _is_token(word):
                found.append(self._with_token(word))
            else:
                found.append(Argument("key" if word.endswith("key") else "string", word))
        return tuple(found)

    def _choice(self, end: str) -> Argument:
        """Read `a | b` up to the closing bracket."""
        choices = [_joined(self.sequence())]
        while self._next() == "|":
            self._at += 1
            choices.append(_joined(self.sequence()))
        if self._next() == end:
            self._at += 1
        return choices[0] if len(choices) == 1 else Argument("oneof", "choice", parts=tuple(choices))

    def _option(self, found: list[Argument]) -> None:
        """Read `[…]`: an optional argument, or the sign that the arguments before it may be repeated."""
        if self._next() == "...":
            self._at += 2
            found[-1] = replace(found[-1], is_multiple=True)
            return
        repeated = _joined(self.sequence()) if self._repeats() else None
        if repeated is None:
            found.append(replace(self._choice("]"), is_optional=True))
            return
        self._at += 2  # the dots and the bracket
        size = next(
            size for size in range(1, len(found) + 1) if _joined(tuple(found[-size:])).text() == repeated.text()
        )
        whole = _joined(tuple(found[-size:]))
        found[-size:] = [replace(whole, is_multiple=True, repeats_token=bool(whole.token))]

    def _repeats(self) -> bool:
        """Return whether the bracket that was just opened ends with dots."""
        depth = 0
        for word, after in zip(self._words[self._at :], self._words[self._at + 1 :], strict=False):
            if depth == 0 and word == "]":
                return False
            depth += (word == "[") - (word == "]")
            if depth == 0 and after == "...":
                return True
        return False

    def _with_token(self, token: str) -> Argument:
        """Read what a token stands for: the words that follow it, a choice, or nothing but itself."""
        if self._next() == "<":
            self._at += 1
            return replace(self._choice(">"), token=token)
        values: list[Argument] = []
        while (word := self._next()) and (word == "[" or not (word in "]>|<" or word == "..." or _is_token(word))):
            if word == "[" and not (values and self._words[self._at + 1] == values[-1].name):
                break
            self._at += 1
            if word == "[":
                self._option(values)
            else:
                values.append(Argument("key" if word.endswith("key") else "string", word))
        if not values:
            return Argument("pure-token", token, token)
        return replace(_joined(tuple(values)), token=token)


def _joined(found: tuple[Argument, ...]) -> Argument:
    """Return a single argument for several."""
    return found[0] if len(found) == 1 else Argument("block", "block", parts=found)
