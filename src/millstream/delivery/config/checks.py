"""Checks of settings. A failure is a ConfigError that names the field and the rule."""

from __future__ import annotations

import math

from millstream.errors import ConfigError


def number(name: str, value: object) -> None:
    """Require a finite number; True and "7" are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name}: must be a finite number, not {value!r}")


def whole(name: str, value: object, least: int) -> None:
    """Require a whole number that is not below the least."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}: must be a whole number, {least} or more, not {value!r}")


def text(name: str, value: object) -> None:
    """Require a non-empty str."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name}: must be text that is not empty, not {value!r}")


def flag(name: str, value: object) -> None:
    """Require True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: must be true or false, not {value!r}")


def holds(name: str, value: object, is_kept: bool, rule: str) -> None:
    """Require that a rule holds."""
    if not is_kept:
        raise ConfigError(f"{name}: {rule}, not {value!r}")
