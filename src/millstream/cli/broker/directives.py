"""Settings from a redis.conf-like file and from `--name value …`, with file and line of each for error messages.

    file      name word "quoted word" …        # a comment has a line of its own
              include other.conf               read here, as if it stood here
    command   serve [FILE] [--name word …] …   overrides the file

A directive that Redis knows and that means nothing here is accepted and listed at the start; one that asks for what we
do not have is refused. Everything that is wrong is reported at once, by file and line, and nothing is started.
"""

from __future__ import annotations

import difflib
import glob
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millstream.cli.broker.redis_names import MEANINGLESS
from millstream.errors import ConfigError
from millstream.server.config.settings import OPTIONS, WITHOUT_EFFECT, BadValue
from millstream.server.protocol.resp import split_words

_MOST_INCLUDES: Final = 100
_ADDING: Final = frozenset({"client-output-buffer-limit", "save"})
_SEVERAL_WORDS: Final = frozenset({"bind", "client-output-buffer-limit", "save", "tls-protocols"})
SECRETS: Final = frozenset({"masterauth", "requirepass", "tls-key-file-pass", "user"})

_REFUSED: Final = {
    "enable-module-command": "modules are not supported",
    "enable-protected-configs": "protected settings are set at start only",
    "loadmodule": "modules are not supported",
    "masterauth": "this server is a single node and has no replicas",
    "rename-command": "commands cannot be renamed; give users what they may run instead",
    "replicaof": "this server is a single node and cannot follow another",
    "slaveof": "this server is a single node and cannot follow another",
}
# Settings that may be written as long as they ask for what is the case anyway.
_ONLY: Final = {
    "cluster-enabled": ("no", "this server is a single node"),
    "daemonize": ("no", "it stays in the foreground: use a service manager, or `&`"),
}


@dataclass(frozen=True, slots=True)
class Directive:
    """One setting as it was written, with its file and line."""

    name: str  # lower case
    words: tuple[bytes, ...]
    place: str  # `file:line`, or the option as it was typed


@dataclass(slots=True)
class Directives:
    """The settings of all files and options together."""

    settings: dict[str, str] = field(default_factory=dict)  # as `Hub` takes them
    users: list[tuple[bytes, ...]] = field(default_factory=list)  # names and rules, as `Hub` takes them
    user_places: dict[str, str] = field(default_factory=dict)  # a user's name to where it is declared
    meaningless: list[str] = field(default_factory=list)  # names, in the order they came
    errors: list[str] = field(default_factory=list)


def read_all(arguments: list[str], defaults: dict[str, str]) -> Directives:
    """Read the settings of a command line. Raises ConfigError with a line for each mistake."""
    file, options = split_arguments(arguments)
    found = Directives(dict(defaults))
    given: list[Directive] = []
    if file is not None:
        given += _read_file(file, found.errors)
    given += _read_options(options, found.errors)
    for directive in given:
        _apply(found, directive)
    if found.errors:
        raise ConfigError("\n".join(found.errors))
    return found


