"""The Python that Spark is given finds what is installed, and not the same in a zip file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from varlog.spark.interpreter import interpreter

SAYS = "import os, sys, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, sys.prefix, sys.argv[1], sep='\\n')"


def test_the_zip_files_of_spark_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pyspark  # noqa: PLC0415

    monkeypatch.delenv("SPARK_HOME", raising=False)
    zips = ["/spark home/python/lib/pyspark.zip", "/spark home/python/lib/py4j-0.10.9.9-src.zip"]
    others = [str(tmp_path / "mine *"), "/somewhere/pyspark.zip"]
    done = subprocess.run(
        [interpreter(), "-c", SAYS, "an argument"],
        env={**os.environ, "PYTHONPATH": ":".join([*zips, *others])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [":".join(others), pyspark.__file__, sys.prefix, "an argument"]


def test_a_spark_of_another_place_keeps_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert interpreter() == sys.executable


def test_the_processes_of_a_session_have_what_is_installed(spark: SparkSession) -> None:
    import pyspark  # noqa: PLC0415

    def place(_: object) -> str:
        import pyspark  # noqa: PLC0415

        return pyspark.__file__

    assert spark.sparkContext.parallelize([1], 1).map(place).collect() == [pyspark.__file__]
