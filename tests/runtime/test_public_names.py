"""The names of ``weft.runtime``: all there, each loaded when it is used first."""

from __future__ import annotations

import subprocess
import sys

import pytest

import weft.runtime


def test_every_public_name_is_there_once() -> None:
    assert len(weft.runtime.__all__) == len(set(weft.runtime.__all__))
    for name in weft.runtime.__all__:
        assert getattr(weft.runtime, name).__module__.startswith("weft.runtime.")
    assert set(weft.runtime.__all__) <= set(dir(weft.runtime))


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'weft\.runtime' has no attribute 'training'"):
        weft.runtime.training  # noqa: B018


@pytest.mark.slow
def test_planning_needs_no_torch() -> None:
    program = ("import sys, weft.runtime; from weft.runtime import Plan, ReplayOptions, StageGraph, plan_of; "
               "import weft.runtime.transports, weft.runtime.interface.factory; "
               "assert 'torch' not in sys.modules; from weft.runtime import Training; assert 'torch' in sys.modules")
    subprocess.run([sys.executable, "-c", program], check=True)
