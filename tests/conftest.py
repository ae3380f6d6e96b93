"""Hypothesis explores anew on every run at a desk, and repeats itself in CI, where a failure must be the change's."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
