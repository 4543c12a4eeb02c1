"""The session: ready for a notebook, and what is missing is said."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

from varlog.errors import NotInstalled
from varlog.spark import session


def test_a_session_is_ready_for_a_notebook(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "what the caller says goes first"


def test_a_second_session_is_the_first_one(spark: SparkSession) -> None:
    assert session("another") is spark


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(NotInstalled, match=r"Spark is not installed .*pip install 'varlog\[spark\]'"):
        session()
