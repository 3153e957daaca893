"""Objects of the user's programs, named as MODULE:NAME on the command line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import TracebackType
from typing import Any

from millstream.cli.exits import Failure
from millstream.errors import ConfigError
from millstream.printable import printable_trace


def load_object(target: str, kinds: type | tuple[type, ...], what: str) -> Any:
    """Import a module from this directory or the Python path and return its object NAME, which must be of a kind.

    Raises ConfigError if the target is wrong, Failure with the traceback if the module itself fails.
    """
    module_name, mark, name = target.partition(":")
    if not mark or not module_name or not name:
        raise ConfigError(f"{target!r} is not the name of a {what}: use MODULE:NAME, such as app:orders")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name, here)
    found = getattr(module, name, None)
    if not isinstance(found, kinds):
        names = [each for each, value in vars(module).items() if isinstance(value, kinds)]
        raise ConfigError(f"{module_name!r} has no {what} named {name!r}; it has {', '.join(names) or 'none'}")
    return found


def _imported(name: str, here: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise ConfigError(f"there is no module {name!r} to import from {here}") from error
        raise _failed(name, error) from error  # the module was found, but not something that it imports
    except (ImportError, ValueError, TypeError) as error:
        if name.startswith(".") or ".." in name:
            raise ConfigError(f"{name!r} is not the name of a module") from error
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _is_machinery(trace: TracebackType) -> bool:
    return "importlib" in trace.tb_frame.f_code.co_filename


def _failed(name: str, error: BaseException) -> Failure:
    """Return the user's own error with its traceback, without the frames of the import machinery."""
    trace = error.__traceback__
    while trace is not None and (
        "importlib" in trace.tb_frame.f_code.co_filename or trace.tb_frame.f_code.co_filename == __file__
    ):
        trace = trace.tb_next
    pieces = traceback.format_exception(type(error), error, trace)
    return Failure(f"importing {name!r} failed\n{printable_trace(pieces)}")
