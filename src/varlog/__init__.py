"""Varlog: a strongly consistent, totally ordered distributed log.

    import asyncio, varlog

    async def main() -> None:
        async with varlog.embedded("varlog-data") as log:
            result = await log.append(b"hello")
            print(result.glsn, (await log.read(result.glsn)).data)

    asyncio.run(main())

`connect` opens a topic of a running cluster, `embedded` one of a cluster inside this process, `admin` is for operators;
`varlog.sync` has the same without asyncio. docs/client.md shows all of it.

To read the code, start at `varlog.types`, the words of the field; then `varlog.batch`, the unit everything is made of;
then `varlog.core`, where every decision of the protocol is taken without any I/O. Importing this package alone imports
nothing else: what is named below is imported when it is first used.

What the library has to tell besides results and errors it logs, below the standard logger "varlog". An application that
has set up no logging hears nothing of it.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from varlog.batch import Codec
    from varlog.client.administering import Admin, admin
    from varlog.client.entries import AppendResult, Entry, EntryBatch
    from varlog.client.log import Log, connect
    from varlog.client.reading import Subscription
    from varlog.client.transactions import Transaction, TransactionResult
    from varlog.client.writing import Appender
    from varlog.core.transacting import Part
    from varlog.oneprocess import embedded
    from varlog.wire.tls import TlsFiles

__version__ = "0.1.0.dev0"

__all__ = [
    "Admin",
    "AppendResult",
    "Appender",
    "Codec",
    "Entry",
    "EntryBatch",
    "Log",
    "Part",
    "Subscription",
    "TlsFiles",
    "Transaction",
    "TransactionResult",
    "admin",
    "connect",
    "embedded",
]

logging.getLogger("varlog").addHandler(logging.NullHandler())

_HOMES: Final = {
    "Admin": "varlog.client.administering",
    "AppendResult": "varlog.client.entries",
    "Appender": "varlog.client.writing",
    "Codec": "varlog.batch",
    "Entry": "varlog.client.entries",
    "EntryBatch": "varlog.client.entries",
    "Log": "varlog.client.log",
    "Part": "varlog.core.transacting",
    "Subscription": "varlog.client.reading",
    "TlsFiles": "varlog.wire.tls",
    "Transaction": "varlog.client.transactions",
    "TransactionResult": "varlog.client.transactions",
    "admin": "varlog.client.administering",
    "connect": "varlog.client.log",
    "embedded": "varlog.oneprocess",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'varlog' has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found
