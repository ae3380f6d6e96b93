"""examples/any_model.ipynb: a walk from a plain model to a trained pipeline, with what each of its cells printed.

    python -m experiments.weft.notebook

The cells stand here. They are run one after the other in this process, in a copy of ``examples``, and written with
their outputs; the notebook runs as it is in Jupyter.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from experiments.lib.provenance import ROOT
from weft.solver.io.writing import write_atomically

__all__ = ["CELLS", "EXAMPLES", "NOTEBOOK", "Cell", "executed", "main", "notebook"]

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "any_model.ipynb"


class Cell(NamedTuple):
    """``kind`` is ``markdown`` or ``code``; a ``light`` one starts no ranks."""

    kind: str
    text: str
    light: bool = True


CELLS = (
    Cell("markdown", """# Any model as a pipeline

`weft.pipeline` takes a plain `torch.nn.Module` and trains it on several ranks. This notebook looks at what happens on
the way: the model is *captured* as a row of operators, the row is *cut* into stages, what the stages cost is measured,
a schedule is searched for, and the ranks run it. At the end the trained weights go back into the plain model.

The model is that of `train_gpt.py`, next to this notebook. It knows nothing of stages."""),
    Cell("code", """import torch
from train_gpt import GPT, batches, loss_fn

torch.manual_seed(0)
model, ((ids, labels),) = GPT(), batches(1)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, a batch of {tuple(ids.shape)},",
      f"loss {loss_fn(model(ids), labels).item():.4f}")"""),
    Cell("markdown", """## Capture

`torch.export` follows the forward of one micro-batch (here 4 of the 16 texts). Each line is an operator; the module
that it belongs to is known. The parameters stay the model's own objects."""),
    Cell("code", """from weft.runtime.captured.captured import Captured

captured = Captured.of(model, (ids[:4],))
print(len(captured.calls), "operators, the first of them:")
for node in captured.calls[:8]:
    path = list(node.meta["nn_module_stack"].values())[-1][0] or "the model itself"
    print(f"{node.name:12} {tuple(node.meta['val'].shape)!s:14} in {path}")"""),
    Cell("markdown", """## Where may it be cut?

Before each operator some values would have to be sent to the next rank. What depends on the batch alone, as positions
and masks do, is free: each rank computes it again. Fewest bytes pass between layers."""),
    Cell("code", """from weft.runtime.captured.cut import Cut, crossings
from weft.runtime.captured.purity import Purity

purity = Purity(captured)
between = crossings(captured, purity)
allowed = [place for place, node in enumerate(captured.calls)
           if between[place].values and between[place].refused is None and purity.begins(node)]
least = min(between[place].size for place in allowed)
print(len(purity.free), "operators are free")
print(f"a cut may be at {len(allowed)} of {len(captured.calls)} places; "
      f"{sum(between[place].size == least for place in allowed)} of them send no more than {least:,} bytes")"""),
    Cell("markdown", """A cut in the middle makes two stages. The head's weight is the embedding's: both stages
have it, so it is a *tie*, whose gradients are added up."""),
    Cell("code", """from weft.app.pipeline.run.names import stage_names

cut = Cut(captured, [next(place for place in allowed if place >= len(captured.calls) // 2
                          and between[place].size == least)], purity)
stages = cut.stages()
for s, (first, last) in enumerate(stage_names(cut)):
    print(f"stage {s}: {first} to {last}; takes {stages.ports[s].takes}, gives {stages.ports[s].gives}")
print("ties:", cut.ties())"""),
    Cell("markdown", """## Plan and train

On ranks all of this is one call. `train_gpt.py` is the whole script; here it runs on two ranks, as `torchrun` would
start it, and `weft train train_gpt.py:setup` does the same. All ranks measure operators, stages and links, the first
one decides where to cut and searches for a schedule, and then they train for 20 steps."""),
    Cell("code", """import subprocess
import sys

ended = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                        "train_gpt.py", "."], capture_output=True, text=True)
print(ended.stdout)
assert ended.returncode == 0, ended.stderr""", light=False),
    Cell("markdown", """The report has what was planned beside what was measured. `pipe.draw` shows both, rank by
rank: above each row the plan, in the row what a step took. (With fewer free cores than ranks, steps vary.)"""),
    Cell("code", """from IPython.display import Image

Image("run.png")""", light=False),
    Cell("markdown", """## Back to the plain model

The gathered state has the model's own names. It loads into the plain module, whose loss on a new batch has fallen from
that of a guess. The plain model, trained by one process on the same batches, has the same loss."""),
    Cell("code", """model.load_state_dict(torch.load("gpt.pt"))

torch.manual_seed(0)
alone = GPT()
optimizer = torch.optim.AdamW(alone.parameters(), lr=3e-3)
for ids, labels in batches(20):
    loss_fn(alone(ids), labels).backward()
    optimizer.step()
    optimizer.zero_grad()

(ids, labels), = batches(1, seed=99)
with torch.no_grad():
    print(f"loss on a new batch: {loss_fn(model(ids), labels):.4f} trained as a pipeline,",
          f"{loss_fn(alone(ids), labels):.4f} by one process")""", light=False),
    Cell("markdown", """## Your own model

Give `weft.pipeline` the module, one whole batch as an example, a loss (or a module that gives its own, as those of
`transformers` do with `labels=`), and the number of micro-batches:

```python
pipe = weft.pipeline(model, (ids,), loss=loss_fn, target=labels, micro_batches=8)
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-4)
for ids, labels in loader:
    loss = pipe.step(ids, target=labels)
    optimizer.step(); optimizer.zero_grad()
```

`weft train --example gpt2`, and llama, bert, t5, vit and mixtral, do it with models of `transformers`."""))


class _Image:
    """In place of IPython's, where that is not installed: a picture of a file."""

    def __init__(self, filename: str) -> None:
        self.data = Path(filename).read_bytes()

    def _repr_png_(self) -> bytes:
        return self.data


def executed(text: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the code ``text`` with ``names``, as Jupyter would; its outputs, in the notebook's format."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value: Any = None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if hasattr(value, "_repr_png_"):
        found.append({"output_type": "display_data", "metadata": {}, "data": {
            "image/png": base64.b64encode(value._repr_png_()).decode()}})
    return found


@contextmanager
def beside_examples() -> Iterator[None]:
    """In a copy of the examples, whose modules are found, with pictures as in Jupyter."""
    before, path, known = Path.cwd(), list(sys.path), set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
        os.chdir(folder)
        sys.path.insert(0, folder)
        display = types.ModuleType("IPython.display")
        display.__dict__["Image"] = _Image
        sys.modules.update({"IPython": types.ModuleType("IPython"), "IPython.display": display})
        try:
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            for name in {"IPython", "IPython.display", "train_gpt"} & (set(sys.modules) - known):
                del sys.modules[name]


def notebook(cells: Sequence[Cell] = CELLS) -> dict[str, Any]:
    """The notebook of ``cells``, which are run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    written: list[dict[str, Any]] = []
    with beside_examples():
        for i, cell in enumerate(cells):
            entry: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{i}", "metadata": {},
                                     "source": _lines(cell.text)}
            if cell.kind == "code":
                count = sum(earlier["cell_type"] == "code" for earlier in written) + 1
                entry |= {"execution_count": count, "outputs": executed(cell.text, names)}
            written.append(entry)
    return {"cells": written, "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python",
                                                          "name": "python3"}, "language_info": {"name": "python"}},
            "nbformat": 4, "nbformat_minor": 5}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the notebook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=NOTEBOOK)
    options = parser.parse_args(arguments)
    write_atomically(options.output, json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
