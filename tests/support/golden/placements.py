"""Golden runs of placements: operator graphs as rows and graphs of stages, joint steps, plans of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import weft
from experiments.lib.placement_graphs import bert_like, inception_like, nasnet_like
from tests.support.golden.said import UNLIMITED, Run, digest, said
from tests.support.golden.specs import family
from tests.support.memory_plans import GPT, T5, profiled
from tests.support.replicated_stages import towers, two
from tests.support.stage_graphs import forks
from weft.solver.placement.joint.search import place_step
from weft.solver.placement.joint.sized import affine
from weft.solver.placement.memory.plan import MemoryProblem
from weft.solver.placement.memory.plan_memory import plan_memory

_UNO = "features: [256, 256, 256], tower: [512, 512], joint: [64]"
#: Independent branches: of a search over graphs of stages, sizes of micro-batches and orders.
_BRANCHES = "branches: 2, layers: 2, hidden: 512, heads: 8, feed_forward: 2048, sequence: 128"


def runs() -> Iterator[tuple[str, Run]]:
    """By name."""
    for name, graph in (("inception", partial(inception_like, 6, blocks=5)), ("bert", partial(bert_like, 6, layers=3)),
                        ("nasnet", partial(nasnet_like, 4, cells=6)),
                        ("tight inception", partial(inception_like, 8, blocks=5, memory=1.2))):
        yield f"place {name}", partial(_placed, graph)
    yield "place inception, latency", partial(_placed, partial(inception_like, 4, blocks=3), latency=True)
    uno = partial(family, "uno", _UNO, "16 GiB")
    yield "place spec", partial(_placed, uno)
    yield "place spec as a graph of stages", partial(_placed, uno, stage_graph=True)
    yield "place spec as replicated stages", partial(_placed, uno, stage_graph=True, replicate=True)
    wide = partial(forks, 3, 4, devices=5, times=(1.0, 3.0), end=2.0, transfer=0.25, held=1.0, memory=14.0)
    yield "graph of forks", partial(_placed, wide, stage_graph=True)
    yield "graph of forks with slack", partial(_placed, wide, stage_graph=True, slack=0.5)
    yield "graph of replicated towers", partial(_placed, partial(towers, 3, 4, 4), stage_graph=True)
    yield "row of two, replicated", partial(_placed, partial(two, 3, memory=20.0, transfer=0.5), stage_graph=True)
    yield "step of forks", partial(_step, one_size=False)
    yield "step of forks at one size", partial(_step, one_size=True)
    yield "step of a spec", _spec_step
    yield f"memory of {GPT}, published", partial(_memory, profiled(GPT, 4))
    for name, operators in ((GPT, 40), (T5, 60)):
        yield f"memory of {name}, strict, {operators} operators", partial(_strict_memory, name, operators)


def _placed(graph: Callable[[], Any], **options: Any) -> dict[str, Any]:
    answer = weft.place(graph(), time_limit=UNLIMITED, effort=1.0, seed=3, **options).to_json()
    names = [(stage["device"], sorted(stage["nodes"])) for stage in answer["stages"]]
    kept: dict[str, Any] = {key: answer[key] for key in ("objective", "bound", "status", "depth", "depth_bound")
                            if key in answer}
    return {**kept, "stages": digest(names)}


def _step(**options: Any) -> dict[str, Any]:
    problem = forks(2, 2, devices=5, times=(4.0,), end=5.0, held=1.0, memory=10.0)
    return _said_step(place_step(affine(problem, 1, (1, 2, 4), 2.0, 16), time_limit=UNLIMITED, effort=1.0, seed=1,
                                 **options))


def _spec_step() -> dict[str, Any]:
    return _said_step(weft.place_step(family("mmt", _BRANCHES, "16 GiB"), micro_batch_sizes=(1, 2),
                                      time_limit=UNLIMITED, effort=1.0, seed=2))


def _said_step(found: Any) -> dict[str, Any]:
    """Of a :class:`~weft.solver.placement.joint.answer.PlacedStep`."""
    answer = found.to_json()
    return {**said(found.schedule), "sizes": list(found.sizes), "bound_over_any": found.any_bound,
            "considered": digest(answer["considered"]), "stages": digest(answer["stages"])}


def _strict_memory(name: str, operators: int) -> dict[str, Any]:
    whole = profiled(name, 4, stages=2, rules="strict")
    first = whole.operators[:operators]
    held = sum(one.resident + 2 * one.kept for one in first)
    return _memory(replace(whole, operators=first, memory=held * 3 // 8))


def _memory(problem: MemoryProblem) -> dict[str, Any]:
    plan = plan_memory(problem, gap=1e-2, time_limit=UNLIMITED, seed=1)
    return {"time": plan.time, "bound": plan.bound, "cuts": list(plan.cuts),
            "modes": digest((plan.modes, ("keep",) * problem.stages))}
