"""Hypothesis explores anew on every run at a desk, and repeats itself in CI, where a failure must be the change's.

No example has a deadline: a busy machine is no fault.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
