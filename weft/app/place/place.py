"""Cutting an operator graph into stages on devices: the file read, the devices chosen, the answer shown."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.app.lib.options import SearchOptions
from weft.models.graph.operators import OperatorGraph
from weft.solver.model_facts import ModelFacts, StageFacts, ties_between
from weft.solver.placement.bracket import Standing
from weft.solver.placement.chain.place import place
from weft.solver.placement.dag.stage_dag import GraphPlacement
from weft.solver.placement.groups import parts_of
from weft.solver.placement.placement import Placement, meets
from weft.solver.placement.problem import DeviceKind, PlacementError, PlacementProblem
from weft.text.units import name_text

if TYPE_CHECKING:
    from weft.models.spec.sections import Spec
    from weft.solver.problem import Problem

_ONE_SIZE = ("{} has times of one size of micro-batch, and replicas of a stage share each micro-batch; give a spec of "
             "a model family")
#: An entry of ``--devices``: the number of devices of a kind, and their memory (``None``: as in the graph).
Wish = tuple[int, float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceQuestion:
    """The options of a placement, beside the graph; the fields are those of :func:`weft.place`."""

    devices: Mapping[str, Wish] | None = None
    recompute: bool = False
    latency: bool = False
    stage_graph: bool = False
    slack: float = 0.0
    replicate: bool = False
    whole_layers: bool = True

    def require_meaning(self) -> None:
        """Raise :class:`PlacementError` for contradictory options."""
        if self.latency and self.stage_graph:
            raise PlacementError("latency is minimised for stages in a row, a graph of stages is made shallow instead; "
                                 "leave one of them out")
        if self.slack and not self.stage_graph:
            raise PlacementError("slack is for a graph of stages, which it makes shallower; leave it out or ask for "
                                 "one (--stage-graph)")
        if self.replicate and not self.stage_graph:
            raise PlacementError("stages of a graph can be replicated, not those of a row; ask for a graph of stages "
                                 "too (--stage-graph)")


def place_source(source: str | os.PathLike[str] | PlacementProblem | OperatorGraph | Spec, question: PlaceQuestion,
                 options: SearchOptions, on_step: Callable[[Standing], None]) -> Placement:
    """See :func:`weft.place`."""
    question.require_meaning()
    problem = placement_problem_of(source, question)
    if question.stage_graph:
        from weft.solver.placement.dag.place_graph import place_graph

        return place_graph(problem, slack=question.slack, on_step=on_step, **options.limits)
    return place(problem, latency=question.latency, on_step=on_step, **options.limits)


def placement_problem_of(source: str | os.PathLike[str] | PlacementProblem | OperatorGraph | Spec,
                         question: PlaceQuestion) -> PlacementProblem:
    """``source`` as a placement problem: files are distinguished by their endings and fields."""
    devices, replicate = question.devices or {}, question.replicate
    if isinstance(source, PlacementProblem):
        if replicate and not source.degrees:
            raise PlacementError(f"{source.name} has no times of parts of a micro-batch; give it degrees to replicate")
        if source.degrees and not replicate:
            source = dataclasses.replace(source, degrees=())
        return with_devices(source, devices)
    if isinstance(source, str | os.PathLike):
        from weft.models.graph.operator_files import OPERATORS_FORMAT, graph_from_json
        from weft.solver.io.entries import read_json

        name = os.fspath(source)
        if name.endswith((".yaml", ".yml")):
            from weft.models.spec.spec import load_spec

            source = load_spec(name)
        else:
            value = read_json(name)
            if not isinstance(value, dict) or value.get("format") != OPERATORS_FORMAT:
                from weft.models.graph.formats import load_profiled_graph

                if replicate:
                    raise PlacementError(_ONE_SIZE.format(name))
                return with_devices(load_profiled_graph(name, recompute=question.recompute), devices)
            source = graph_from_json(value, name)
    from weft.models.spec.spec import Spec

    if not isinstance(source, OperatorGraph | Spec):
        raise PlacementError(f"the graph is a {type(source).__name__}, it must be a model spec, an operator graph, a "
                             "PlacementProblem, or the name of a file with one")
    if isinstance(source, Spec):
        from weft.app.lib.sources import without_entries

        without_entries(source, "phases", "parallel")
    if question.recompute:
        raise PlacementError("recompute chooses among the alternatives of a Piper graph; leave it out")
    from weft.models.candidates.placement_sources import graph_problem, spec_problem

    if isinstance(source, OperatorGraph):
        if replicate:
            raise PlacementError(_ONE_SIZE.format(source.name))
        return graph_problem(source, devices, whole_layers=question.whole_layers)
    return with_devices(spec_problem(source, whole_layers=question.whole_layers, replicate=replicate), devices)


def with_devices(problem: PlacementProblem, wishes: Mapping[str, Wish]) -> PlacementProblem:
    """``problem`` on other numbers of its kinds of device. Raises :class:`PlacementError` for an unknown kind."""
    known = [kind.name for kind in problem.kinds]
    for name in wishes:
        if name not in known:
            raise PlacementError(f"devices: the graph knows no kind {name!r}, it has times for {', '.join(known)}")

    def wished(kind: DeviceKind) -> DeviceKind:
        if kind.name not in wishes:
            return kind
        count, memory = wishes[kind.name]
        return dataclasses.replace(kind, count=count, memory=kind.memory if memory is None else memory)

    return dataclasses.replace(problem, kinds=tuple(map(wished, problem.kinds)))


def blocks_of(placement: GraphPlacement, tolerance: float = 0.0) -> Problem:
    """A graph of stages as a block problem: a forward and a backward of each stage on its devices, with their memory.
    The all-reduce of a replicated stage, once a step, is distributed evenly over its backwards. ``tolerance``: the
    share by which the parameter counts of the executed modules may differ."""
    from weft.solver.placement.dag.stage_blocks import stage_problem
    from weft.solver.placement.joint.cuts import cut_of
    from weft.solver.placement.joint.sized import SizedProblem

    problem, stages = placement.problem, placement.stages
    works = cut_of(SizedProblem(problem.micro_batches or 1, {1: problem}), parts_of(stages),
                   [stage.devices for stage in stages]).works((1,) * len(stages))
    blocks = stage_problem(problem.name, works, placement.after, time_unit=problem.time_unit,
                           memory_unit="B" if problem.memory_unit == "byte" else problem.memory_unit)
    return dataclasses.replace(blocks, model=stage_facts(
        problem, [stage.nodes for stage in stages], [f"F{s}" for s in range(len(stages))], tolerance))


def stage_facts(problem: PlacementProblem, stages: Sequence[Sequence[int]], forwards: Sequence[str], tolerance: float,
                sizes: Sequence[int] | None = None) -> ModelFacts:
    """The composition of stages of these operators, by forward block, the first if there are several. ``sizes``:
    samples of their micro-batches, if these are chosen."""
    held = [dict(item for node in nodes for item in problem.nodes[node].parameters) for nodes in stages]
    facts = tuple(StageFacts(forward, tuple(problem.nodes[node].name for node in nodes),
                             sum(parameters.values()) if any(held) else None,
                             micro_batch=None if sizes is None else sizes[s])
                  for s, (nodes, forward, parameters) in enumerate(zip(stages, forwards, held, strict=True)))
    return ModelFacts(facts, ties_between(dict(zip(forwards, held, strict=True))), tolerance)


def parse_devices(text: str) -> dict[str, Wish]:
    """``accelerator=4:16GiB,cpu=0`` as counts and memory by kind. Raises ``ValueError`` with the allowed values."""
    from weft.models.spec.quantities import parse_bytes

    found: dict[str, Wish] = {}
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        count, colon, memory = rest.partition(":")
        if not equals or not name.strip() or not count.strip().isdigit() or name.strip() in found:
            raise ValueError(f"is {text!r}, it must be like accelerator=4,cpu=1 or accelerator=4:16GiB, each kind once")
        amount = float(parse_bytes(memory.strip())) if colon else None
        found[name.strip()] = (int(count), amount)
    return found


def placement_text(placement: Placement) -> str:
    """The placement as text: the objective with its proof, and a line for each stage."""
    problem, unit = placement.problem, placement.problem.time_unit
    shape = "graphs of stages" if isinstance(placement, GraphPlacement) else "stages in a row"
    found = "proven optimal" if meets(placement.objective, placement.bound) else f"gap at most {placement.gap:.2%}"
    proof = f"{found} over every cut of these operators into {shape}"
    lines = [
        f"{name_text(problem.name)}: {len(problem.nodes)} operators in {len(placement.stages)} stages",
        f"bottleneck  {_time(placement.objective, unit)}, lower bound {_time(placement.bound, unit)}: {proof}",
        f"latency     {_time(placement.latency, unit)}" + (
            "" if placement.latency_bound is None else f", lower bound {_time(placement.latency_bound, unit)} at this "
                                                       "bottleneck"),
    ]
    if isinstance(placement, GraphPlacement):
        least = "the least" if meets(placement.least, placement.bound) else "the least found"
        above = f", {placement.slack:.1%} above {least}, {_time(placement.least, unit)}" if placement.slack else ""
        lines.append(f"depth       {placement.depth} stages, lower bound {placement.depth_bound} with loads up to "
                     f"{_time(placement.limit, unit)}{above}")
    for number, stage in enumerate(placement.stages):
        kind = problem.kinds[stage.kind]
        limit = "" if kind.memory is None else f" of {_memory(kind.memory, problem)}"
        several = f"{stage.devices} x " if stage.devices > 1 else ""
        added_up = f", {_time(stage.all_reduce, unit)} all-reduce" if stage.all_reduce else ""
        names = [name_text(problem.nodes[node].name) for node in (stage.nodes[0], stage.nodes[-1])]
        count = "1 operator" if len(stage.nodes) == 1 else f"{len(stage.nodes)} operators"
        lines.append(f"  stage {number:<2} {several}{kind.name}: load {_time(stage.load, unit)} "
                     f"({_time(stage.compute, unit)} compute, {_time(stage.transfers, unit)} transfers{added_up}), "
                     f"{_memory(stage.memory, problem)}{limit}, {count}, {' ... '.join(dict.fromkeys(names))}"
                     f"{_place_in_graph(placement, number)}")
    if placement.solver.get("coarsening"):
        lines.append(str(placement.solver["coarsening"]))
    return "\n".join(lines)


def _place_in_graph(placement: Placement, stage: int) -> str:
    if not isinstance(placement, GraphPlacement):
        return ""
    after = ", ".join(map(str, placement.after[stage]))
    return f"; depth {placement.depths[stage]}" + (f", then {after}" if after else "")


def _time(value: float, unit: str) -> str:
    return f"{value * 1e3:.6g} ms" if unit == "s" else f"{value:.6g} {unit}"


def _memory(amount: float, problem: PlacementProblem) -> str:
    if problem.memory_unit == "byte":
        return f"{amount / 2**30:.2f} GiB"
    return f"{amount:g} {problem.memory_unit}"
