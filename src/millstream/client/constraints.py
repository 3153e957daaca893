"""Constraints in `Annotated`: `Annotated[int, Gt(0)]`, `Annotated[str, Field(max_length=80)]`.

Read by attribute names, so that `annotated_types`, pydantic's `Field` and msgspec's `Meta` work and none is imported.
What has none of these attributes (a text, a unit) is documentation and is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from millstream.errors import ConfigError


class Constraint(NamedTuple):
    """A rule for a value; `text` says what the value must be."""

    text: str
    is_kept: Callable[[Any], bool]


def _length(least: bool) -> Callable[[int], Constraint]:
    if least:
        return lambda limit: Constraint(f"must have a length of {limit} or more", lambda value: len(value) >= limit)
    return lambda limit: Constraint(f"must have a length of {limit} or less", lambda value: len(value) <= limit)


def _pattern(pattern: Any) -> Constraint:
    compiled = re.compile(pattern)
    return Constraint(f"must match {compiled.pattern}", lambda value: compiled.search(value) is not None)


_BY_ATTRIBUTE: Final[dict[str, Callable[[Any], Constraint]]] = {
    "gt": lambda limit: Constraint(f"must be above {limit}", lambda value: value > limit),
    "ge": lambda limit: Constraint(f"must be at least {limit}", lambda value: value >= limit),
    "lt": lambda limit: Constraint(f"must be below {limit}", lambda value: value < limit),
    "le": lambda limit: Constraint(f"must be at most {limit}", lambda value: value <= limit),
    "multiple_of": lambda step: Constraint(f"must be a multiple of {step}", lambda value: value % step == 0),
    "min_length": _length(least=True),
    "max_length": _length(least=False),
    "pattern": _pattern,
}


def constraints_of(metadata: Iterable[Any]) -> list[Constraint]:
    """Return the constraints among what `Annotated` says about a type."""
    return [constraint for item in metadata for constraint in _constraints(item)]


def _constraints(item: Any) -> Iterator[Constraint]:
    if isinstance(item, str | type):
        return
    inner = getattr(item, "metadata", None)
    if isinstance(inner, list | tuple):  # pydantic's Field
        yield from constraints_of(inner)
        return
    for name, make in _BY_ATTRIBUTE.items():
        limit = getattr(item, name, None)
        if limit is not None and not (name == "min_length" and limit == 0):
            try:
                yield make(limit)
            except re.error as error:
                raise ConfigError(f"the pattern {limit!r} cannot be used: {error}") from error
    if type(item).__name__ == "Predicate" and callable(getattr(item, "func", None)):
        yield Constraint(f"must satisfy {getattr(item.func, '__name__', repr(item.func))}", item.func)
    if type(item).__name__ == "Timezone":
        yield _timezone(item.tz)


def _timezone(zone: Any) -> Constraint:
    if zone is None:
        return Constraint("must be without a time zone", lambda value: value.tzinfo is None)
    if zone is ...:
        return Constraint("must have a time zone", lambda value: value.tzinfo is not None)
    raise ConfigError(f"Timezone({zone!r}) is not checked here: use Timezone(...) or Timezone(None)")
