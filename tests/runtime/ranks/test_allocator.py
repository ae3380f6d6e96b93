"""Freed memory of a CPU is used again."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    # In a process of its own: where freed blocks lie in a heap with a history decides which of them are used again.
    # 64 MiB at once, because glibc keeps a single freed block of 16 MiB by itself.
    rounds = """if True:
        import resource, torch
        from weft.runtime.ranks.allocator import keep_freed_memory
        print(keep_freed_memory())
        for _ in range(8):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            held = [torch.ones(16 * 2**20, dtype=torch.uint8) for _ in range(4)]
            del held
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    ended = subprocess.run([sys.executable, "-c", rounds], capture_output=True, text=True, timeout=600, check=True)
    kept, *faults = ended.stdout.split()
    if kept != "True":
        pytest.skip("not glibc")
    assert min(map(int, faults[2:])) < 1000, faults  # 16384 pages a round where none is kept
