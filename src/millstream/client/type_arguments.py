"""Resolve the type arguments of generic classes: `Page[Order]`, `class OrderPage(Page[Order])`.

hints_of(Page[Order])                  {"items": list[Order], "total": int}
argument_of(OrderStream, Stream)       Order, where class OrderStream(Stream[Order])
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Bindings = Mapping[Any, Any]


def bindings_of(type_: Any) -> dict[type, Bindings]:
    """Return what the type parameters of a class and of all its bases stand for; `type_` may have arguments."""
    found: dict[type, Bindings] = {}
    _collect(get_origin(type_) or type_, get_args(type_), found)
    return found


def _collect(cls: type, arguments: tuple[Any, ...], found: dict[type, Bindings]) -> None:
    own = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    found.setdefault(cls, own)
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and origin is not object:
            _collect(origin, tuple(resolve(each, own) for each in get_args(base)), found)


def resolve(hint: Any, bindings: Bindings) -> Any:
    """Put type arguments into a type; parameters that are not bound stay."""
    if isinstance(hint, TypeVar):
        return bindings.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(bindings.get(each, each) for each in parameters)]


def hints_of(type_: Any) -> dict[str, Any]:
    """Return the annotations of a class, its type arguments put in."""
    cls = get_origin(type_) or type_
    hints, found = get_type_hints(cls, include_extras=True), bindings_of(type_)
    for name, hint in hints.items():
        home = next((each for each in cls.__mro__ if name in inspect.get_annotations(each)), cls)
        hints[name] = resolve(hint, found.get(home, {}))
    return hints


def argument_of(type_: Any, base: type) -> Any:
    """Return the first type argument that a class, perhaps with arguments, gives one of its bases; None without one."""
    bindings = bindings_of(type_).get(base, {})
    argument = next(iter(bindings.values()), None)
    return None if isinstance(argument, TypeVar) else argument
