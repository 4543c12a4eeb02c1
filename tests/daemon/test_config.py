"""What the daemons can be told: where a value comes from, and what is said of a wrong one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from varlog import limits
from varlog.daemon.config import (
    DaemonConfig,
    ManagerConfig,
    MetadataRepositoryConfig,
    StorageNodeConfig,
    load,
    options,
)
from varlog.errors import BadConfig
from varlog.wire.endpoint import parse_address

LEAST = {"volumes": ["/v"], "secret_file": "/s"}
EVERY_CONFIG = [StorageNodeConfig, MetadataRepositoryConfig, ManagerConfig]


def written(folder: Path, text: str) -> str:
    file = folder / "daemon.toml"
    file.write_text(text)
    return str(file)


def refusal(config: type[DaemonConfig], flags: dict[str, Any], file: str | None = None) -> str:
    with pytest.raises(BadConfig) as refused:
        load(config, flags, file)
    return str(refused.value)


def test_certificates_are_given_whole_or_not_at_all(tmp_path: Path) -> None:
    assert load(StorageNodeConfig, LEAST).tls is None
    three = {"tls_cert": "/cert", "tls_key": "/key", "tls_ca": "/ca"}
    assert load(StorageNodeConfig, LEAST | three).tls == ("/cert", "/key", "/ca")
    for left_out in three:
        some = {key: value for key, value in three.items() if key != left_out}
        assert "together or not at all" in refusal(StorageNodeConfig, LEAST | some)
    file = written(tmp_path, 'tls_cert = "tls/cert.pem"\ntls_key = "tls/key.pem"\ntls_ca = "/ca.pem"\n')
    in_file = load(StorageNodeConfig, LEAST, file).tls
    assert in_file == (str(tmp_path / "tls" / "cert.pem"), str(tmp_path / "tls" / "key.pem"), "/ca.pem")


def test_defaults() -> None:
    node = load(StorageNodeConfig, LEAST)
    assert node == StorageNodeConfig(volumes=["/v"], secret_file="/s")
    assert (node.cluster, node.snid, node.listen, node.http) == (1, None, "127.0.0.1:9091", "127.0.0.1:9191")
    assert (node.metadata_repository, node.advertise) == ("127.0.0.1:9092", None)
    assert (node.sync, node.error_if_exists, node.segment_bytes) == (True, False, limits.SEGMENT_BYTES)
    assert node.busy_poll == 400
    repository = load(MetadataRepositoryConfig, {"path": "/p", "secret_file": "/s"})
    assert (repository.listen, repository.http) == ("127.0.0.1:9092", "127.0.0.1:9192")
    assert repository.busy_poll == 600
    manager = load(ManagerConfig, {"secret_file": "/s"})
    assert (manager.listen, manager.http) == ("127.0.0.1:9093", "127.0.0.1:9193")


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_every_daemon_listens_on_loopback_unless_told_otherwise(config: type[DaemonConfig]) -> None:
    defaults = {option.key: option.default for option in options(config).values()}
    assert {parse_address(defaults[key])[0] for key in ("listen", "http")} == {"127.0.0.1"}


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_every_option_says_what_it_is_for_and_what_is_accepted(config: type[DaemonConfig]) -> None:
    assert not [option.key for option in options(config).values() if not (option.description and option.accepted)]


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_no_option_takes_a_secret(config: type[DaemonConfig]) -> None:
    assert [key for key in options(config) if "secret" in key] == ["secret_file"]


def test_a_file_sets_every_kind_of_value(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        cluster = 7
        snid = 3
        volumes = ["/a", "/b"]
        listen = "[::1]:0"
        metadata_repository = "meta.example:9092"
        secret_file = "/s"
        http = "off"
        sync = false
        log_level = "debug"
        """,
    )
    assert load(StorageNodeConfig, {}, file) == StorageNodeConfig(
        cluster=7,
        snid=3,
        volumes=["/a", "/b"],
        listen="[::1]:0",
        metadata_repository="meta.example:9092",
        secret_file="/s",
        http=None,
        sync=False,
        log_level="debug",
    )


def test_flags_stand_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, 'cluster = 7\nsnid = 3\nvolumes = ["/a", "/b"]\nsecret_file = "/s"\nsync = false\n')
    node = load(StorageNodeConfig, {"cluster": "8", "volumes": ["/c"], "sync": True}, file)
    assert (node.cluster, node.snid, node.volumes, node.sync) == (8, 3, ["/c"], True)
    assert node.log_level == "info"


