"""What a fresh interpreter has loaded after some code."""

from __future__ import annotations

import subprocess
import sys


def loaded_after(code: str, *modules: str) -> list[str]:
    """Those of ``modules`` that a fresh interpreter has loaded once it has run ``code``, in the order asked."""
    asked = f"{code}\nimport sys; print(*(name for name in {modules!r} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
