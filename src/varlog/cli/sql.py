"""`varlog sql`: look into the log with SQL.

Every topic that the query names is a view of that name, and `log` is the topic of `--topic`; Spark does the rest, in
this process and a Java process beside it, without a Spark cluster. The query is planned twice: first over all of the
topics, which tells the bounds on `glsn` and `timestamp` that it has for each, and then over views that have no more. A
result is cut at `--limit` rows, which the query is told. So looking at a few entries of a great log is cheap.

What always holds: nothing is changed, neither in the log nor elsewhere. What Spark and Java say goes to a file of their
own and never between the results. That file, and everything else that Spark writes, is in a temporary directory that
goes away with the command.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter, validators

from varlog.cli.options import USUAL_TOPIC, Flag, Topic, Whole
from varlog.cli.results import Bytes, print_csv, print_json, print_table
from varlog.client.cluster import DEFAULT_DIRECTORY, ENVIRONMENT
from varlog.errors import BadQuery, InvalidArgument, QueryFailed, UnknownTopic, VarlogError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from varlog.spark.bounds import Bounds

VIEW: Final = "log"
"""The chosen topic's name in queries."""
ROWS: Final = 1000
MOST_ROWS: Final = 1_000_000

_OURS: Final = re.compile(r"^(?:\w+\.)*varlog\.errors\.(\w+): (.*)$", re.MULTILINE)
_SPARKS: Final = re.compile(r"^\[[\w.]+\] | SQLSTATE: \w+|\n== SQL.*|;\n.*", re.DOTALL)
"""What Spark adds for those who work on Spark."""
_UNRESOLVED: Final = re.compile(r"The table or view `?([^`]+?)`? cannot be found")
_NO_QUERY: Final = "this is no query, as SELECT, SHOW, DESCRIBE and EXPLAIN are; nothing of it was done"

Limit = Annotated[Whole, Parameter(validator=validators.Number(gte=1, lte=MOST_ROWS), metavar="N")]


def sql(
    query: str | None = None,
    /,
    *,
    limit: Limit = ROWS,
    csv: Flag = False,
    form: Annotated[Bytes, Parameter(name="--format")] = Bytes.TEXT,
    at: Topic = USUAL_TOPIC,
) -> None:
    """Look into the log with SQL.

    Parameters
    ----------
    query
        What to ask; without it, it is read from standard input.
    limit
        Show at most so many rows.
    csv
        Print comma-separated values, with a line of titles.
    form
        How to show bytes, such as payloads; text is 0x... where it is not UTF-8.
    """
    if csv and at.json:
        raise InvalidArgument("--csv and --json exclude each other")
    given = query if query is not None else "" if sys.stdin.isatty() else sys.stdin.read()
    asked = given.strip().rstrip(";")
    if not asked:
        raise InvalidArgument("there is no query; for example: varlog sql 'select count(*) from log'")
    topics = asyncio.run(_topics(at))
    chosen = at.topic_name()
    if chosen not in topics and (at.topic or VIEW in asked.lower()):
        raise UnknownTopic(f"there is no topic {chosen!r}")
    begun = time.monotonic()
    with _spark() as session:
        table = _answer(session, asked, limit + 1, at, topics, _views(asked, topics, chosen))
    shown = table.slice(0, limit)
    output = at.output
    {(True, False): print_json, (False, True): print_csv}.get((at.json, csv), print_table)(shown, form, output)
    if table.num_rows > limit:
        output.note(f"only the first {limit:,} rows are shown; --limit shows more")
    elif output.is_terminal and not csv:
        rows = "1 row" if shown.num_rows == 1 else f"{shown.num_rows:,} rows"
        output.note(f"{rows}, {time.monotonic() - begun:.1f} s")


async def _topics(at: Topic) -> list[str]:
    async with at.admin() as admin:
        return [topic.name for topic in (await admin.metadata(timeout=at.patience)).topics]


def _views(query: str, topics: Iterable[str], chosen: str) -> dict[str, str]:
    """The topic behind each view that the query may mean. Making a view takes a moment, and a query that names one has
    its name somewhere; who asks which there are wants all."""
    folded = query.lower()
    of_topics = {name: name for name in topics} | {VIEW: chosen}
    if folded.startswith("show"):
        return of_topics
    return {name: topic for name, topic in of_topics.items() if name.lower() in folded}


