"""The archive of a topic: ordered Parquet files, and a Delta log that lists them.

    <place>/_delta_log/                                     the list, written by `deltalake`: a Delta table
    <place>/data/{begin}-{end}-{unique}.parquet             the rows of the GLSNs [begin, end), in GLSN order

Where things are: `place` is about paths, URIs and what is durable; `parquet` about one file; `manifest` about the list;
`table` about the whole. It needs no cluster and no Spark, only `pyarrow` and `deltalake` (`varlog[archive]`); any tool
that reads Delta tables or Parquet can read it too.
"""

from __future__ import annotations

from varlog.errors import NotInstalled

try:
    import deltalake as _deltalake  # noqa: F401  # said once, in words, instead of wherever it is used
except ImportError as error:
    raise NotInstalled("archives need the library deltalake: pip install 'varlog[archive]'") from error

from varlog.archive.parquet import Range
from varlog.archive.place import Place, resolve
from varlog.archive.table import Archive, write_range

__all__ = ["Archive", "Place", "Range", "resolve", "write_range"]
