"""Golden runs that need torch: what executors compute on two ranks over gloo, and the stages of captured modules.

Numbers are in double precision and kept to ten digits, as the last ones depend on the machine.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.support.golden.said import UNLIMITED, Run, digest
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_jobs


def runs() -> Iterator[tuple[str, Run]]:
    """By name; torch is loaded when one is called."""
    for name in ("gpt", "skip", "masked", "towers", "translator"):
        yield f"captured stages of {name}", partial(_captured, name)
    for name, schedule, cuts in (("gpt", "1f1b", "45"), ("skip", "zb-h1", "7")):
        yield f"pipeline of {name}, {schedule}", partial(_pipeline, name, schedule, cuts)
    for what in ("by hand", "communication", "sharded optimizer", "shared"):
        yield f"on two ranks: {what}", partial(_on_ranks, what)


def ten_digits(number: float) -> float:
    """``number`` to ten significant digits."""
    return float(f"{number:.9e}")


def sums(tensors: Mapping[str, Any]) -> dict[str, float]:
    """Of each tensor's numbers, each times another factor, as a share of the largest norm of all: so a number that is
    nought but for rounding says nought."""
    import torch

    wide = {name: tensor.detach().reshape(-1).double() for name, tensor in tensors.items()}
    largest = max((float(tensor.norm()) for tensor in wide.values()), default=0.0) or 1.0
    return {name: round(float(tensor @ torch.cos(torch.arange(len(tensor), dtype=torch.float64))) / largest, 10) + 0.0
            for name, tensor in sorted(wide.items())}


def _captured(name: str) -> dict[str, Any]:
    import torch

    from tests.support.captured_models import made
    from weft.runtime.captured.captured import Captured
    from weft.runtime.captured.cut import CapturedCut, crossings
    from weft.runtime.captured.purity import Purity

    case = made(name, 4)
    captured = Captured.of(case.model, case.args, case.kwargs)
    purity = Purity(captured)
    allowed = [place for place, one in enumerate(crossings(captured, purity)) if one.refused is None and place]
    places = [allowed[len(allowed) // 3], allowed[2 * len(allowed) // 3]]
    stages = CapturedCut(captured, places, purity).stages()
    return {"operators": len(captured.calls), "allowed": digest(allowed),
            "places": {place: str(captured.calls[place]) for place in places},
            "stages": [{"takes": list(ports.takes), "gives": list(ports.gives),
                        "parameters": digest([key for key, _ in stages.modules[s].named_parameters()]),
                        "operators": digest([str(node.target if isinstance(node.target, str) else torch.typename(
                            node.target)) for node in stages.modules[s].graph.nodes])}
                       for s, ports in sorted(stages.ports.items())]}


def _pipeline(name: str, schedule: str, cuts: str) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        _launch("tests.support.pipeline_ranks", [folder, name, schedule], {"WEFT_CUTS": cuts})
        found, other = (torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2))
    gradients = zip(found["gradients"], other["gradients"], strict=True)
    return {"losses": list(map(ten_digits, found["losses"])), "evaluated": ten_digits(float(found["evaluated"])),
            "gradients": [sums({**one, **two}) for one, two in gradients], "weights": sums(found["state"])}


def _on_ranks(what: str) -> dict[str, Any]:
    return {rank: found[what] for rank, found in _all_on_ranks().items()}


@cache
def _all_on_ranks() -> dict[str, Any]:
    from tests.support.golden.jobs import STEPS
    from tests.support.job_processes import found_by, launch_jobs
    from tests.support.shared_ranks import data_parallel
    from weft.runtime.plan.plan import plan_of

    jobs = [data_parallel("a", 1, 20, 30, 50), data_parallel("b", 2, 20, 30, 50)]
    shared = share_jobs(jobs, Question("1:1", rounds=STEPS), SearchOptions(UNLIMITED, 0.5))
    with tempfile.TemporaryDirectory() as folder:
        launch_jobs("tests.support.golden.jobs", Path(folder), plan_of(shared.schedule))
        losses = {job: list(map(ten_digits, own["losses"])) for job, own in found_by(Path(folder))["shared"].items()}
        _launch("tests.support.golden.on_ranks", [folder], {})
        found = {str(rank): json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)}
    return {rank: {**own, "shared": losses if rank == "0" else {}} for rank, own in found.items()}


def _launch(module: str, arguments: list[str], environment: Mapping[str, str]) -> None:
    from tests.support.ranks import finished

    finished(2, module, *arguments, environment=environment)
