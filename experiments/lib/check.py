"""Does a small rerun still give the figures that stand in an experiment's file?

The rerun has the file's own effort on a few of its rows. Each row that it finds is compared with the row of the file
that is most like it; times, and what sums up all rows, are left out.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.lib.catalogue import Experiment
from experiments.lib.provenance import ROOT

#: Keys of times, and of sums over all rows.
_LEFT_OUT = re.compile(r"provenance|seconds|wall|cpu|summary|^best$")


def checked(experiment: Experiment) -> list[str]:
    """What a small rerun finds otherwise than the file has it. The experiment must have a ``check``."""
    assert experiment.check is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [sys.executable, "-m", f"experiments.{experiment.module}", *shlex.split(experiment.check)]
        ended = subprocess.run([*command, "--output", str(file)], cwd=ROOT, check=False, capture_output=True, text=True)
        if not file.exists():
            return [f"it ends with {ended.returncode}: {ended.stderr[-200:]}"]
        return [*differences(json.loads(file.read_text()), experiment.content)]


def differences(found: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where ``found`` is not as ``kept`` has it; ``None`` and what is empty say nothing."""
    if found is None or found in ([], {}):
        return
    if isinstance(found, dict) and isinstance(kept, dict):
        for key, value in found.items():
            if key not in kept:
                yield f"{path}.{key} is not in the file"
            elif not _LEFT_OUT.search(key):
                yield from differences(value, kept[key], f"{path}.{key}")
    elif isinstance(found, list) and isinstance(kept, list) and found and isinstance(found[0], dict) and kept:
        for row in found:
            at = max(range(len(kept)), key=lambda i: _alike(row, kept[i]))
            yield from differences(row, kept[at], f"{path}[{at}]")
    elif isinstance(found, int | float) and isinstance(kept, int | float):
        if not math.isclose(found, kept, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{path} is {found:g}, in the file {kept:g}"
    elif found != kept:
        yield f"{path} is {str(found)[:60]}, in the file {str(kept)[:60]}"


def _alike(row: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(value == other.get(key) for key, value in row.items())
