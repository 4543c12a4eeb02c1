"""The package itself: what importing it costs, and what it offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import varlog


def test_importing_the_package_imports_nothing_of_weight() -> None:
    program = (
        "import sys, varlog; varlog.__version__\n"
        "assert not {'asyncio', 'numpy', 'pyarrow', 'msgspec', 'varlog.client'} & set(sys.modules)\n"
        "assert varlog.connect and varlog.embedded and varlog.Codec and varlog.admin\n"
        "assert not {'numpy', 'pyarrow', 'zstandard'} & set(sys.modules)\n"
        "assert set(varlog.__all__) <= set(dir(varlog)) | {name for name in varlog.__all__ if getattr(varlog, name)}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = varlog.nonsense
