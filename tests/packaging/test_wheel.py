"""The plain wheel and the source package: what is in them, and that a fresh environment with the wheel works."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, build, environment, run_in


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("built"), "sdist", "wheel")


def package_files() -> set[str]:
    """What the packages consist of in this tree."""
    folders = ("millstream", "pyspark_millstream", "pyspark_millstream_settle")
    found = (path for folder in folders for path in (ROOT / "src" / folder).rglob("*"))
    return {
        path.relative_to(ROOT / "src").as_posix()
        for path in found
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }


def test_the_wheel_holds_the_packages_and_nothing_else(built: dict[str, Path]) -> None:
    assert built["wheel"].name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == package_files()


def test_the_source_package_holds_what_a_wheel_is_built_from(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} <= names
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".aof", ".rdb"))]


@pytest.mark.timeout(300)
def test_a_fresh_environment_with_the_wheel_works(built: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "fresh", str(built["wheel"]))
    shutil.copy(Path(__file__).with_name("smoke.py"), tmp_path)
    assert run_in(python, "smoke.py", cwd=tmp_path).endswith("smoke: all well\n")
