"""The placement of a spec in which memory is decided: cuts at any operator, and operators kept or recomputed.

It is one more chain for the schedule search: a stage's forward takes what the plan keeps, its backward runs the second
forwards too and has the recompute buffer as workspace, so that search and judge see all of it. Offloading is not among
the decisions here: the executor copies nothing to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from models.build import Candidate, StageRow, bytes_per_parameter, candidates
from models.cluster import Link, model_cluster
from models.costs import LayerCost, explicit_layers
from models.family_costs import family_costs, uses_measured_gpt
from models.memory_chains import graph_chain
from models.sections import ExplicitModel, Spec, Training
from models.spec import SpecError
from models.split import NoSplit
from models.zoo.gpt import DEFAULT_PROFILE
from solver.placement.memory import ChainOperator, MemoryPlan, MemoryProblem
from solver.placement.memory_plan import NoMemoryPlan, plan_memory
from solver.problem import Block, BlockKind, Dependency, Device, Problem

__all__ = ["decided_candidate", "spec_candidates"]

#: Seconds for a plan, and the gap at which it is good enough to be scheduled.
_TIME, _GAP = 20.0, 1e-3


def spec_candidates(spec: Spec) -> list[Candidate]:
    """What :func:`~models.build.candidates` finds and, where the spec lets memory be decided, that placement too.

    Raises what those two raise; where only one of them finds something, that is the answer.
    """
    if spec.placement.memory != "decide":
        return candidates(spec)
    try:
        decided = decided_candidate(spec)
    except NoMemoryPlan:
        return candidates(spec)
    try:
        return [*candidates(spec), decided]
    except NoSplit:
        return [decided]


def decided_candidate(spec: Spec) -> Candidate:
    """The chain of stages whose cuts and memory are decided together.

    Raises :class:`~models.spec.SpecError` where the spec has no such placement, and
    :class:`~solver.placement.memory_plan.NoMemoryPlan` where none fits.
    """
    run = spec.run
    if not isinstance(run, Training):
        raise SpecError(f"{spec.where}: placement.memory is decide, but inference keeps nothing; leave it out")
    if run.recompute:
        raise SpecError(f"{spec.where}: training.recompute is true, but with placement.memory: decide it is decided "
                        "operator by operator; leave one of them out")
    if run.optimizer != "adam":
        raise SpecError(f"{spec.where}: placement.memory is decide, which plans for optimizer: adam only")
    cluster = model_cluster(spec.cluster)
    if len(set(cluster.memory)) > 1:
        raise SpecError(f"{spec.where}: placement.memory is decide, which needs GPUs of equal memory")
    chain, layers, notes = _chain(spec)
    if len(chain) < spec.cluster.gpus:
        raise SpecError(f"{spec.where}: model has {len(chain)} operators, too few for cluster.gpus: "
                        f"{spec.cluster.gpus} (each GPU runs at least one)")
    # A stage's passes need what the neediest of its layers needs for a moment; here every stage is given the most.
    passing = max(max(layer.workspace_forward, layer.workspace_backward) for layer in layers)
    largest = max(op.output for op in chain) or 1
    plan = plan_memory(MemoryProblem(
        tuple(chain), spec.cluster.gpus, max(0, cluster.available[0] - passing), copy_bandwidth=1.0,
        link_bandwidth=largest / max(1e-12, cluster.link.seconds(largest)), modes=frozenset({"recompute"}),
        micro_batches=spec.micro_batches), gap=_GAP, time_limit=_TIME)
    return _candidate(spec, plan, cluster.available, passing, cluster.link, notes)


def _chain(spec: Spec) -> tuple[list[ChainOperator], list[LayerCost], tuple[str, ...]]:
    """The spec's operators in a row (listed layers: whole ones), its layers, and what a reader should know."""
    if not isinstance(spec.model, ExplicitModel):
        if uses_measured_gpt(spec) and spec.costs is None:
            spec = spec.model_copy(update={"costs": DEFAULT_PROFILE})
        family = family_costs(spec)
        state = bytes_per_parameter(spec) / spec.run.parameter_bytes
        return graph_chain(family.graph, family.times, state=state), list(family.layers), family.notes
    layers = explicit_layers(spec.model, spec.run.parameter_bytes, training=True, recompute=False)
    return _listed(layers, bytes_per_parameter(spec)), layers, ()


