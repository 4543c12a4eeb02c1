"""A Spark cluster of its own: a master and two workers as processes on loopback, and `spark-submit` to it.

The workers know nothing of the environment that the tests run in: they have Java, Spark and the plain Python that our
virtual environment was made from. Everything they need of Varlog has to be shipped to them.

Processes end by their ids, and with the test's own process however that ends; every wait has a deadline.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

from tests.docs.sessions import until
from varlog.spark.java import find_java

SECONDS: Final = 60.0
WORKERS: Final = 2
LOOPBACK: Final = "127.0.0.1"
PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""By this name: of the driver it is the virtual environment's, of the workers the plain one."""

JAVA_OPTIONS: Final = os.environ.get("SPARK_SUBMIT_OPTS", "")
"""As of all other Java processes of the tests."""

_BOUND: Final = """
import os, sys
from varlog.daemon.child import end_with
end_with(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


class StandaloneSpark:
    """See the module's text."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = Path(_find_spark_home())
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self) -> None:
        master = ("org.apache.spark.deploy.master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        self.url = self._start("master", master, r"Starting Spark master at (spark://\S+)")
        for number in range(1, WORKERS + 1):
            worker = (
                *("org.apache.spark.deploy.worker.Worker", "--host", LOOPBACK, "--port", "0", "--webui-port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / f"work {number}"), self.url),
            )
            self._start(f"worker-{number}", worker, r"Successfully registered with master (\S+)")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def submit(self, options: Sequence[str], program: Path, *arguments: str) -> subprocess.Popen[str]:
        """`spark-submit` of a program to the cluster, from the environment that the tests run in."""
        command = [
            *(str(self.home / "bin" / "spark-submit"), "--master", self.url),
            *("--conf", f"spark.driver.host={LOOPBACK}", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.executor.memory=512m", "--driver-memory", "512m"),
            *("--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"),
            *options,
            str(program),
            *arguments,
        ]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**self._environment(path), "PYSPARK_PYTHON": PYTHON}
        return subprocess.Popen(
            [sys.executable, "-c", _BOUND, str(os.getpid()), *command],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def logs(self) -> str:
        """What the cluster and its executors have said."""
        files = [*self.directory.glob("*.log"), *self.directory.glob("work */*/*/stderr")]
        return "\n".join(f"==> {file}\n{file.read_text(errors='replace')[-4000:]}" for file in files)

    def _start(self, name: str, command: Sequence[str], ready: str) -> str:
        log = self.directory / f"{name}.log"
        plain = Path(sys.base_prefix) / "bin"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOUND, str(os.getpid()), str(self.home / "bin" / "spark-class"), *command],
                cwd=self.directory,
                env=self._environment(f"{plain}{os.pathsep}{os.defpath}"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(process)
        until(lambda: process.poll() is not None or re.search(ready, log.read_text()) is not None)
        found = re.search(ready, log.read_text())
        assert found is not None, f"{name} ended with exit code {process.poll()} and said:\n{log.read_text()}"
        return found[1]

    def _environment(self, path: str) -> Mapping[str, str]:
        return {
            "HOME": str(self.directory),
            "JAVA_HOME": str(find_java().home),
            "PATH": path,
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(self.home),
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
            "SPARK_LOCAL_DIRS": str(self.directory / "scratch"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # always at the same port
            "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
        }


@contextmanager
def standalone(directory: Path) -> Iterator[StandaloneSpark]:
    """A cluster, for as long as it is needed."""
    directory.mkdir(parents=True)
    cluster = StandaloneSpark(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def descendants(pids: Sequence[int]) -> list[int]:
    """Processes, and those they have started."""
    found = list(pids)
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
    return found


def listening(pids: Sequence[int]) -> set[str]:
    """The addresses, without ports, at which processes listen."""
    inodes = set()
    for pid in pids:
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        inodes |= {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                addresses.add(local.partition(":")[0])
    return addresses
