"""What every command does with every kind of input: it runs, or refuses in a sentence with these words.

A row is a command line. ``{src}`` stands for the input, ``{n}`` for ``-n`` where the input does not say how many
micro-batches run, ``{schedule}`` and ``{plan}`` for what ``weft solve`` and ``weft plan`` made of it. Of
the kinds, open leaves decisions to its stages (``placement.choices``), decide plans memory operator by operator, grid
leaves all of ``parallel`` open and degrees gives all of it, network is a graph network. A spec with ``phases`` is of
one command alone, so it has a test of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.kinds_of_input import KINDS

QUICK = "--effort 0.02 --time-limit 3000 --quiet"


@dataclass(frozen=True)
class Row:
    """One command line. ``refused``: of the kinds of input that it refuses, words of the sentence; the others run.
    ``slow``: it takes more than a few seconds over all kinds."""

    command: str
    refused: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False


def tally(rows: Sequence[Row]) -> tuple[int, int]:
    """How many cells of the table are to run, and how many are to be refused."""
    refused = sum(len(row.refused) for row in rows)
    return len(rows) * len(KINDS) - refused, refused


def _no(kinds: str, words: str) -> dict[str, str]:
    return dict.fromkeys(kinds.split(), words)


_PROBLEMS = "block choices jobs classes"
_SPECS = "layers family config graph lengths inference open decide grid degrees network"
_EVERY = f"{_PROBLEMS} {_SPECS}"
#: Micro-batches of one kind alone have a latency.
_ALIKE = _no("jobs classes lengths network", "a latency is of one micro-batch")
#: What searches grids is solve and compare; what shows one takes a grid all of whose degrees are given; the rest takes
#: none.
_OPEN = _no("grid", "micro_batch, zero, recompute to be searched, which weft solve does")
_GRIDS = _no("grid degrees", "a uniform grid, which weft solve searches; leave it out here")
#: One pass of it is planned, in chunks and not in stages.
_CHUNKS = _no("network", "is streamed in chunks and has no stages")
_PLAIN = _no("choices jobs classes", "without choices, jobs and classes")
_SPEC = _no(_PROBLEMS, "estimate is for model specs") | _CHUNKS
_IN_ROW = _no("layers inference open", "model lists layers in a row, placing needs operators")
_GRAPH = _no(_PROBLEMS, "what is placed is an operator graph or a model spec") | _IN_ROW | _GRIDS | _CHUNKS

ROWS: tuple[Row, ...] = (
    Row(f"solve {{src}} {{n}} {QUICK} -o answer.json"),
    Row(f"solve {{src}} {{n}} {QUICK} --objective span --json",
        _no("grid degrees", "grids (parallel) are searched for the makespan")),
    Row(f"solve {{src}} {{n}} {QUICK} --objective latency --period 500s", _ALIKE | _OPEN),
    Row(f"solve {{src}} {{n}} {QUICK} --overlap auto",
        _no(_PROBLEMS, "overlap is for a model spec") | _no("lengths", "overlap is searched for those that are alike")
        | _GRIDS),
    Row(f"solve {{src}} {{n}} {QUICK} --reorder",
        {kind: "reorder is for micro-batches that differ" for kind in _EVERY.split()
         if kind not in ("classes", "lengths")}),
    Row(f"compare {{src}} {{n}} {QUICK}"),
    Row(f"compare {{src}} {{n}} {QUICK} --objective span --workers 2 --json",
        _no("grid", "grids (parallel) are searched for the makespan"), slow=True),
    Row("estimate {src}", _SPEC),
    Row("estimate {src} --shape v --json", _SPEC | _no("grid degrees", "shape is of GPUs one by one")),
    Row(f"latency {{src}} {{n}} {QUICK} --points 3 -o front.json", _ALIKE | _OPEN),
    Row(f"latency {{src}} {{n}} {QUICK} --period 500s -o at.json", _ALIKE | _OPEN),
    Row(f"latency {{src}} {{n}} {QUICK} --throughput 0.01 --workers 2 --json", _ALIKE | _OPEN),
    Row(f"sweep {{src}} {{n}} {QUICK} --memory 1x,1.5x --workers 1 --no-cache --no-refine", _PLAIN | _OPEN),
    Row(f"sweep {{src}} {{n}} {QUICK} --memory 1x,1.5x --workers 2 --no-cache --no-refine", _PLAIN | _OPEN, slow=True),
    Row(f"explain {{src}} {{n}} {QUICK}", _OPEN),
    Row(f"explain {{src}} {{n}} {QUICK} --what-if --in-flight 2 --json", _OPEN, slow=True),
    Row(f"place {{src}} {QUICK} -o placed.json", _GRAPH),
    Row(f"place {{src}} {QUICK} --devices gpu=2 --latency --operators --json", _GRAPH),
    Row(f"place {{src}} {QUICK} --stage-graph --problem stages.json --workers 2", _GRAPH),
    Row(f"place {{src}} {QUICK} --stage-graph --schedule step.json", _GRAPH),
    Row(f"share {{src}} {{src}} --ratio 1:1 {QUICK}", slow=True,
        refused=_no("jobs", "give each job a file of its own") | _no("classes", "give each class a file of its own")
        | _no("lengths", "lists micro-batches that differ, and a job that shares GPUs")
        | _GRIDS | _no("network", "jobs that share GPUs repeat their steps")),
    Row("check {schedule}"),
    Row("check {schedule} --json"),
    Row("explain {schedule}"),
    Row("explain {schedule} --what-if --in-flight 2 --json --quiet", slow=True),
    Row("draw {schedule} -o drawn.svg -o drawn.html --critical", slow=True),
    Row("draw {schedule} -o drawn.json --title drawn"),
    Row("draw {schedule} -o drawn.svg --history", slow=True),
    Row("plan {schedule} -o plan.json"),
    Row("replay {plan} --emulate", _no(_EVERY, "a plan runs under torchrun")),
    Row("fit {plan} {plan}", _no(_EVERY, "it must be 'weft.timeline/1'")
        | _no("jobs classes lengths", "whose costs cannot be fitted yet")),
    Row("export {schedule} -o out.json --format perfetto"),
    Row(f"family {{src}} {QUICK}", _no(_PROBLEMS, "a family is of a model spec with phases")
        | _no(_SPECS, "phases is missing")),
    Row("capture {src}", _no(_EVERY, "is no .pt2 archive")),
    Row("profile {src} --repeats 1 --quiet", _no(_EVERY, "is no .pt2 archive")),
    # What somebody might give by mistake.
    Row("check {src}", _no(_PROBLEMS, "it must be 'weft.schedule/1'") | _no(_SPECS, "is a model spec by its ending")),
    Row("plan {src}", _no(_PROBLEMS, "it must be 'weft.schedule/1'") | _no(_SPECS, "is a model spec by its ending")),
    Row("import {src} -o theirs.json",
        _no(_PROBLEMS, "there is nothing to import") | _no(_SPECS, "what can be read is")),
    Row("train {src} --steps 1 --time-limit 1", _no(_PROBLEMS, "it must be FILE.py:FUNCTION")
        | _no(_SPECS.removesuffix(" network"), "takes the spec of a graph-network with a training section")),
)
