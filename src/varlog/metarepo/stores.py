"""Where metadata is kept, by one name: a directory for the embedded journal, or the address of an etcd.

    if is_etcd(where):
        store = await open_etcd(where)

A journal has an owner that drives it (see `journal`), and is opened by whoever that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from varlog.errors import NotInstalled
from varlog.metarepo.etcd.address import EtcdAddress, EtcdOptions

if TYPE_CHECKING:
    from varlog.metarepo.etcd.store import EtcdStore


def is_etcd(where: str) -> bool:
    """Whether it names an etcd; else it names a directory."""
    return where.startswith(("etcd://", "etcds://"))


async def open_etcd(where: str, options: EtcdOptions | None = None, *, any_version: bool = False) -> EtcdStore:
    """See `EtcdStore.open`. Raises NotInstalled too."""
    address = EtcdAddress.parse(where)
    try:
        from varlog.metarepo.etcd.store import EtcdStore  # noqa: PLC0415  # it needs an extra
    except ImportError as e:
        raise NotInstalled(f"what speaks with etcd is not installed ({e}); run: pip install 'varlog[etcd]'") from None
    return await EtcdStore.open(address, options, any_version=any_version)
