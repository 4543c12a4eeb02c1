"""Who a message goes to.

The core names its peers by role and id and leaves it to whoever runs it to find them. A client's address is whatever
its messages came from; the core only hands it back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from varlog import limits
from varlog.core.messages import Message
from varlog.types import StorageNodeID

Address = str
Send = Callable[[Address, Message], None]

METADATA_REPOSITORY: Address = "mr"
"""The metadata repository that leads, whichever process that is."""


def unnamed_address(location: str) -> Address:
    """The address of a node of which only the place is known, before it has said who it is."""
    return f"at/{location}"


def sequencer_address(location: str) -> Address:
    """The address of the sequencer that listens there."""
    return f"sq/{location}"


@lru_cache(limits.MAX_NODES)  # it is looked up for every batch that is sent
def node_address(snid: StorageNodeID) -> Address:
    """The address of a storage node."""
    return f"sn/{snid}"
