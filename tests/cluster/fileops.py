"""Programs for a file system, as plain data: the same program runs over any implementation of the file seam.

An operation is a list: its name and arguments. Files are named by paths below a root, open files by their number in the
order they were opened. Results and errors are noted, so that two runs can be compared.

Run as a module, it performs the program that comes on its standard input on a `ForgetfulFileSystem`, and is then killed
by its own hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

from tests.cluster.forgetful import ForgetfulFileSystem
from varlog.storage.files import File, FileSystem

Operation = Sequence[str | int]


class Performer:
    """A file system, a root in it, and the files a program has opened there."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._files: list[File] = []
        fs.mkdir(root)

    def perform(self, operation: Operation) -> object:
        """What the operation gave, or that it failed."""
        name, *arguments = operation
        try:
            if isinstance(arguments[0], str):
                return self._on_names(str(name), [f"{self._root}/{path}" for path in arguments])
            numbers = [int(argument) for argument in arguments]
            return self._on_file(str(name), self._files[numbers[0]], numbers[1:]) if self._files else None
        except OSError:
            return "failed"
        except IndexError:
            return "no such file is open"

    def _on_names(self, name: str, paths: list[str]) -> object:
        if name in {"open", "create"}:
            self._files.append(getattr(self._fs, name)(*paths))
            return None
        result: object = getattr(self._fs, name)(*paths)
        return result

    def _on_file(self, name: str, file: File, numbers: list[int]) -> object:
        if name == "write":
            byte, length, offset = numbers
            half = length // 2
            file.pwritev([bytes([byte]) * half, memoryview(bytes([byte]) * (length - half))], offset)
            return None
        result: object = getattr(file, name)(*numbers)
        return result


def main() -> None:
    """Perform, then die."""
    root, scratch = sys.argv[1:]
    performer = Performer(ForgetfulFileSystem(scratch), root)
    for operation in json.load(sys.stdin):
        performer.perform(operation)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
