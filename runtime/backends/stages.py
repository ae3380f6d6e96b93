"""Pipeline stages on backends: each stage uses one backend, and eager for operators that it does not support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from weft.runtime.backends.build import assembled
from weft.runtime.backends.candidates import candidates_of, cover_problem
from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.registry import EAGER, registered
from weft.runtime.backends.trial import TrialResult, compared
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.purity import Purity
from weft.runtime.measure.stage_feeds import Feed
from weft.solver.placement.cover.search import alone

#: The key of the stages' backends in a plan's provenance.
STAGE_BACKENDS = "stage_backends"

#: Built stages, by the places of the cut, the stage's number and the backend's name; ``None``: no part is supported.
_Built = dict[tuple[tuple[int, ...], int, str], "GraphModule | None"]


@dataclass(frozen=True)
class StageBackends:
    """The backends of the stages of ``captured``: ``names`` by stage. ``built``: a cache, so that each stage is
    compiled once."""

    captured: Captured
    names: tuple[str, ...] = ()
    built: _Built = field(default_factory=dict, repr=False)

    def of(self, places: Sequence[int], stages: Mapping[int, GraphModule],
           light: bool = False) -> dict[int, GraphModule]:
        """``stages`` of the cut at ``places``; those of a backend other than eager are rebuilt."""
        if not self.names:
            return dict(stages)
        if len(self.names) != len(places) + 1:
            raise CaptureError(f"the plan has backends for {len(self.names)} stages, but there are {len(places) + 1}")
        return {s: self.stage(places, s, self.names[s]) or module for s, module in stages.items()}

    def stage(self, places: Sequence[int], s: int, name: str) -> GraphModule | None:
        """Stage ``s`` on the backend ``name``, with the largest possible parts; ``None`` if it supports no part."""
        key = tuple(places), s, name
        if name != EAGER and key not in self.built:
            cut = CapturedCut(self.captured, places, Purity(self.captured))
            plain = cut.stages([s], plain=True, seeded=True).modules[s]
            self.built[key] = _on_backend(
                UnitGraph(replace(self.captured, model=plain, graph_module=plain, treatment=None)), name)
        return self.built.get(key)


def stages_by(captured: Captured, names: Sequence[str]) -> Captured:
    """``captured`` with its stages on the backends ``names``, by stage (empty: all eager).

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a backend that is not registered.
    """
    for name in names:
        if name not in registered():
            raise CaptureError(f"the plan has a stage of the backend {name!r:.60}, which nobody has registered; there "
                               f"are {', '.join(registered())}")
    built = captured.treatment.built if isinstance(captured.treatment, StageBackends) else {}
    return replace(captured, treatment=StageBackends(replace(captured, treatment=None), tuple(names), built))


def _on_backend(graph: UnitGraph, name: str) -> GraphModule | None:
    candidates = [(similar, TrialResult(eager=1.0)) for similar in candidates_of(graph, registered()[name])]
    if not candidates:
        return None
    cover = alone(cover_problem(graph, TrialResult(units=(1.0,) * len(graph.units)), candidates, {}), name)
    return assembled(graph, [(part.backend, sorted(part.operators)) for part in cover.parts], trains=True)


def numerical_mismatch(feed: Feed, plain: nn.Module, own: nn.Module) -> str | None:
    """The difference between the results and gradients of ``own`` and those of ``plain`` on the inputs of ``feed``, as
    words for a message; ``None`` within tolerance."""
    xs, gradients = feed.inputs(), feed.gradients()
    leaves = [x.detach().requires_grad_(x.is_floating_point() and i not in feed.constant) for i, x in enumerate(xs)]
    learning = [leaf for leaf in (*leaves, *plain.parameters()) if leaf.requires_grad]

    def numbers(module: nn.Module) -> list[Tensor | None]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            ys = module(*(leaf.clone() for leaf in leaves))
        results = [ys] if isinstance(ys, Tensor) else list(ys)
        ends = [(y, g) for y, g in zip(results, gradients, strict=True) if g is not None and y.requires_grad]
        computed = torch.autograd.grad([y for y, _ in ends], learning, [g for _, g in ends],
                                       allow_unused=True) if ends and learning else ()
        return [*(y.detach() for y in results), *computed]

    return compared(numbers(own), numbers(plain))[1]
