"""SIGTERM and SIGINT at moments of every long command, in processes of their own."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.signals import cases, signalled

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
BOTH = (signal.SIGTERM, signal.SIGINT)


def check(name: str, number: int, after: float, folder: Path, *, answer: bool) -> None:
    case = next(case for case in cases(folder) if case.name == name)
    ended = signalled(case, number, after, folder, answer=answer)
    assert ended.faults == (), ended.printed
    assert ended.kept >= ended.answered >= answer, ended.printed
    assert ended.status in ((0, 130) if ended.kept else (130,)), ended.printed


def test_a_batch_system_ends_a_search_and_has_its_result(tmp_path: Path) -> None:
    check("solve", signal.SIGTERM, 0.2, tmp_path, answer=True)


def test_a_stop_while_modules_are_imported_is_one_sentence(tmp_path: Path) -> None:
    check("compare", signal.SIGINT, 0.1, tmp_path, answer=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "numbers"), [
    (name, BOTH[::1 - 2 * (place % 2)])
    for place, name in enumerate(("solve", "compare", "sweep", "explain", "demo", "place", "latency"))])
def test_every_long_command_keeps_its_answer(name: str, numbers: Sequence[int], tmp_path: Path) -> None:
    """At some moment, and once it has an answer."""
    draw = random.Random(name)
    for moment, number in enumerate(numbers):
        (tmp_path / str(moment)).mkdir()
        check(name, number, draw.uniform(0, 1.5), tmp_path / str(moment), answer=moment > 0)
