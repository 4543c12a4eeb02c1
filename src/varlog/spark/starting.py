"""`session`: a Spark session that is ready for a notebook, a script or a job.

In a process of its own it is a local Spark that needs no configuration: Java is found or brought along (`java`), the
workers run this Python, times are UTC, nothing listens beyond loopback, there is no web page, and only errors are
printed. What the caller says goes before all that. Under `spark-submit`, and wherever somebody has made a session
before, that Spark is taken as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from varlog import errors
from varlog.spark.interpreter import interpreter
from varlog.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNTIME: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""What a session can be told at any time."""
LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false",
}
"""What it has to be told before it begins. Batches reach Spark faster over Unix sockets than over TCP, and are read
faster if Arrow does not look for every value whether it is there and within its column: Spark asks for no others."""
HERE: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Where all of it runs on this machine. By its other way to write files of a checkpoint, which is meant for distributed
file systems, Spark starts ten processes for every file: 60 ms of every micro-batch."""
_ELSEWHERE: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
"""Where somebody may have named a master that is not this machine."""


def session(
    app_name: str = "varlog", *, master: str | None = None, log_file: str | Path | None = None, **conf: str
) -> SparkSession:
    """A Spark session with the data source `varlog`.

    `master` is where tasks run: without it what Spark's own configuration says, or else this machine. `conf` is Spark's
    configuration, by its names: `session(**{"spark.driver.memory": "4g"})`. What Spark and its workers print goes to
    `log_file` if one is named.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise errors.NotInstalled(f"Spark is not installed ({error}); run: pip install 'varlog[spark]'") from None
    given = {name: str(value) for name, value in conf.items()}
    is_ours = SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    builder = SparkSession.builder
    if is_ours:
        use_java()
        is_here = _is_here(master)
        os.environ.setdefault("PYSPARK_PYTHON", interpreter() if is_here else sys.executable)
        place = {**({"spark.master": master} if master is not None else {}), **(HERE if is_here else {})}
        given = {"spark.app.name": app_name, **LOCAL, **RUNTIME, **place, **given}
        if log_file is not None and SparkContext._gateway is None:
            _start(given, Path(log_file))
    elif master is not None:
        given = {"spark.master": master, **given}
    for name, value in given.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    configured = made.sparkContext.getConf()
    for name, value in RUNTIME.items():
        if not configured.contains(name):
            made.conf.set(name, value)
    if any(character.isspace() for character in os.environ.get("PYSPARK_PYTHON", "")):
        _register(made)
    return made


def _register(spark: SparkSession) -> None:
    """Tell Spark of the source, where it does not look for sources: it takes a Python for missing whose path, handed to
    a shell without quotes, is no command."""
    from varlog.spark.source import VarlogDataSource  # noqa: PLC0415

    spark.dataSource.register(VarlogDataSource)


def _is_here(master: str | None) -> bool:
    """Whether it runs on this machine, where nobody else can reach it."""
    return master.startswith("local") if master is not None else not any(name in os.environ for name in _ELSEWHERE)


def _start(conf: Mapping[str, str], log_file: Path) -> None:
    """Start Spark's Java process with a file for what it prints; the session then finds it running."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    settings = SparkConf()
    for name, value in conf.items():
        settings.set(name, value)
    with log_file.open("ab") as file:
        gateway = launch_gateway(settings, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]
    SparkContext(conf=settings, gateway=gateway)
