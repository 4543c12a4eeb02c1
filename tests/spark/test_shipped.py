"""Files that came with a Spark application are found by their names, and what is private in them is made so."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pyspark import SparkFiles

from tests.wire.certificates import Authority
from varlog.client.cluster import CLUSTER_FILE, ClusterFile, find, write_file
from varlog.spark.connections import locate, pin
from varlog.spark.options import Connection
from varlog.wire.secret import Secret
from varlog.wire.tls import TlsFiles


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Spark puts them: everybody may read and run them."""
    place = tmp_path / "shipped"
    place.mkdir()
    Secret.create(place / "secret")
    Authority().issue(place)
    write_file(
        place / CLUSTER_FILE,
        ClusterFile(
            ("127.0.0.1:1",), secret_file="etc/secret", tls_cert="node.pem", tls_key="node.key", tls_ca="node.ca.pem"
        ),
    )
    for file in place.iterdir():
        file.chmod(0o755)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(place))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    return place


def assert_usable(connection: Connection) -> None:
    cluster = find(connection.cluster, cid=connection.cid, secret_file=connection.secret_file, tls=connection.tls)
    assert cluster.credentials.tls is not None


def assert_private(shipped: Path) -> None:
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in shipped.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"secret", "node.key"}


def test_by_options(shipped: Path) -> None:
    named = Connection("127.0.0.1:1", None, 1, "secret", tls=TlsFiles("node.pem", "node.key", "node.ca.pem"))
    assert_usable(locate(named))
    assert_private(shipped)


def test_by_a_cluster_file(shipped: Path) -> None:
    assert_usable(locate(Connection("/where/the/driver/has/cluster.toml")))
    assert_private(shipped)


def test_a_driver_names_files_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.pem").touch()
    monkeypatch.chdir(tmp_path)
    pinned = pin(Connection("a:1", tls=TlsFiles("node.pem", "gone.key", "/ca.pem")))
    assert pinned.tls == (str(tmp_path / "node.pem"), "gone.key", "/ca.pem")
