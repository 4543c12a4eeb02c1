"""`varlog dev`: a whole cluster in this process, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from cyclopts import Parameter, Token, validators

from varlog.cli.complaints import telling
from varlog.cli.options import JSON, Positive, Text, Whole
from varlog.cli.output import Output
from varlog.client.cluster import CLUSTER_FILE, DEFAULT_DIRECTORY, DEFAULT_TOPIC
from varlog.daemon.service import loop_factory
from varlog.errors import DirectoryLocked, InvalidArgument
from varlog.oneprocess import NODES, EmbeddedCluster
from varlog.types import Ordering, StreamStatus

HOST: Final = "127.0.0.1"
PORT: Final = 9092

Port = Annotated[Whole, Parameter(validator=validators.Number(gte=0, lte=0xFFFF), metavar="N")]


def _named(_kind: object, tokens: Sequence[Token]) -> Path:
    """An empty name, of a variable that is not set for example, would be the current directory."""
    if not tokens[0].value:
        raise InvalidArgument("--data is empty; name a directory, . is this one")
    return Path(tokens[0].value)


Data = Annotated[Path, Parameter(converter=_named, metavar="DIR")]


def dev(
    *,
    data: Data = Path(DEFAULT_DIRECTORY),
    port: Port = PORT,
    nodes: Positive | None = None,
    topic: Annotated[Text, Parameter(metavar="NAME")] = DEFAULT_TOPIC,
    streams: Positive | None = None,
    ordering: Annotated[Literal["commit", "sequencer"] | None, Parameter()] = None,
    etcd: Annotated[bool, Parameter(negative=())] = False,
    json: JSON = False,
) -> None:
    """Run a cluster.

    Parameters
    ----------
    data
        Where everything is kept.
    port
        Where clients find it, on loopback; 0 takes any free port. The other parts of the cluster take free ones.
    nodes
        How many storage nodes, up to 64; without it 3, or as many as there are.
    topic
        The topic that is made if it is not there.
    streams
        How many log streams it is made with; without it 1.
    ordering
        Who says where its entries stand: the metadata repository as it commits them, or a sequencer before they are
        written; without it the former.
    etcd
        Keep the metadata in an etcd of its own, three processes, with two metadata repositories.
    """
    cluster = _Dev(data, Output(json=json))
    with telling(json=json), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(cluster.run(f"{HOST}:{port}", _Wanted(topic, nodes, streams, ordering), etcd=etcd))


class _Wanted(NamedTuple):
    """What was asked for, and None where nothing was."""

    topic: str
    nodes: int | None
    streams: int | None
    ordering: str | None


class _Dev:
    """One run of the command."""

    def __init__(self, data: Path, output: Output) -> None:
        self._data = data
        self._output = output

    async def run(self, listen: str, wanted: _Wanted, *, etcd: bool) -> None:
        """From start to stop."""
        stopping = asyncio.ensure_future(self._told_to_stop())
        starting = asyncio.ensure_future(
            EmbeddedCluster.start(
                self._data,
                topic=wanted.topic,
                streams=wanted.streams or 1,
                nodes=wanted.nodes or NODES,
                listen=listen,
                etcd=etcd,
                ordering=wanted.ordering or Ordering.COMMIT.label,
            )
        )
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        try:
            cluster = starting.result()
        except DirectoryLocked as error:
            raise DirectoryLocked(f"{error}, or use another directory; varlog status shows what runs there") from None
        try:
            self._announce(cluster, wanted)
            await asyncio.wait({stopping, cluster.failed}, return_when=asyncio.FIRST_COMPLETED)
            if cluster.failed.done():
                cluster.failed.result()
            self._output.note("stopping")
        finally:
            stopping.cancel()
            await cluster.stop()

    async def _told_to_stop(self) -> None:
        """Wait for Ctrl-C or SIGTERM. A second one ends the process at once: what was acknowledged is on disk."""
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, told.set)
        await told.wait()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def _announce(self, cluster: EmbeddedCluster, wanted: _Wanted) -> None:
        file, topic = self._data / CLUSTER_FILE, wanted.topic
        metadata = cluster.manager.metadata
        assert metadata is not None, "a cluster that has started has metadata"
        made = next(known for known in metadata.topics if known.name == topic)
        unmade = {StreamStatus.CREATING, StreamStatus.ABORTED}
        streams = sum(stream.tpid == made.tpid and stream.status not in unmade for stream in metadata.streams)
        self._output.record(
            {
                "address": cluster.address,
                "cluster_file": str(file.resolve()),
                "topic": topic,
                "log_streams": streams,
                "nodes": len(cluster.nodes),
                "pid": os.getpid(),
            }
        )
        where = "" if self._data == Path(DEFAULT_DIRECTORY) else f" --cluster {self._data}"
        nodes = "1 storage node" if len(cluster.nodes) == 1 else f"{len(cluster.nodes)} storage nodes"
        self._output.line(
            f"Varlog runs here: {nodes}, topic {topic!r}, log streams: {streams}.\n"
            "\n"
            f"  address       {cluster.address}\n"
            f"  cluster file  {file}\n"
            "\n"
            "In another terminal, in this directory:\n"
            "\n"
            f"  varlog append{where} 'hello'\n"
            f"  varlog tail{where} -f\n"
            f"  varlog status{where}\n"
            "\n"
            f"Ctrl-C stops it. What was appended is kept in {self._data}."
        )
        self._tell_unmet(cluster, wanted, _Wanted(topic, len(cluster.nodes), streams, made.ordering.label))

    def _tell_unmet(self, cluster: EmbeddedCluster, wanted: _Wanted, there: _Wanted) -> None:
        """Say what is otherwise than one might think."""
        for snid in cluster.renewed:
            self._output.note(f"node-{snid} was empty: the other storage nodes give it what it had")
        if wanted.nodes not in (None, there.nodes):
            self._output.note(f"--nodes {wanted.nodes} was not applied: there are {there.nodes} already")
        if wanted.streams not in (None, there.streams):
            told = f"topic {there.topic!r} is there already, with {there.streams}; varlog stream add makes more"
            self._output.note(f"--streams {wanted.streams} was not applied: {told}")
        if wanted.ordering not in (None, there.ordering):
            told = f"topic {there.topic!r} is there already, with {there.ordering}; --topic makes another one"
            self._output.note(f"--ordering {wanted.ordering} was not applied: {told}")
