"""The client library: append to a topic, read it, administer a cluster.

`log` is the entrance; `session` owns connections and metadata, `writing` and `reading` turn calls into work for the
state machines of `varlog.core`, which hold all of the protocol. Everything is asyncio; there are no threads.
"""

from __future__ import annotations

from varlog.client.administering import Admin, admin
from varlog.client.entries import AppendResult, Entry, EntryBatch
from varlog.client.log import Log, connect
from varlog.client.reading import Subscription
from varlog.client.transactions import Transaction, TransactionResult
from varlog.client.writing import Appender
from varlog.core.transacting import Part

__all__ = [
    "Admin",
    "AppendResult",
    "Appender",
    "Entry",
    "EntryBatch",
    "Log",
    "Part",
    "Subscription",
    "Transaction",
    "TransactionResult",
    "admin",
    "connect",
]
