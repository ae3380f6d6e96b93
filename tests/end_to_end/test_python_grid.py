"""Every documented function on every kind of input: it runs, or raises one sentence.

What is expected of each cell is in :mod:`tests.support.python_grid`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.kinds_of_input import KINDS, MICRO_BATCHES, write_inputs
from tests.support.python_grid import CALLS, Call
from weft.app.lib.counted import counted

#: Kinds of model specs that have much in common with others, and take longest.
OTHERS = ("config", "lengths", "decide", "graph")


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of input."""
    folder = tmp_path_factory.mktemp("sources")
    write_inputs(folder)
    return folder


@pytest.mark.parametrize(("call", "kind"), [
    pytest.param(call, kind, id=f"{call.name}-{kind}",
                 marks=[pytest.mark.slow] if kind not in call.refused and (call.slow or kind in OTHERS) else [])
    for call in CALLS for kind in KINDS])
def test_a_function_runs_or_raises_a_sentence(call: Call, kind: str, inputs: Path) -> None:
    count: dict[str, Any] = {"micro_batches": counted(MICRO_BATCHES[kind])} if kind in MICRO_BATCHES else {}
    if kind in call.refused:
        with pytest.raises(ValueError) as refusal:
            call.call(inputs / KINDS[kind], **count)
        sentence = str(refusal.value)
        assert call.refused[kind] in sentence and "\n" not in sentence
    else:
        found = call.call(inputs / KINDS[kind], **count)
        assert str(found) and all(hasattr(found, name) for name in call.fields.split())
