"""The cluster and the topics of the Spark tests serve the jobs too."""

from __future__ import annotations

from tests.spark.conftest import cluster, topic

__all__ = ["cluster", "topic"]
