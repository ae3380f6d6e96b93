"""Where the repository, its data for tests, and its specs are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Files for tests, and among them inputs that once showed a fault.
DATA, REPROS = ROOT / "tests" / "data", ROOT / "tests" / "data" / "repros"
SPECS = ROOT / "experiments" / "specs"
#: Published inputs that are not shipped; tests that want them skip where they are missing.
SHARED = ROOT.parent / "shared" / "data"


def written(path: Path, text: str) -> Path:
    """``path``, with this text in it."""
    path.write_text(text)
    return path
