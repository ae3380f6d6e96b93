"""The cells of the notebook of examples run, up to the one that starts ranks, and print as many lines as it shows."""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stdout
from itertools import takewhile
from typing import Any

import pytest

from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "any_model.ipynb"


def test_the_notebook_s_cells_print_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    monkeypatch.syspath_prepend(str(NOTEBOOK.parent))
    logging.disable(logging.DEBUG)  # torch writes traces of every tensor to whoever listens to all levels
    names: dict[str, Any] = {"__name__": "__main__"}
    run = 0
    try:
        for cell in takewhile(lambda cell: "torch.distributed.run" not in "".join(cell["source"]), cells):
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile("".join(cell["source"]), "cell", "exec"), names)
            shown, = cell["outputs"]
            assert len(printed.getvalue().splitlines()) == len(shown["text"])
            run += 1
    finally:
        logging.disable(logging.NOTSET)
    assert run >= 4
