"""The instruction text, programs, and the plan file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.runtime.plan.program import Program, ProgramError, parse_instruction


@pytest.mark.parametrize("text", [
    "", "2F", "F0", "2F0 ", " 2F0", "2F0typo", "2X0", "02F0", "2F00", "-1F0", "2f0", "٢F0", "2F0\n",
    "SEND 2F0", "SEND 2F0<1", "RECV 2F0>1", "send 2F0>1", "SEND  2F0>1", "SEND 2F0>01", "SEND SEND 2F0>1>1",
    "REDUCE", "REDUCE 3+0", "REDUCE 0+0", "REDUCE 0+", "REDUCE 00", "REDUCE 0 + 3", "reduce 0", "REDUCE a",
    "embed", "embed[]", "embed[-1]", "2F[0]", '"plain"[0]', '"bad \\x"[0]', "a b[0]",
])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="is no instruction"):
        parse_instruction(text)


def test_a_bad_instruction_is_named_with_its_place() -> None:
    with pytest.raises(ProgramError, match="rank 1, step 2: '1Q0' is no instruction"):
        Program.from_text([["0F0"], ["1F0", "1B0", "1Q0"]])


def test_planning_needs_no_torch() -> None:
    code = "import sys, weft.runtime.plan.plan, weft.runtime.plan.timeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
