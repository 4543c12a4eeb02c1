"""The declarative pipeline on the source: run twice, each run adds what is new."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.find_spark_home import _find_spark_home

import varlog.sync
from tests.cli.shell import Dev
from tests.spark.pythons import python_at
from varlog.spark.java import find_java

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "declarative"
SECONDS = 250.0

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path / "varlog-data")
    yield dev
    assert dev.stop() == (0, "")


def append(log: Dev, *orders: str) -> None:
    with varlog.sync.connect(log.path) as connected:
        connected.append_batch([order.encode() for order in orders])


def run(directory: Path, log: Dev) -> None:
    options = ["--remote", "local[2]", "--conf", "spark.sql.catalogImplementation=hive"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(Path(_find_spark_home(), "bin", "spark-pipelines")), "run", *options],
        cwd=directory,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PATH": path,
            "PYSPARK_PYTHON": str(python_at(directory.parent / "python")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "VARLOG_CLUSTER": str(log.path),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED." in done.stdout + done.stderr


def table(directory: Path, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(directory / "spark-warehouse" / name).to_pylist()
    return rows


def test_P1_a_declarative_pipeline_goes_on_where_it_was(log: Dev, tmp_path: Path) -> None:
    directory = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, directory)
    spec = directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/varlog-orders", (tmp_path / "storage").as_uri()))
    append(log, '{"item": "tea", "cents": 250}', '{"item": "coffee", "cents": 320}')
    run(directory, log)
    append(log, '{"item": "tea", "cents": 200}')
    run(directory, log)
    orders = sorted((row["glsn"], row["item"], row["cents"]) for row in table(directory, "orders"))
    assert orders == [(1, "tea", 250), (2, "coffee", 320), (3, "tea", 200)]
    sales = {row["item"]: (row["orders"], row["cents"], row["last_glsn"]) for row in table(directory, "sales")}
    assert sales == {"tea": (2, 450, 3), "coffee": (1, 320, 2)}
