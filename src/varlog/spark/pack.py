"""What executors need of Python, as one file: `python -m varlog.spark.pack varlog-deps.tar.gz`.

The machines of a Spark cluster have Java, Spark and a Python, and know nothing of Varlog. This packs Varlog and what it
depends on, as they are installed here, so that executors run what was tested where the job is submitted from:

    spark-submit --archives varlog-deps.tar.gz#varlog-deps --conf spark.executorEnv.PYTHONPATH=varlog-deps ...

Spark unpacks the archive beside every executor, under the name behind the `#`. PySpark is not in it: it belongs to the
Spark that is there. Some packages are compiled, so the executors' Python must be of the same version (3.11, say) and
run on the same kind of machine. Nothing is fetched, and no path of this machine is in the archive.
"""

from __future__ import annotations

import argparse
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("varlog", "pyspark_varlog")
"""Ours: taken from where they are imported, which may be a checkout."""
EXTRAS: Final = frozenset({"archive"})
"""What executors use besides the plain client: they read archives."""
SUFFIXES: Final = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
FASTEST: Final = 1
"""Compiled libraries hardly become smaller by more effort."""

_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9._-]+)")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def distributions() -> list[metadata.Distribution]:
    """What Varlog depends on, directly or not, as it is installed here; sorted by name."""
    found: dict[str, metadata.Distribution] = {}
    wanted = list(_requirements(metadata.distribution("varlog"), EXTRAS))
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # a requirement of other platforms; of ours, this would not be running without it
        wanted += _requirements(found[name], frozenset())
    return [found[name] for name in sorted(found)]


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[str]:
    for requirement in distribution.requires or ():
        extra = _EXTRA.search(requirement)
        named = _REQUIREMENT.match(requirement)
        if named is not None and (extra is None or extra[1] in extras):
            yield re.sub(r"[-_.]+", "-", named[1]).lower()


def files() -> Iterator[tuple[Path, str]]:
    """Every file that goes into the archive, and its name there."""
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None, package
        for location in spec.submodule_search_locations or ():
            for path in sorted(Path(location).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path, f"{package}/{path.relative_to(location)}"
    for distribution in distributions():
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            # What lies outside, such as scripts, is of no use to an executor.
            if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                yield path, str(file)


def pack(archive: Path) -> int:
    """Write the archive, whole or not at all; returns how many files are in it."""
    mode = next((mode for suffix, mode in SUFFIXES.items() if archive.name.endswith(suffix)), None)
    if mode is None:
        raise ValueError(f"{archive}: its name must end in one of {', '.join(SUFFIXES)}: that tells Spark to unpack it")
    compression = {"compresslevel": FASTEST} if mode == "w:gz" else {}
    draft = archive.with_name(f".{archive.name}.new")
    count = 0
    try:
        with tarfile.open(draft, mode, **compression) as tar:  # type: ignore[call-overload]  # by the mode
            for path, name in files():
                tar.add(path, name, recursive=False)
                count += 1
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m varlog.spark.pack", description="Pack what executors need.")
    parser.add_argument("archive", type=Path, help=f"the file to write: {', '.join(SUFFIXES)}")
    archive: Path = parser.parse_args(arguments).archive
    try:
        count = pack(archive)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"varlog: {error}\n")
        return 2
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    size = archive.stat().st_size / 1e6
    sys.stdout.write(
        f"{archive}: {count:,} files, {size:,.0f} MB, for Python {python} on {sysconfig.get_platform()}\n"
        f"  spark-submit --archives '{archive.resolve().as_uri()}#varlog-deps'"
        " --conf spark.executorEnv.PYTHONPATH=varlog-deps ...\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