def _listed(layers: Sequence[LayerCost], per_parameter: int) -> list[ChainOperator]:
    """Listed layers as operators, and between them what each gives to the next as one that takes no time: kept, it
    lets the next layer be made again alone."""
    chain: list[ChainOperator] = []
    for layer in layers:
        given = min(layer.input_bytes, layer.activation_bytes)
        if chain and given:
            before = chain[-1]
            chain.append(ChainOperator(f"{before.name} (output)", 0, 0, given, before.output,
                                       max(0, before.output - given), kind=f"{before.kind} (output)",
                                       layer=before.layer))
        chain.append(ChainOperator(
            layer.name, round(layer.forward * 1e9), round(layer.backward * 1e9), layer.activation_bytes - given,
            layer.output_bytes, layer.output_bytes, layer.weights_bytes, layer.parameters * per_parameter,
            kind=layer.name.rpartition(".")[0], layer=layer.name))
    return chain


def _candidate(spec: Spec, plan: MemoryPlan, available: tuple[int, ...], passing: int, link: Link,
               notes: tuple[str, ...]) -> Candidate:
    ops, stages = plan.problem.operators, plan.stages
    static = tuple(stage.resident for stage in stages)
    names = tuple(tuple(dict.fromkeys(op.layer or op.name for op in ops[a:b])) for a, b in pairwise(plan.cuts))
    rows = tuple(StageRow(s, s, names[s], _seconds(sum(op.forward for op in ops[stage.first:stage.last])),
                          _seconds(stage.device - sum(op.forward for op in ops[stage.first:stage.last])),
                          stage.resident, stage.activations // stage.in_flight) for s, stage in enumerate(stages))
    devices = tuple(Device(f"gpu{s}", capacity - held)
                    for s, (capacity, held) in enumerate(zip(available, static, strict=True)))
    problem = Problem(f"{spec.name} (chain, memory decided)", devices, tuple(_blocks(plan, passing, link)),
                      time_unit="s", memory_unit="B")
    again = [sum(mode == "recompute" for mode in plan.modes[a:b]) for a, b in pairwise(plan.cuts)]
    told = (f"memory decided: stages begin at {', '.join(ops[cut].name for cut in plan.cuts[:-1])}; "
            f"{' + '.join(map(str, again))} of {len(ops)} operators are recomputed; no such plan of a chain has a "
            f"bottleneck below {plan.bound / 1e6:.1f} ms, this one has {plan.time / 1e6:.1f} ms")
    return Candidate("chain", "full", "1f1b", problem, static, names, tuple(range(len(stages))), rows,
                     (*notes, told), decided=True)


def _blocks(plan: MemoryPlan, passing: int, link: Link) -> Iterator[Block]:
    ops, stages = plan.problem.operators, plan.stages
    forward = [max(1, sum(op.forward for op in ops[stage.first:stage.last])) for stage in stages]
    lags = [link.seconds(ops[stage.first - 1].output) if s else 0.0 for s, stage in enumerate(stages)]
    held = [stage.activations // stage.in_flight for stage in stages]
    for s in range(len(stages)):
        after = (Dependency(f"F{s - 1}", lags[s]),) if s else ()
        yield Block(f"F{s}", BlockKind.FORWARD, (s,), _seconds(forward[s]), (held[s],), (passing,), after)
    for s in reversed(range(len(stages))):
        last = s + 1 == len(stages)
        after = (Dependency(f"F{s}", 0.0) if last else Dependency(f"B{s + 1}", lags[s + 1]),)
        yield Block(f"B{s}", BlockKind.BACKWARD, (s,), _seconds(max(1, stages[s].device - forward[s])), (-held[s],),
                    (stages[s].recompute_buffer + passing,), after)


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds * 1e-9, 9)