def test_paths_in_a_file_are_relative_to_it_and_paths_in_flags_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    file = written(folder, 'volumes = ["data", "/abs"]\nsecret_file = "../secret"\n')
    node = load(StorageNodeConfig, {}, file)
    assert node.volumes == [str(folder / "data"), "/abs"]
    assert os.path.normpath(node.secret_file) == str(tmp_path / "secret")
    assert load(StorageNodeConfig, {"secret_file": "mine"}, file).secret_file == "mine"
    repository = load(MetadataRepositoryConfig, {"secret_file": "/s"}, written(folder, 'path = "journal"'))
    assert repository.path == str(folder / "journal")


def test_a_config_file_that_is_not_there() -> None:
    assert refusal(ManagerConfig, {}, "/no/such.toml") == (
        "/no/such.toml: the config file cannot be read: No such file or directory"
    )


def test_a_config_file_that_is_a_directory(tmp_path: Path) -> None:
    assert refusal(ManagerConfig, {}, str(tmp_path)) == f"{tmp_path}: the config file cannot be read: Is a directory"


@pytest.mark.parametrize("content", [b"cluster = ", b"\xff\xfe", b"cluster = 1\ncluster = 2", b"a = " + b"[" * 9999])
def test_a_config_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "daemon.toml"
    file.write_bytes(content)
    assert refusal(ManagerConfig, {}, str(file)).startswith(f"{file}: this is not TOML: ")


def test_a_key_that_does_not_exist(tmp_path: Path) -> None:
    file = written(tmp_path, "clutser = 1")
    told = refusal(ManagerConfig, {}, file)
    assert told.startswith(f"{file}: there is no key 'clutser' (did you mean 'cluster'?); keys are ")
    assert all(key in told for key in options(ManagerConfig))


def test_a_key_of_another_daemon(tmp_path: Path) -> None:
    file = written(tmp_path, 'volumes = ["/v"]')
    assert f"{file}: there is no key 'volumes'" in refusal(MetadataRepositoryConfig, {}, file)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cluster = '1'", "cluster is '1': Expected int, got str; accepted is a whole number from 1 to 4294967295"),
        ("cluster = 0", "cluster is 0: Expected int >= 1; accepted is a whole number from 1 to 4294967295"),
        ("cluster = 4294967296", "cluster is 4294967296: Expected int <= 4294967295; accepted is a whole number"),
        ("cluster = true", "cluster is True: Expected int, got bool"),
        ("snid = 1.5", "snid is 1.5: Expected int | null, got float; accepted is a whole number"),
        ("sync = 'no'", "sync is 'no': Expected bool, got str; accepted is true or false"),
        ("volumes = '/v'", "volumes is '/v': Expected array, got str; accepted is one or more directories"),
        ("volumes = []", "volumes is []: Expected array of length >= 1; accepted is one or more directories"),
        ("volumes = ['/v', 1]", "volumes is ['/v', 1]: Expected str, got int - at $[1]; accepted is one or more"),
        ("volumes = ['']", "volumes is ['']: it is empty; accepted is one or more directories"),
        ("secret_file = ''", "secret_file is '': it is empty; accepted is a path"),
        (
            "listen = '9091'",
            "listen is '9091': '9091' is not an address; write host:port, or [host]:port for IPv6; accepted",
        ),
        ("http = 'on'", "http is 'on': 'on' is not an address; write host:port, or [host]:port for IPv6; accepted is"),
        ("metadata_repository = 'h:0'", "metadata_repository is 'h:0': nobody can be reached at port 0; accepted is"),
        ("log_level = 'loud'", "log_level is 'loud': Invalid enum value 'loud'; accepted is debug, info, warning or"),
        ("log_format = 1", "log_format is 1: Expected str, got int; accepted is auto, console or json"),
        ("busy_poll = -1", "busy_poll is -1: Expected int >= 0; accepted is microseconds, from 0 to 10000"),
        ("segment_bytes = 1", "segment_bytes is 1: Expected int >= 1024; accepted is bytes, from 1024 to 2147483648"),
    ],
)
def test_a_wrong_value_in_a_file_is_named_with_file_key_and_what_is_accepted(
    tmp_path: Path, line: str, told: str
) -> None:
    file = written(tmp_path, line)
    assert refusal(StorageNodeConfig, {}, file).startswith(f"{file}: {told}")


