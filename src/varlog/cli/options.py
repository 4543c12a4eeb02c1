"""The options that every command takes: which cluster, and how to speak to it and of it.

`--cluster` and its companions are the arguments of `varlog.connect`, by the same names, and mean the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import CoercionError, Group, Parameter, Token, validators

from varlog.cli.complaints import telling
from varlog.cli.failures import connecting
from varlog.cli.output import Output
from varlog.errors import InvalidArgument

if TYPE_CHECKING:
    from varlog import Admin, Log, TlsFiles

CLUSTER: Final = Group("Cluster", sort_key=90)
REACH_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 10.0

_WHERE: Final = (
    "Where the cluster is: HOST:PORT of its metadata repositories, separated by commas; or the path of its cluster "
    "file, or of the directory that holds it. Without it $VARLOG_CLUSTER, else ./varlog-data."
)
_CID: Final = "The cluster's id, if no cluster file says it and it is not 1."
_SECRET_FILE: Final = "The cluster's secret, if no cluster file says where it is."
_TLS_CERT: Final = "The certificate to show, if the cluster uses TLS and no cluster file says where it is."
_TLS_KEY: Final = "The certificate's private key."
_TLS_CA: Final = "The certificates of the cluster's CA."
_TIMEOUT: Final = (
    f"How long to wait before giving up; without it {REACH_SECONDS:g} seconds to reach the cluster, and "
    f"{ANSWER_SECONDS:g} for it to do something."
)
_TOPIC: Final = 'The topic; without it the one that the cluster file names, else "log".'

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
JSON = Annotated[Flag, Parameter(help="Print JSON objects, one to a line, and nothing else.")]
Yes = Annotated[Flag, Parameter(name=["--yes", "-y"], help="Do not ask.")]
Seconds = Annotated[float, Parameter(validator=validators.Number(gt=0), metavar="SECONDS")]


def whole_number(_kind: object, tokens: Sequence[Token]) -> int:
    """A number as it is written in digits, and nothing else: 3.5 is not rounded to what nobody asked for."""
    said = tokens[0].value
    digits = said.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise CoercionError(token=tokens[0], target_type=int)
    return int(said)


def check_text(_kind: object, said: str | None) -> None:
    """Names are text. An argument is bytes, and what is not UTF-8 in them would be refused only by those they are sent
    to, in words that nobody connects with it."""
    if said is not None and not said.isascii() and any("\ud800" <= letter <= "\udfff" for letter in said):
        raise InvalidArgument(f"{said!r} is not UTF-8, and so no name")


Text = Annotated[str, Parameter(validator=check_text)]
Whole = Annotated[int, Parameter(converter=whole_number)]
Positive = Annotated[Whole, Parameter(validator=validators.Number(gte=1), metavar="N")]
Position = Annotated[Whole, Parameter(validator=validators.Number(gte=1, lt=1 << 63))]
Identifier = Annotated[Whole, Parameter(validator=validators.Number(gte=1, lt=1 << 32))]


@Parameter(name="*", group=CLUSTER)
@dataclass(frozen=True)
class Cluster:
    """A cluster, and how to tell what it says."""

    cluster: Annotated[str | None, Parameter(metavar="WHERE", help=_WHERE)] = None
    cid: Annotated[Identifier | None, Parameter(metavar="N", help=_CID)] = None
    secret_file: Annotated[Path | None, Parameter(metavar="FILE", help=_SECRET_FILE)] = None
    timeout: Annotated[Seconds | None, Parameter(help=_TIMEOUT)] = None
    tls_cert: Annotated[Path | None, Parameter(metavar="FILE", help=_TLS_CERT)] = None
    tls_key: Annotated[Path | None, Parameter(metavar="FILE", help=_TLS_KEY)] = None
    tls_ca: Annotated[Path | None, Parameter(metavar="FILE", help=_TLS_CA)] = None
    json: JSON = False

    @property
    def output(self) -> Output:
        return Output(json=self.json)

    @property
    def tls(self) -> TlsFiles | None:
        """The files for TLS, if they were given here."""
        from varlog.wire.tls import TlsFiles  # noqa: PLC0415

        return TlsFiles.of(self.tls_cert, self.tls_key, self.tls_ca)

    @property
    def patience(self) -> float:
        """How long something may take that the cluster is asked for."""
        return self.timeout or ANSWER_SECONDS

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """Connect to look at the cluster and to change it."""
        import varlog  # noqa: PLC0415  # the client is loaded when a command needs it

        with self._complaints():
            with connecting():
                admin = await varlog.admin(self.cluster, **self._companions())
            async with admin:
                yield admin

    @asynccontextmanager
    async def connect(self, topic: str | None) -> AsyncIterator[Log]:
        """Connect to a topic; None is the one that the cluster file names."""
        import varlog  # noqa: PLC0415

        with self._complaints():
            with connecting():
                log = await varlog.connect(self.cluster, topic=topic, **self._companions())
            async with log:
                yield log

    def _complaints(self) -> AbstractContextManager[None]:
        """Tell people meanwhile what is wrong with their secret or certificate; scripts get results and failures."""
        return nullcontext() if self.json else telling("varlog.wire.credentials", json=False)

    def _companions(self) -> dict[str, Any]:
        return {
            "cid": self.cid,
            "secret_file": self.secret_file,
            "tls": self.tls,
            "timeout": self.timeout or REACH_SECONDS,
        }


@Parameter(name="*", group=CLUSTER)
@dataclass(frozen=True)
class Topic(Cluster):
    """A topic of a cluster."""

    topic: Annotated[str | None, Parameter(metavar="NAME", validator=check_text, help=_TOPIC)] = None

    def topic_name(self) -> str:
        """The topic that is meant."""
        from varlog.client.cluster import find  # noqa: PLC0415

        return self.topic or find(self.cluster, cid=self.cid, secret_file=self.secret_file, tls=self.tls).topic

    def log(self) -> AbstractAsyncContextManager[Log]:
        """Connect to the topic."""
        return self.connect(self.topic)


USUAL_CLUSTER: Final = Cluster()
USUAL_TOPIC: Final = Topic()
