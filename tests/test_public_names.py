"""The package's public names: all there, each from its home, and none imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millstream


def test_every_public_name_is_there() -> None:
    assert sorted(millstream._HOMES) == sorted(millstream.__all__)
    for name in millstream.__all__:
        assert getattr(millstream, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Strema"):
        millstream.Strema  # noqa: B018


def test_importing_the_package_imports_nothing_else_of_it_but_the_version() -> None:
    script = "import sys, millstream; print([name for name in sys.modules if name.startswith('millstream.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['millstream.version']"
