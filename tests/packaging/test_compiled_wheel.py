"""The wheel with the compiled core, built from the source package, and the extra `spark` in a fresh environment."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.building import build, environment, run_in

pytestmark = pytest.mark.long


@pytest.mark.timeout(5000)
def test_a_compiled_wheel_is_built_from_the_source_package_and_works_with_spark(tmp_path: Path) -> None:
    archive = build(tmp_path / "one", "sdist")["sdist"]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    wheel = build(tmp_path / "two", "wheel", is_compiled=True, source=source)["wheel"]
    assert "-cp3" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "millstream/engine/streams/entries.py" in names  # the source is there too, for who reads a traceback
    assert [name for name in names if name.startswith("millstream/engine/streams/entries.cpython")]
    python = environment(tmp_path / "fresh", f"{wheel}[spark]")
    shutil.copy(Path(__file__).with_name("smoke.py"), tmp_path)
    words = ("smoke.py", "--compiled", "--spark")
    assert run_in(python, *words, cwd=tmp_path).endswith("smoke: all well\n")
