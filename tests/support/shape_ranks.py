"""What each rank of a test of batches of other shapes runs: ``python -m tests.support.shape_ranks FOLDER PART``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.captured_models import GPT, token_loss
from tests.support.pipeline_ranks import planned_once, run_parts
from weft.app.pipeline.run.pipe import PipelineEngine
from weft.runtime.captured.inputs.batch import ShapeError

WORDS, LENGTH, SIZE, EPS = 23, 12, 8, 1e-3


class Turning(GPT):
    """Computes something else for short texts."""

    def forward(self, ids: Tensor) -> Tensor:
        found = super().forward(ids)
        return found * 2 if ids.shape[1] < 6 else found


def model_of(kind: type[GPT] = GPT) -> nn.Module:
    """The same numbers each time."""
    torch.manual_seed(3)
    return kind(2).double()


def batch(size: int, length: int = LENGTH, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Texts, each with labels of which some do not count."""
    generator = torch.Generator().manual_seed(100 * size + 10 * length + seed)
    ids = torch.randint(WORDS, (size, length), generator=generator)
    return ids, ids.roll(-1, 1)


def sum_and_count(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Every third label does not count, and none of a text that begins with an even word."""
    counts = ((labels % 3 > 0) & (labels[:, :1] % 2 > 0)).flatten()
    losses = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * counts).sum(), counts.sum()


def mean_of(loss: Callable[..., Any], output: Tensor, labels: Tensor) -> Tensor:
    """The loss of a whole batch in one process."""
    found = loss(output, labels)
    mean: Tensor = found[0] / found[1] if isinstance(found, tuple) else found
    return mean


def piped(loss: Callable[..., Any] = token_loss, kind: type[GPT] = GPT, copies: int = 1,
          **options: Any) -> PipelineEngine:
    """A pipeline made for batches of eight texts of twelve words on each copy."""
    ids, labels = batch(SIZE)
    of = (loss.__name__, kind, copies, *(str(options.get(name)) for name in ("cuts", "split", "schedule")))
    return planned_once(of, model_of(kind), (ids,), loss=loss, target=labels, data=copies, **{
        "micro_batches": 4, "schedule": "1f1b", "time_limit": 1.0, "timeout": 900.0, "cuts": [20], **options})


def trained(pipe: PipelineEngine, shapes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Steps on batches of these sizes and lengths: losses, gradients, and what an evaluation of seven texts gives."""
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
    losses, gradients, copy = [], [], pipe.session.replica
    for number, (size, length) in enumerate(shapes):
        ids, labels = batch(size * pipe.session.replicas, length, number)
        part = slice(copy * size, (copy + 1) * size)
        losses.append(pipe.step(*((ids[part],) if pipe.takes_data else ()), target=labels[part]
                                if pipe.takes_data else None))
        gradients.append({name: gradient.clone() for name, gradient in pipe.gradients().items()})
        optimizer.step()
        optimizer.zero_grad()
    ids, labels = batch(7, 9)
    results = pipe.eval_step(ids)
    return {"losses": losses, "gradients": gradients, "state": pipe.state_dict(), "evaluated": pipe.eval_step(
        ids, target=labels), "results": None if results is None else torch.cat(results), "captures": len(
            pipe._shapes.known)}


SHAPES = ((8, 12), (6, 12), (8, 7), (3, 12), (5, 7), (8, 7), (6, 12), (8, 12))


def means(folder: Path) -> dict[str, Any]:
    """Of a mean loss."""
    with piped() as pipe:
        return trained(pipe, SHAPES)


def counts(folder: Path) -> dict[str, Any]:
    """Of a sum and a count, with split backwards."""
    with piped(sum_and_count, schedule="zb-h1") as pipe:
        return trained(pipe, SHAPES[:5])


def by_modules(folder: Path) -> dict[str, Any]:
    """Without an export."""
    with piped(cuts=None, split=["layers.1"]) as pipe:
        return trained(pipe, SHAPES[:4])


def copies(folder: Path) -> dict[str, Any]:
    """Two copies of one stage each."""
    with piped(copies=2, cuts=[]) as pipe:
        return trained(pipe, SHAPES[:5])


def added(folder: Path) -> dict[str, Any]:
    """Batches of several shapes are one step."""
    with piped() as pipe:
        with pipe.accumulate(3):
            losses = [pipe.step(*batch(*shape)[:1], target=batch(*shape)[1]) for shape in SHAPES[:3]]
        return {"losses": losses, "gradients": {n: g.clone() for n, g in pipe.gradients().items()}}


def refused(folder: Path) -> dict[str, Any]:
    """A shape that comes out as another graph, twice, and what is no such batch; training goes on."""
    with piped(kind=Turning) as pipe:
        said = []
        (ids, labels), flat = batch(8, 12), batch(8, 12)[0].flatten()
        for given, target in (batch(8, 5), batch(8, 5), batch(0, 12), (ids.float(), labels), (flat, labels)):
            try:
                pipe.step(given, target=target)
            except ShapeError as error:
                said.append(str(error))
        return {"said": said, **trained(pipe, SHAPES[:2])}


def torn(folder: Path) -> dict[str, Any]:
    """Ranks that are given batches of two shapes."""
    with piped() as pipe:
        ids, labels = batch(8, 7 if pipe.rank else 9)
        pipe.step(ids, target=labels)
    return {}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "means": means, "counts": counts, "by_modules": by_modules, "copies": copies, "added": added, "refused": refused}


if __name__ == "__main__":
    run_parts({**PARTS, "torn": torn})