@pytest.mark.parametrize(
    "value", ["nan", "1e400", "2026-01-01", "[[1]]", "{ a = 1 }", "[{ secret = 'x' }]", f"{1 << 70}"]
)
@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_no_value_of_any_key_is_met_with_anything_but_a_clear_refusal(
    tmp_path: Path, config: type[DaemonConfig], value: str
) -> None:
    for key in options(config):
        file = written(tmp_path, f"{key} = {value}")
        assert refusal(config, {}, file).startswith(f"{file}: {key} is ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"cluster": "one"}, "--cluster is 'one': Expected int, got str; accepted is a whole number from 1 to"),
        ({"snid": "-1"}, "--snid is '-1': Expected int >= 1; accepted is a whole number from 1 to"),
        ({"metadata_repository": "x"}, "--metadata-repository is 'x': 'x' is not an address; write host:port"),
        ({"ready_fd": "x"}, "--ready-fd is 'x': Expected int | null, got str; accepted is the number of an open file"),
    ],
)
def test_a_wrong_value_of_a_flag_is_named_with_the_flag(flags: dict[str, str], told: str) -> None:
    assert refusal(StorageNodeConfig, flags).startswith(told)


@pytest.mark.parametrize(
    ("config", "given", "missing"),
    [
        (StorageNodeConfig, {"secret_file": "/s"}, "--volumes"),
        (StorageNodeConfig, {"volumes": ["/v"]}, "--secret-file"),
        (MetadataRepositoryConfig, {"secret_file": "/s"}, "--path DIRECTORY or --store etcd://HOST:PORT/PREFIX"),
        (ManagerConfig, {}, "--secret-file"),
    ],
)
def test_what_must_be_given(config: type[DaemonConfig], given: dict[str, Any], missing: str) -> None:
    assert refusal(config, given).startswith(f"{missing} is missing: ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"path": "/m", "store": "etcd://a:1/p"}, "--path DIRECTORY or --store"),
        ({"path": "/m", "etcd_user": "root"}, "etcd_user is for an etcd"),
        ({"path": "/m", "etcd_any_version": "true"}, "etcd_any_version is for an etcd"),
        ({"store": "/m"}, "store is '/m'; accepted is etcd://HOST:PORT,HOST:PORT/PREFIX"),
        ({"store": "etcd://a:1/p", "listen": "0.0.0.0:1"}, "listen is '0.0.0.0:1', every interface"),
    ],
)
def test_where_metadata_is_kept_is_said_in_one_way(flags: dict[str, str], told: str) -> None:
    assert refusal(MetadataRepositoryConfig, {"secret_file": "/s", **flags}).startswith(told)


def test_O3_several_metadata_repositories_may_be_named() -> None:
    given = {"secret_file": "/s", "metadata_repository": "a:1, b:2,[::1]:3"}
    assert load(ManagerConfig, given).metadata_repository == given["metadata_repository"]
    for wrong, told in (("a:1,", "'' is not an address"), ("a:1,a:1", "given twice"), ("a:1,b:0", "port 0")):
        assert told in refusal(ManagerConfig, {"secret_file": "/s", "metadata_repository": wrong})


@pytest.mark.parametrize("again", ["/v", "/v/", "/v/../v"])
def test_a_volume_given_twice(again: str) -> None:
    assert refusal(StorageNodeConfig, {"volumes": ["/v", again], "secret_file": "/s"}).startswith(
        "volumes: /v is given twice"
    )


@pytest.mark.parametrize("listen", ["0.0.0.0:9091", "[::]:9091"])
def test_who_listens_everywhere_says_where_it_is_reached(listen: str) -> None:
    assert "--advertise HOST:PORT" in refusal(StorageNodeConfig, {**LEAST, "listen": listen})
    assert "--advertise HOST:PORT" in refusal(ManagerConfig, {"secret_file": "/s", "listen": listen})
    node = load(StorageNodeConfig, {**LEAST, "listen": listen, "advertise": "10.0.0.7:9091"})
    assert node.advertise == "10.0.0.7:9091"
    repository = load(MetadataRepositoryConfig, {"path": "/p", "secret_file": "/s", "listen": listen})
    assert repository.listen == listen


def test_a_config_cannot_be_made_with_a_key_it_does_not_have() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `secret`"):
        msgspec.convert({**LEAST, "secret": "x"}, StorageNodeConfig)
