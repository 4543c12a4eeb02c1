"""What every test shares.

Property tests draw the same examples on every run, so that a failure in CI is a failure at one's desk. To look for new
ones, run them with `--hypothesis-profile=explore`.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=5000)
settings.load_profile("repeatable")
