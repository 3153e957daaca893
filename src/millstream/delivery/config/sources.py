"""Settings from outside: environment, URL query and TOML file into a settings dataclass.

The dataclass's own annotations define names and types, so a new setting is readable from every source at once. A
setting that is a dataclass itself is given part by part: `backoff.cap` in a query, BACKOFF_CAP in the
environment, `[millstream.backoff] cap` in TOML; the parts that are not given keep the setting's defaults.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from millstream.delivery.settlement import Discard
from millstream.errors import ConfigError

T = TypeVar("T")

FLAGS: Final = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NOTHING: Final = ("", "none")
DISCARD: Final = "discard"


def names(cls: type[Any]) -> frozenset[str]:
    """Return every name that can be given, with parts of settings as `backoff.cap`."""
    return frozenset(_hints(cls))


def from_env(cls: type[T], environ: Mapping[str, str], prefix: str) -> T:
    """Read settings from variables such as PREFIX_LEASE and PREFIX_BACKOFF_CAP. Other variables are ignored."""
    known = {prefix + name.upper().replace(".", "_"): name for name in names(cls)}
    texts = {known[variable]: text for variable, text in environ.items() if variable in known}
    return from_texts(cls, texts)


def from_texts(cls: type[T], texts: Mapping[str, str]) -> T:
    """Read settings from names and texts. An unknown name is an error that suggests a known one."""
    hints = _hints(cls)
    for name in texts:
        _check_name(name, hints)
    return _made(cls, {name: _parsed(name, hints[name], text) for name, text in texts.items()})


def from_toml(cls: type[T], path: Path) -> T:
    """Read settings from the table [millstream] or [tool.millstream] of a TOML file, or from its top level."""
    try:
        whole = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    table = whole.get("millstream", whole.get("tool", {}).get("millstream"))
    hints = _hints(cls)
    flat = dict(_flat(whole if table is None else table, hints))
    for name in flat:
        _check_name(name, hints)
    return _made(cls, {name: _native(hints[name], value) for name, value in flat.items()})


def _hints(cls: type[Any]) -> dict[str, Any]:
    """Return names and types. A dataclass setting is listed by its parts, and by its own name if it may be None."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(cls).items():
        inner = next((kind for kind in _kinds(hint) if dataclasses.is_dataclass(kind)), None)
        if inner is None or NoneType in _kinds(hint):
            found[name] = hint
        if inner is not None:
            found |= {f"{name}.{part}": kind for part, kind in get_type_hints(inner).items()}
    return found


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) is UnionType else (hint,)


def _check_name(name: str, hints: Mapping[str, Any]) -> None:
    if name not in hints:
        near = difflib.get_close_matches(name, hints, 1)
        raise ConfigError(f"{name}: there is no such setting" + (f"; is {near[0]} meant?" if near else ""))


def _parsed(name: str, hint: Any, text: str) -> Any:
    """Parse a text as a value of a type."""
    kinds, word = _kinds(hint), text.strip().lower()
    if bool in kinds and word in FLAGS:
        return FLAGS[word]
    if NoneType in kinds and (word in NOTHING or (word == "off" and _holds_dataclass(kinds))):
        return None
    for kind, what in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise ConfigError(f"{name}: must be {what}, not {text!r}") from None
    if bool in kinds or _holds_dataclass(kinds):
        raise ConfigError(f"{name}: must be {'true or false' if bool in kinds else 'none'}, not {text!r}")
    return _native(hint, text)


def _native(hint: Any, value: Any) -> Any:
    """Convert the TOML values that have no equivalent type. Settings check all other types themselves."""
    if value is False and _holds_dataclass(_kinds(hint)):
        return None
    if isinstance(value, str) and value.lower() == DISCARD and type[Discard] in _kinds(hint):
        return Discard
    return value


def _holds_dataclass(kinds: tuple[Any, ...]) -> bool:
    return any(dataclasses.is_dataclass(kind) for kind in kinds)


def _flat(table: Mapping[str, Any], hints: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Flatten inner tables into names such as `backoff.cap`."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict) and any(known.startswith(f"{name}.") for known in hints):
            found += [(f"{name}.{part}", inner) for part, inner in value.items()]
        else:
            found.append((name, value))
    return found


def _made(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build the settings. Parts replace those of the default of their setting."""
    whole = {name: value for name, value in values.items() if "." not in name}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        owner, dot, part = name.partition(".")
        if dot:
            parts.setdefault(owner, {})[part] = value
    defaults: Any = cls()
    for owner, given in parts.items():
        if owner in whole:
            raise ConfigError(f"{owner}: is switched off and given in parts")
        try:
            whole[owner] = dataclasses.replace(getattr(defaults, owner), **given)
        except ConfigError as error:
            raise ConfigError(f"{owner}.{str(error).partition('.')[2]}") from error
    return cls(**whole)
