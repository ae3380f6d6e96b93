"""The tests mirror the rooms: the test of ``solver/step/stretch.py`` is ``tests/solver/step/test_stretch.py``."""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT

ROOMS = ("solver", "models", "runtime", "weft")
#: Tests of a room as a whole, or of one question about several of its files.
OF_ROOMS = {
    "models/test_public_names.py", "runtime/test_public_names.py", "solver/test_public_names.py",
    "weft/test_mistakes.py",
    "solver/baselines/test_baselines.py", "solver/baselines/test_known.py",
    "solver/bounds/test_bounds.py", "solver/bounds/test_rounded.py",
    "solver/io/test_wide_problems.py", "solver/orders/test_cyclic_objectives.py", "solver/period/test_contracts.py",
    "solver/step/test_faults_of_phases.py",
    "models/candidates/test_build_adama.py", "models/communication/test_random_programs.py",
    "models/transform/captured/test_operators.py",
    "models/zoo/test_parameters.py",
    "runtime/captured/test_random_numbers.py",
    "runtime/execute/test_results.py", "runtime/measure/test_measure_graphs.py", "runtime/plan/test_reductions.py",
    "runtime/plan/test_waiting.py",
    "runtime/share/test_killed.py", "runtime/share/test_mixes.py",
    "runtime/train/test_agreement_split.py", "runtime/train/test_split_backward.py",
    "runtime/transports/test_processes.py", "runtime/transports/test_transports.py",
    "runtime/transports/test_unknown_shapes.py",
    "weft/app/test_all_cuts.py",
    "weft/app/place/test_files.py",
}


@pytest.mark.parametrize("room", ROOMS)
def test_every_test_file_stands_where_its_file_does(room: str) -> None:
    tests = ROOT / "tests"
    astray = []
    for path in sorted((tests / room).rglob("test_*.py")):
        inside = path.relative_to(tests)
        tested = ROOT / inside.with_name(inside.name.removeprefix("test_"))
        if not tested.exists() and not tested.with_suffix("").is_dir() and str(inside) not in OF_ROOMS:
            astray.append(str(inside))
    assert not astray


def test_no_exception_is_left_of_a_test_that_went() -> None:
    assert all((ROOT / "tests" / path).exists() for path in OF_ROOMS)
