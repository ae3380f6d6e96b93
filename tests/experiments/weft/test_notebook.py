"""The notebook of examples holds the cells that the code has, and those that start no ranks run."""

from __future__ import annotations

import json
import logging

from experiments.weft.notebook import CELLS, NOTEBOOK, notebook


def test_the_notebook_has_the_cells_and_what_they_print() -> None:
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in kept["cells"]] == [
        (cell.kind, cell.text) for cell in CELLS]
    assert all(cell["outputs"] for cell in kept["cells"] if cell["cell_type"] == "code")
    pictures = [output for cell in kept["cells"] for output in cell.get("outputs", ()) if "data" in output]
    assert len(pictures) == 1 and len(pictures[0]["data"]["image/png"]) > 10_000
    logging.disable(logging.DEBUG)  # torch writes traces of every tensor to whoever listens to all levels
    light = [cell for cell in CELLS if cell.kind == "markdown" or cell.light]
    try:
        run = notebook(light)
    finally:
        logging.disable(logging.NOTSET)
    printed = {"".join(cell["source"]): cell["outputs"] for cell in kept["cells"] if cell["cell_type"] == "code"}
    for cell in run["cells"]:
        if cell["cell_type"] == "code":
            assert [output["name"] for output in cell["outputs"]] == ["stdout"]
            assert len(cell["outputs"][0]["text"]) == len(printed["".join(cell["source"])][0]["text"])
