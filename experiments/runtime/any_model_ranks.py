"""Foreign models trained by ``weft.pipeline`` on several ranks: are their gradients those of one process?

    python -m experiments.runtime.any_model_ranks [--only NAME ...] [--layouts 2 3] [--schedules ...] [--dtypes ...]
    python -m experiments.runtime.any_model_ranks --types --schedules 1f1b --recompute 0 --layouts 2x2 2 3

Each model is tiny, with random weights, and is trained for five steps of SGD by the call's own five lines
(:func:`trained`): under the schedule that weft finds, 1F1B and ZB-V, in fp64 and fp32, plain and with stages
recomputed. One process trains the plain model beside it, on the same micro-batches. An error is the norm of the
difference of a parameter's gradient, in any of the steps, over that of the gradient or a millionth of the whole
gradient's, whichever is larger: what is zero but for rounding has no digits to compare. ``ratio`` is the measured over
the planned step. ``--types``: models of the Hugging Face model types that weft reads
(:mod:`experiments.lib.model_types` has others too) in place of those. ``2x2`` are two copies of two stages, each given
its half of the batch. Models of transformers are left out where it is not installed, with that reason. Ranks train
model after model, so that Python starts once; a run that fails is kept with its sentence, and they are started again
behind it. Writes ``any_model_ranks.json``, or with ``--types`` ``model_types_ranks.json``; exits with 1 where a run
failed (of a type: without a sentence), or a gradient is not the model's.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import weft
from experiments.lib.foreign_models import MODELS, Model, made, precision
from experiments.lib.model_types import TYPES
from experiments.lib.provenance import Record
from experiments.lib.provenance import Row as Found
from experiments.lib.script import launched, script
from weft.models.spec.huggingface import known_types
from weft.runtime.captured.loss import loss_of
from weft.runtime.ranks.launch import Ended

STEPS, MICRO_BATCHES, ROWS = 5, 6, 2  # rows of a micro-batch
SEARCH = 1.0  # seconds for weft's own schedule
TIMEOUT = 150.0  # seconds for each run
TOGETHER = 22  # runs between two starts of Python
SCHEDULES = ("weft", "1f1b", "zb-v")
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
#: How ranks lie: stages, and copies.
LAYOUTS = {"2": (2, 1), "3": (3, 1), "2x2": (2, 2)}
#: Largest relative errors of a gradient that count as none.
EXACT = {"fp64": 1e-12, "fp32": 1e-4}
#: The ten models of the table, and a state-space model, a diffusion's U-Net and a speech encoder.
NAMES = tuple(name for name in MODELS if name != "Transformer (torch)" and name not in TYPES)
READ = tuple(name for name in TYPES if name.partition(" (")[0] in known_types())


class Run(NamedTuple):
    """What is trained, and as what."""

    model: str
    dtype: str
    schedule: str
    recompute: bool


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """One whose step is continuous in the gradient: with AdamW, a weight whose gradient is rounding alone would move
    as far as any other."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def trained(model: Model, batches: Sequence[Model], heard: Callable[[Any, float], None], **settings: Any) -> Any:
    """``model`` trained on ``batches`` by the lines that a user writes; ``heard`` is no line of theirs."""
    pipe = weft.pipeline(model.module, model.args, model.kwargs, micro_batches=MICRO_BATCHES, remeasure=True,
                         **settings)
    optimizer = optimizer_of(pipe.parameters())
    for batch in batches:
        loss = pipe.step(*batch.args, **batch.kwargs)
        heard(pipe, loss)
        optimizer.step()
        optimizer.zero_grad()
    return pipe


# -- one process -------------------------------------------------------------------------------------------------------