@contextmanager
def _spark() -> Iterator[SparkSession]:
    """A session for one query; one that somebody else has made is used, and stays."""
    from varlog.spark import session  # noqa: PLC0415  # takes a while to import

    logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints errors that are told here in one line
    there_is_one = _there_is_one()
    with tempfile.TemporaryDirectory(prefix="varlog-sql-") as directory, _telling("Spark is at work"):
        spark = session(
            "varlog sql",
            log_file=Path(directory, "spark.log"),
            **{"spark.sql.warehouse.dir": str(Path(directory, "warehouse")), "spark.local.dir": directory},
        )
        try:
            yield spark
        finally:
            if not there_is_one:
                spark.stop()


def _there_is_one() -> bool:
    if sys.modules.get("pyspark") is None:
        return False
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.getActiveSession() is not None


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Whoever sits at a terminal sees that something is under way."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status(what):
        yield


def _make_views(
    spark: SparkSession, views: Mapping[str, str], at: Topic, limits: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Views of topics, of all or of those that have `limits` and within these."""
    for name, topic in views.items():
        if limits is not None and topic not in limits:
            continue
        options = _source_options(at, topic) | dict(limits[topic] if limits is not None else {})
        reader = spark.read.format("varlog").options(**options)
        reader.load().createOrReplaceTempView("`" + name.replace("`", "``") + "`")


def _source_options(at: Topic, topic: str) -> dict[str, str]:
    """The same cluster for the source, whatever directory it is used from."""
    where = at.cluster or os.environ.get(ENVIRONMENT) or DEFAULT_DIRECTORY
    options = {"cluster": str(Path(where).resolve()) if Path(where).exists() else where, "topic": topic}
    if at.cid is not None:
        options["cid"] = str(at.cid)
    if at.secret_file is not None:
        options["secretFile"] = str(at.secret_file.resolve())
    if at.tls is not None:
        from varlog.spark.options import TLS_OPTIONS  # noqa: PLC0415

        named = zip(TLS_OPTIONS, at.tls, strict=True)
        options |= {name: str(Path(file).resolve()) for name, file in named}
    return options


def _answer(
    spark: SparkSession, query: str, rows: int, at: Topic, topics: Iterable[str], views: Mapping[str, str]
) -> pa.Table:
    """The first rows of the result; `BadQuery` if it is no query, or what the source had to say."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from varlog.spark.asking import only_asks  # noqa: PLC0415
    from varlog.spark.bounds import EVERYTHING, are_within, bounds_of  # noqa: PLC0415

    try:
        _make_views(spark, views, at)
        if not only_asks(spark, query):
            raise BadQuery(_NO_QUERY)
        frame = spark.sql(query).limit(rows)
        bounds = {topic: found for topic, found in bounds_of(frame).items() if found != EVERYTHING}
        if bounds:
            _make_views(spark, views, at, asyncio.run(_limits(at, bounds)))
            narrow = spark.sql(query).limit(rows)
            # now() is later by now, and so may be a bound.
            frame = narrow if are_within(bounds_of(narrow), bounds) else frame
        return frame.toArrow()
    except PySparkException as error:
        raise _explained(error, topics) from None


async def _limits(at: Topic, bounds: Mapping[str, Bounds]) -> dict[str, dict[str, str]]:
    from varlog.spark.bounds import limiting_options  # noqa: PLC0415

    limits = {}
    for topic, wanted in bounds.items():
        async with at.connect(topic) as log:
            limits[topic] = await limiting_options(log, wanted)
    return limits


def _explained(error: PySparkException, topics: Iterable[str]) -> VarlogError:
    """What a person can do something about, of all that Spark says."""
    from pyspark.errors import PythonException, UnknownException  # noqa: PLC0415

    told = str(error).strip()
    for name, message in reversed(_OURS.findall(told)):
        for known in VarlogError.registry.values():
            if known.__name__ == name:
                return known.__new__(known, message)  # some are made of more than a text, which is what there is
    unresolved = _UNRESOLVED.search(told)
    if unresolved is not None:
        return BadQuery(f"there is no topic {unresolved[1]!r}; there are: {', '.join(sorted(topics)) or 'none'}")
    if isinstance(error, (PythonException, UnknownException)):
        return QueryFailed(_SPARKS.sub("", told).strip())
    return BadQuery(_SPARKS.sub("", told.partition("\n\n")[0]).strip())