def split_arguments(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Split into the file, if any (`-` is standard input), and the options after it."""
    if arguments and (arguments[0] == "-" or not arguments[0].startswith("-")):
        return arguments[0], arguments[1:]
    return None, arguments


# Reading


def _read_file(name: str, errors: list[str]) -> list[Directive]:
    """Read all directives of a file and of the files that it includes."""
    found: list[Directive] = []
    _read_into(found, name, errors, [name])
    return found


def _read_into(found: list[Directive], name: str, errors: list[str], seen: list[str], place: str | None = None) -> None:
    try:
        text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        errors.append(f"{place + ': include ' if place else ''}{name}: {error.strerror}")
        return
    for number, line in enumerate(text.split(b"\n"), 1):
        place = f"{'standard input' if name == '-' else name}:{number}"
        directive = _read_line(line.strip(), place, errors)
        if directive is None:
            continue
        if directive.name == "include":
            _include(found, directive, errors, seen)
        else:
            found.append(directive)


def _read_line(line: bytes, place: str, errors: list[str]) -> Directive | None:
    if not line or line.startswith(b"#"):
        return None
    words = split_words(line)
    if not words:
        errors.append(f"{place}: unbalanced quotes")
        return None
    return Directive(words[0].decode("utf-8", "replace").lower(), tuple(words[1:]), place)


def _include(found: list[Directive], directive: Directive, errors: list[str], seen: list[str]) -> None:
    if len(directive.words) != 1:
        errors.append(f"{directive.place}: include takes one file")
        return
    pattern = directive.words[0].decode("utf-8", "surrogateescape")
    names = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    for name in names:
        seen.append(name)
        if len(seen) > _MOST_INCLUDES:
            errors.append(f"{directive.place}: more than {_MOST_INCLUDES} files are included")
            return
        _read_into(found, name, errors, seen, directive.place)


def _read_options(words: list[str], errors: list[str]) -> list[Directive]:
    """Read options: `--name word …` up to the next one, or `--name=word`."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, has_value, value = word[2:].partition("=")
            found.append((name, [value] if has_value else []))
        elif found:
            found[-1][1].append(word)
        else:
            errors.append(f"{word}: an option begins with `--`")
    return [Directive(name.lower(), tuple(_one(name, values)), f"--{name}") for name, values in found]


def _one(name: str, values: list[str]) -> Iterable[bytes]:
    """Yield the words of an option; `--save '3600 1'` is two, as in a file."""
    for value in values:
        raw = value.encode("utf-8", "surrogateescape")
        yield from (raw.split() or [b""]) if name.lower() in _SEVERAL_WORDS else [raw]


# What they mean


def _apply(found: Directives, directive: Directive) -> None:
    """Apply a directive, or record its error."""
    name = directive.name
    try:
        if name in _REFUSED:
            raise ConfigError(_REFUSED[name])
        if name in _ONLY:
            _check_only(directive)
        elif name == "user":
            _declare_user(found, directive)
        elif name in OPTIONS:
            found.settings[name] = _value(found, directive)
            is_eviction = name == "maxmemory-policy" and found.settings[name] != "noeviction"
            if name in MEANINGLESS or name in WITHOUT_EFFECT or is_eviction:
                found.meaningless.append(name)
        elif name in MEANINGLESS:
            found.meaningless.append(name)
        else:
            raise ConfigError(f"unknown directive{_suggestion(name)}")
    except ConfigError as error:
        place = directive.place if directive.place.startswith("--") else f"{directive.place}: {name}"
        found.errors.append(f"{place}: {error}")


def _check_only(directive: Directive) -> None:
    allowed, why = _ONLY[directive.name]
    if [word.decode("latin-1").lower() for word in directive.words] != [allowed]:
        raise ConfigError(f"can only be `{allowed}`: {why}")


def _declare_user(found: Directives, directive: Directive) -> None:
    if not directive.words:
        raise ConfigError("takes a name and rules")
    found.users.append(directive.words)
    found.user_places[directive.words[0].decode("utf-8", "replace")] = directive.place


def _value(found: Directives, directive: Directive) -> str:
    name, words = directive.name, directive.words
    if not words or (len(words) > 1 and name not in _SEVERAL_WORDS):
        raise ConfigError(f"takes {'a value' if not words else 'one value'}, {len(words)} are given")
    value = b" ".join(words).strip(b" ") if name in _SEVERAL_WORDS else words[0]
    before = found.settings.get(name, "")
    if name in _ADDING and value:  # several lines add up, and an empty one starts again
        value = before.encode() + b" " + value
    try:
        OPTIONS[name].read(value, OPTIONS[name].default)
    except BadValue as reason:
        raise ConfigError(str(reason)) from reason
    return value.strip(b" ").decode("utf-8", "surrogateescape")


def _suggestion(name: str) -> str:
    """Return a hint with the most similar name."""
    close = difflib.get_close_matches(name, [*OPTIONS, *_ONLY], 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""