class Plain(NamedTuple):
    """What one process finds: the loss and the gradients of each step."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]


def plain(name: str, dtype: torch.dtype, copies: int = 1, device: str = "cpu") -> Plain:
    """The plain model trained on the same micro-batches, those of all copies, one after the other."""
    with precision(name, dtype):
        module = made(name, ROWS, dtype).to(device).module
        optimizer = optimizer_of(module.parameters())
        found = Plain([], [])
        for step in range(STEPS):
            total = 0.0
            batch, count = made(name, copies * MICRO_BATCHES * ROWS, dtype, step).to(device), copies * MICRO_BATCHES
            for part in (batch.part(i, count) for i in range(count)):
                loss = loss_of(module(*part.args, **part.kwargs)) / count
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            found.losses.append(total)
            found.gradients.append({n: p.grad.cpu().clone() for n, p in module.named_parameters()
                                    if p.grad is not None})
            optimizer.step()
            optimizer.zero_grad()
    return found


def errors(found: Sequence[dict[str, Tensor]], wanted: Plain) -> tuple[float, str]:
    """The largest error of a gradient in any step, and where it is; infinite where there should be none."""
    worst = 0.0, ""
    for step, (mine, gradients) in enumerate(zip(found, wanted.gradients, strict=True)):
        if further := mine.keys() - gradients.keys():
            return float("inf"), min(further)
        whole = float(torch.stack([g.double().norm() for g in gradients.values()]).norm())
        for name, gradient in mine.items():
            size = max(float(gradients[name].double().norm()), 1e-6 * whole)
            error = float((gradient - gradients[name]).double().norm()) / size
            worst = max(worst, (error, f"{name}, step {step + 1}"))
    return worst


# -- ranks -------------------------------------------------------------------------------------------------------------


def on_rank(place: str, copies: int, device: str, runs: Sequence[Sequence[Any]]) -> None:
    """What each rank does: all ``runs`` one after the other, each written to ``place`` when it has ended."""
    folder, copy = Path(place), int(os.environ["RANK"]) * copies // int(os.environ["WORLD_SIZE"])
    for run in itertools.starmap(Run, runs):
        dtype = DTYPES[run.dtype]
        wanted = Plain(*torch.load(folder / f"{run.model} {run.dtype}.pt"))
        settings: dict[str, Any] = {"schedule": None if run.schedule == "weft" else run.schedule}
        if run.recompute:
            settings["memory_plan"] = "recompute"
        if device == "cuda":
            settings["transport"] = "shared"  # ranks may have one GPU
        losses: list[float] = []
        gradients: list[dict[str, Tensor]] = []

        def heard(pipe: Any, loss: float, losses: list[float] = losses,
                  gradients: list[dict[str, Tensor]] = gradients) -> None:
            losses.append(loss)
            gradients.append({n: g.clone().cpu() for n, g in pipe.gradients().items()})

        begun = time.perf_counter()
        with precision(run.model, dtype):
            batches = [made(run.model, copies * MICRO_BATCHES * ROWS, dtype, step).to(device).part(copy, copies)
                       for step in range(STEPS)]
            with trained(batches[0], batches, heard, **batches[0].settings, time_limit=SEARCH, timeout=100.0,
                         data=copies, **settings) as pipe:
                report, process = pipe.report(), pipe.session.process(pipe.rank)
        error, worst = errors(gradients, wanted)
        told = {"error": error, "worst": worst, "places": pipe.cut.places,
            "parameters": sorted(gradients[0]), "loss_error": max(
                abs(mine - loss) / abs(loss) for mine, loss in zip(losses, wanted.losses, strict=True)),
            "planned": report.planned, "measured": report.measured, "stages": len(report.ranks),
            "seconds": time.perf_counter() - begun}
        path = written(folder, run, process)
        path.with_suffix(".part").write_text(json.dumps(told))
        path.with_suffix(".part").rename(path)


def written(folder: Path, run: Run, process: int) -> Path:
    """Where a process tells what it found."""
    return folder / f"{'-'.join(map(str, run))}.{process}.json"


def trained_on_ranks(folder: Path, layout: str, device: str, runs: Sequence[Run]) -> Iterator[Found]:
    """A row of each run, of which those that fail hold why; the ranks are started again after each failure."""
    left, (stages, copies) = list(runs), LAYOUTS[layout]
    ranks = stages * copies
    while left:
        ended = launched(on_rank, ranks, str(folder), copies, device, left, timeout=TIMEOUT * len(left))
        while left:
            run = left.pop(0)
            paths = [written(folder, run, process) for process in range(ranks)]
            row: Found = {"model": run.model, "ranks": ranks, **({"copies": copies} if copies > 1 else {}),
                                   **run._asdict()}
            if not all(path.exists() for path in paths):
                yield {**row, "failed": sentence(ended)}
                break
            yield {**row, **together(folder, run, [json.loads(path.read_text()) for path in paths])}


def together(folder: Path, run: Run, told: Sequence[Found]) -> Found:
    """What the ranks found."""
    wanted = Plain(*torch.load(folder / f"{run.model} {run.dtype}.pt"))
    missing = wanted.gradients[0].keys() - {name for each in told for name in each["parameters"]}
    error, worst = max((each["error"], each["worst"]) for each in told)
    if missing:
        error, worst = float("inf"), min(missing)
    first = told[0]
    return {"error": error, "worst": worst, "places": first["places"],
            "loss_error": max(each["loss_error"] for each in told), "stages": first["stages"],
            "planned": first["planned"], "measured": first["measured"],
            "ratio": first["measured"] / first["planned"], "seconds": first["seconds"]}


def sentence(ended: Sequence[Ended]) -> str:
    """Why ranks ended: what the first to give up says, if one does."""
    said = [line.removeprefix("weft: ") for end in ended for line in reversed(end.errors.splitlines())
            if line.startswith("weft: ")]
    if said:
        return min(said, key=lambda line: ", because rank " in line)
    lines = [line for end in ended for line in end.errors.splitlines()[-1:]]
    return lines[0] if lines else "a rank took too long" if any(end.late for end in ended) else "no rank said why"


# -- the table ---------------------------------------------------------------------------------------------------------


def rows_of(options: Namespace, done: set[tuple[Any, ...]], left_out: dict[str, str]) -> Iterator[Found]:
    """A row of each run that is not ``done``; which models are left out, and why, is added to ``left_out``."""
    runs = [Run(*each) for each in itertools.product(options.only or (READ if options.types else NAMES),
                                                     options.dtypes, options.schedules, options.recompute)]
    for layout, first in itertools.product(options.layouts, range(0, len(runs), TOGETHER)):
        with tempfile.TemporaryDirectory() as folder:
            stages, copies = LAYOUTS[layout]
            mine = [run for run in runs[first:first + TOGETHER] if (stages * copies, *run) not in done]
            for model, dtype in dict.fromkeys((run.model, run.dtype) for run in mine):
                try:
                    torch.save(tuple(plain(model, DTYPES[dtype], copies, options.device)),
                               Path(folder) / f"{model} {dtype}.pt")
                except ImportError as error:
                    left_out[model] = str(error).splitlines()[0]
            yield from trained_on_ranks(Path(folder), layout, options.device,
                                        [run for run in mine if run.model not in left_out])


@script(lambda asked: f"{'model_types' if asked.types else 'any_model'}_ranks.json", only=(), types=False,
        layouts=("2", "3"), schedules=SCHEDULES, dtypes=tuple(DTYPES), recompute=(0, 1), device="cpu", go_on=False)
def main(options: Namespace, record: Record) -> bool:
    torch.set_num_threads(1)
    known: list[Found] = json.loads(record.path.read_text())["rows"] if options.go_on else []
    done = {(row["ranks"], *(row[field] for field in Run._fields)) for row in known}
    left_out: dict[str, str] = {}
    rows = record.rows(chain(known, rows_of(options, done, left_out)), lambda rows: {"left_out": [
        {"model": model, "why": why} for model, why in left_out.items()]}, steps=STEPS, micro_batches=MICRO_BATCHES)
    return any(("failed" in row and not options.types) or row.get("error", 0.0) > EXACT[row["dtype"]] for row in rows)
