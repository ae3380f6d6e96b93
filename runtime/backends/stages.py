"""Stages of a captured model computed by backends: each stage by one backend, with eager for the rest of it."""

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
from weft.runtime.backends.trial import Found, compared
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.purity import Purity
from weft.runtime.measure.stage_feeds import Feed
from weft.solver.placement.cover.search import alone

#: The key of the stages' backends in a plan's provenance.
STAGE_BACKENDS = "stage_backends"

#: By the places of a cut, the stage's number and the backend's name.
_Made = dict[tuple[tuple[int, ...], int, str], "GraphModule | None"]


@dataclass(frozen=True)
class StageBackends:
    """The backends of the stages of ``captured``: ``names`` has each one's. ``made``: built stages, so that each is
    compiled once."""

    captured: Captured
    names: tuple[str, ...] = ()
    made: _Made = field(default_factory=dict, repr=False)

    def of(self, places: Sequence[int], stages: Mapping[int, GraphModule],
           light: bool = False) -> dict[int, GraphModule]:
        """``stages`` of the cut at ``places``; those of a backend other than eager are rebuilt."""
        if not self.names:
            return dict(stages)
        if len(self.names) != len(places) + 1:
            raise CaptureError(f"the plan has backends for {len(self.names)} stages, but there are {len(places) + 1}")
        return {s: self.stage(places, s, self.names[s]) or module for s, module in stages.items()}

    def stage(self, places: Sequence[int], s: int, name: str) -> GraphModule | None:
        """Stage ``s`` by the backend ``name``, its largest parts first; ``None`` if that has no part in it."""
        key = tuple(places), s, name
        if name != EAGER and key not in self.made:
            cut = CapturedCut(self.captured, places, Purity(self.captured))
            plain = cut.stages([s], plain=True, seeded=True).modules[s]
            self.made[key] = _by(UnitGraph(replace(self.captured, model=plain, graph_module=plain, treatment=None)),
                                 name)
        return self.made.get(key)


def stages_by(captured: Captured, names: Sequence[str]) -> Captured:
    """``captured`` with its stages computed by the backends ``names``; empty: eager.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a backend that is not registered.
    """
    for name in names:
        if name not in registered():
            raise CaptureError(f"the plan has a stage of the backend {name!r:.60}, which nobody has registered; there "
                               f"are {', '.join(registered())}")
    known = captured.treatment.made if isinstance(captured.treatment, StageBackends) else {}
    return replace(captured, treatment=StageBackends(replace(captured, treatment=None), tuple(names), known))


def _by(graph: UnitGraph, name: str) -> GraphModule | None:
    found = [(alike, Found(eager=1.0)) for alike in candidates_of(graph, registered()[name])]
    if not found:
        return None
    cover = alone(cover_problem(graph, Found(units=(1.0,) * len(graph.units)), found, {}), name)
    return assembled(graph, [(part.backend, sorted(part.operators)) for part in cover.parts], trains=True)


def wrong_numbers(feed: Feed, plain: nn.Module, own: nn.Module) -> str | None:
    """Why results and gradients of ``own`` differ from those of ``plain``; ``None`` if they do not."""
    xs, gradients = feed.inputs(), feed.gradients()
    leaves = [x.detach().requires_grad_(x.is_floating_point() and i not in feed.constant) for i, x in enumerate(xs)]
    learning = [leaf for leaf in (*leaves, *plain.parameters()) if leaf.requires_grad]

    def numbers(module: nn.Module) -> list[Tensor | None]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            ys = module(*(leaf.clone() for leaf in leaves))
        results = [ys] if isinstance(ys, Tensor) else list(ys)
        ends = [(y, g) for y, g in zip(results, gradients, strict=True) if g is not None and y.requires_grad]
        found = torch.autograd.grad([y for y, _ in ends], learning, [g for _, g in ends],
                                    allow_unused=True) if ends and learning else ()
        return [*(y.detach() for y in results), *found]

    return compared(numbers(own), numbers(plain))[1]
