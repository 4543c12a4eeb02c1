"""The Python that a Spark on this machine runs its processes with: this one, and what it has installed.

Spark puts the `pyspark` of a zip file before the installed one, for machines where none is installed. What Python takes
from a zip file it compiles anew in every process, which takes it most of a second; and every streaming query begins
with a process of its own. So Python is put behind a script that leaves out those zip files; the script lies in a
directory of its own, which is removed when the process ends.

What must hold: the `pyspark` that Spark's processes then find is the one that this process has. It is in the same
place, and Spark itself is of the same place; otherwise there is no script.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import site
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

_SCRIPT: Final = """\
#!/bin/sh
found=
IFS=:
for place in $PYTHONPATH; do
  case $place in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) found=$found${{found:+:}}$place ;;
  esac
done
PYTHONPATH=$found exec {python} "$@"
"""


def interpreter() -> str:
    """The program that Spark is to start as Python."""
    import pyspark  # noqa: PLC0415  # it is large

    place = str(Path(pyspark.__file__).parents[1])
    is_installed = place in (*site.getsitepackages(), site.getusersitepackages())
    return str(_behind_script()) if is_installed and "SPARK_HOME" not in os.environ else sys.executable


@cache
def _behind_script() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="varlog-python-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = directory / "python"
    script.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return script
