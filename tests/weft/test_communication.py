"""``weft.communication``: its names, and the example that its documentation shows."""

from __future__ import annotations

import textwrap

import pytest

import weft
from tests.support.loading import loaded_after
from weft import communication


def test_every_name_is_there_and_none_loads_torch_but_to_run_on_ranks() -> None:
    assert all(getattr(communication, name) for name in communication.__all__)
    code = ("import weft; here = weft.communication; "
            "names = [getattr(here, name) for name in here.__all__ "
            "if name not in ('Emulated', 'ProgramOnRank', 'RankError', 'ShardedOptimizer')]")
    assert loaded_after(code, "torch", "ortools", "altair") == []
    assert weft.communication is communication
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        communication.nothing  # noqa: B018


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert communication.__doc__
    example = textwrap.dedent(communication.__doc__.partition("::\n")[2].partition("\n:class:")[0])
    assert len(example.strip().splitlines()) >= 20
    exec(compile(example, "example", "exec"), {})
    assert capsys.readouterr().out.startswith("(MM-RS-C-AG): ")
