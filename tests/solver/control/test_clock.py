"""When a process began: a shell that became it does not count."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Shorter than the shell's sleep by more than Python takes to start.
_SLEEP, _LESS = 3, 2.5

_SAID = "import time; from weft.solver.control.clock import process_start; print(time.monotonic() - process_start())"


@pytest.mark.slow
def test_a_shell_that_became_the_process_is_not_counted() -> None:
    """``sh -c "pip install . && weft demo"`` runs its last command in its own place: the install took no limit."""
    ended = subprocess.run(["sh", "-c", f'sleep {_SLEEP}; exec "$0" -c "$1"', sys.executable, _SAID],
                           capture_output=True, text=True, timeout=600, check=True)
    assert 0 < float(ended.stdout) < _LESS
