"""`spark-submit` of a program that uses `session()`: what was submitted is what runs, in the one Java that is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from millstream.spark.runtime.java import find_java, wrapped_home
from tests.spark.conftest import SOURCE, Place
from tests.spark.processes import Processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc")

PROGRAM = """
import sys
from pathlib import Path
from millstream.spark import session
spark = session("ours", master=sys.argv[1] if len(sys.argv) > 1 else None)
assert session("again") is not None
own = Path(f"/proc/self/task/{__import__('os').getpid()}/children").read_text().split()
java = [pid for pid in own if "java" in Path(f"/proc/{pid}/cmdline").read_text().split(chr(0))[0]]
conf = spark.conf
print("ran", spark.sparkContext.master, spark.sparkContext.appName, conf.get("spark.sql.shuffle.partitions"),
      conf.get("spark.sql.session.timeZone"), spark.range(10).count(), len(java), flush=True)
spark.stop()
"""
START_S = 280


WHEEL_PROGRAM = """
import sys
import millstream
from millstream.spark import session
spark = session("ours")
frame = spark.read.format("millstream").option("url", sys.argv[1]).option("stream", "orders").load()
out = frame.selectExpr("id as n").write.format("millstream").mode("append").option("url", sys.argv[1])
out.option("stream", "copies").save()
print(millstream.__file__.split("/")[-3], flush=True)
spark.stop()
"""


def submitted(tmp_path: Path, *words: str, text: str = PROGRAM, **own: str) -> subprocess.Popen[str]:
    import pyspark

    program = tmp_path / "program.py"
    program.write_text(text)
    home = Path(pyspark.__path__[0])
    java = wrapped_home(find_java(), tmp_path / "java")
    places = {"SPARK_HOME": str(home), "JAVA_HOME": str(java)}
    own = {**places, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable, **own}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    return subprocess.Popen(
        [str(home / "bin" / "spark-submit"), *words[:-1], str(program), *words[-1:]],
        env=others | own | {"SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "err").open("w"),
        text=True,
    )


def test_what_was_submitted_is_what_runs(tmp_path: Path) -> None:
    """Even against a program that names another master. There is no second Java."""
    settings = ("--conf", "spark.sql.shuffle.partitions=3", "--conf", "spark.ui.enabled=false")
    process = submitted(tmp_path, "--master", "local[1]", "--name", "x", *settings, "local[2]")
    out, _ = process.communicate(timeout=START_S)
    assert process.returncode == 0, (tmp_path / "err").read_text()[-3000:]
    assert out.splitlines()[-1].split() == ["ran", "local[1]", "x", "3", "UTC", "10", "0"]


def test_the_package_can_be_submitted_as_a_wheel(tmp_path: Path, place: Place) -> None:
    """Where it is not installed: neither in the driver's Python nor in that of the workers."""
    import pyspark

    wheel = tmp_path / "millstream-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("millstream", "pyspark_millstream", "pyspark_millstream_settle"):
            for path in (SOURCE / name).rglob("*"):
                if path.suffix in (".py", ".lua"):
                    archive.write(path, path.relative_to(SOURCE))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # finds no editable install
    python.chmod(0o755)
    place.client.xadd("orders", {"n": 1})
    words = ("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--py-files", str(wheel), place.url)
    own = {"PYTHONPATH": str(Path(pyspark.__path__[0]).parent), "PYSPARK_PYTHON": str(python)}
    process = submitted(tmp_path, *words, text=WHEEL_PROGRAM, **own)
    out, _ = process.communicate(timeout=START_S)
    assert process.returncode == 0, (tmp_path / "err").read_text()[-3000:]
    assert out.splitlines()[-1] == wheel.name
    assert place.client.xlen("copies") == 1


def test_a_master_that_was_submitted_is_asked_and_nothing_runs_here(tmp_path: Path) -> None:
    process = submitted(tmp_path, "--master", "spark://127.0.0.1:1", "--conf", "spark.ui.enabled=false", "local[1]")
    processes = Processes(process.pid)
    try:
        deadline = time.monotonic() + START_S
        while "Failed to connect to master 127.0.0.1:1" not in (tmp_path / "err").read_text():
            assert process.poll() is None, (tmp_path / "err").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "err").read_text()[-3000:]
            processes.look()
            time.sleep(0.1)
    finally:
        processes.close()
        out, _ = process.communicate(timeout=START_S)
    assert "ran" not in out.split()


def test_the_file_of_defaults_is_read_as_spark_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.spark.runtime.session import _defaults_file

    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.master  spark://there:7077\nspark.app.name=x y\n\nother.thing 1\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert _defaults_file() == {"spark.master": "spark://there:7077", "spark.app.name": "x y"}
