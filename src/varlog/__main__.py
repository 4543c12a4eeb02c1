"""`python -m varlog` is the same as the command `varlog`."""

from __future__ import annotations

import sys

from varlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
