"""The placements of a spec with memory decisions: cuts at any operator, and each operator kept, recomputed or offloaded
to the host.

They are additional chains for the schedule search: a stage's forward allocates the plan's kept tensors, its backward
includes the second forwards and has the recompute buffer as workspace; offload copies run beside the computation, as
blocks and transfers (:mod:`weft.solver.offload`). So search and judge see all of it.

A plan is made for a bottleneck, not for a schedule: only schedules show the room that copies and messages in transit
need so that nothing waits. So there are several plans, with more or less room, with and without offloading.

Received tensors are never offloaded: they stay in the receive buffer until the stage has finished with them.

Chains of operators for memory decisions, from an operator graph with times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from weft.models.candidates.build import ModelCandidate, StageRow, bytes_per_parameter, candidates
from weft.models.candidates.gpu_costs import family_costs, require_alike, uses_measured_gpt
from weft.models.candidates.stage_blocks import seconds_of
from weft.models.candidates.stage_split import NoSplit
from weft.models.graph.operators import OperatorGraph
from weft.models.layers.cluster import ClusterModel, Network, model_cluster
from weft.models.layers.costs import LayerCost, explicit_layers, require_possible
from weft.models.layers.measured_gpt import DEFAULT_PROFILE
from weft.models.spec.model_sections import ExplicitModel
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError
from weft.models.times.operator_times import OperatorTime
from weft.solver.cpsat.budget import Budget
from weft.solver.offload import Offload, with_offloads
from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem, Mode
from weft.solver.placement.memory.plan_memory import MemoryPlanNotFound, NoMemoryPlan, least_bottleneck, plan_memory
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: Default seconds for the first plan, and the gap at which a plan is good enough to be scheduled.
_TIME, _GAP = 20.0, 2e-3
#: The room reserved in plans: micro-batches ahead, copy buffers; with and without offloading. The first needs least.
_OFFLOADING, _RECOMPUTING = ((0, 2), (0, 3), (1, 3)), ((0, 2), (1, 2))
#: Seconds for which the blocks around a copy occupy their GPU: the clock's tick.
_MOMENT = 1e-9


def spec_candidates(spec: Spec) -> list[ModelCandidate]:
    """The candidates of :func:`~weft.models.candidates.build.candidates` and, if the spec allows memory decisions,
    those placements too.

    Raises the exceptions of those two; if only one of them finds something, that is the answer.
    """
    if spec.placement.memory != "decide":
        return candidates(spec)
    try:
        decided = decided_candidates(spec)
    except NoMemoryPlan as error:
        try:
            return candidates(spec)
        except NoSplit as refusal:
            if isinstance(error, MemoryPlanNotFound):
                refusal.besides = f"; and with memory decided: {error}"
            raise
    try:
        return [*candidates(spec), *decided]
    except NoSplit:
        return decided


def decided_candidates(spec: Spec, *, every: bool = True, time_limit: float = 2 * _TIME) -> list[ModelCandidate]:
    """The chains of stages whose cuts and memory are decided together, those with offloading first, and within each
    kind those with least room first; without ``every`` only these. ``time_limit``: seconds for all plans; the first has
    half of them, or all if no other follows. Ctrl-C returns those found so far.

    Raises :class:`~weft.models.spec.spec.SpecError` if the spec has no such placement, and
    :class:`~weft.solver.placement.memory.plan_memory.NoMemoryPlan` if none fits or (its subclass) none was found.
    """
    whole = Budget(seconds=time_limit)
    made = _OperatorChain(spec)
    kinds: list[tuple[frozenset[Mode], Sequence[tuple[int, int]]]] = [(frozenset({"recompute"}), _RECOMPUTING)]
    if spec.cluster.host_bandwidth is not None:
        kinds.insert(0, (frozenset({"recompute", "offload"}), _OFFLOADING))
    found: list[MemoryPlan] = []
    refusals: list[NoMemoryPlan] = []
    bound = 0  # from the first plan, which needs least room
    left = sum(len(rooms) if every else 1 for _, rooms in kinds)
    for modes, rooms in kinds:
        for ahead, copy_buffers in rooms if every else rooms[:1]:
            share = 1 / left if found or left == 1 else 0.5
            left -= 1
            if whole.spent and found:
                break
            try:
                with whole.part(share) as part:
                    plan = plan_memory(made.problem(modes, ahead, copy_buffers), gap=_GAP, at_least=bound, budget=part)
            except NoMemoryPlan as error:
                refusals.append(error)
                break  # the others of this kind need more
            except KeyboardInterrupt:
                if not found:
                    raise
                whole.interrupted = True
                break
            bound = bound or (0 if refusals else plan.bound)
            if all((plan.cuts, plan.modes) != (earlier.cuts, earlier.modes) for earlier in found):
                found.append(plan)
    if not found:
        raise refusals[0]
    return [made.candidate(plan) for plan in found]


def decided_least_period(spec: Spec) -> float:
    """A lower bound in seconds a micro-batch over all placements of this kind, in any schedule; infinite if none fits.

    Raises :class:`~weft.models.spec.spec.SpecError` if the spec has no such placement.
    """
    made = _OperatorChain(spec)
    return least_bottleneck(made.problem(frozenset({"recompute"}), 0, 2), gap=_GAP, time_limit=_TIME) * 1e-9


class _OperatorChain:
    """The spec's operators in order, and their cluster."""

    def __init__(self, spec: Spec) -> None:
        run = spec.run
        if not isinstance(run, TrainingRun):
            raise SpecError(f"{spec.where}: placement.memory is decide, but inference keeps nothing; leave it out")
        if run.recompute:
            raise SpecError(f"{spec.where}: training.recompute is true, but with placement.memory: decide it is "
                            "decided operator by operator; leave one of them out")
        if run.optimizer != "adam":
            raise SpecError(f"{spec.where}: placement.memory is decide, which plans for optimizer: adam only")
        require_alike(spec, "placement.memory: decide")
        self.spec = spec
        self.cluster: ClusterModel = model_cluster(spec.cluster)
        if len(set(self.cluster.memory)) > 1:
            raise SpecError(f"{spec.where}: placement.memory is decide, which needs GPUs of equal memory")
        operators, layers, self.notes = _chain(spec)
        self.operators = tuple(operators)
        if len(self.operators) < spec.cluster.gpus:
            raise SpecError(f"{spec.where}: model has {len(self.operators)} operators, too few for cluster.gpus: "
                            f"{spec.cluster.gpus} (each GPU runs at least one)")
        # A stage's workspace is the largest of its layers; here every stage is charged the overall maximum.
        self.passing = max(max(layer.workspace_forward, layer.workspace_backward) for layer in layers)

    def problem(self, modes: frozenset[Mode], ahead: int, copy_buffers: int) -> MemoryProblem:
        """The planner's problem, with ``modes`` allowed besides keeping, and this room."""
        largest = max(op.output for op in self.operators) or 1
        network = self.cluster.network  # the planner knows one link: the fastest, so that its bound holds
        fastest = min(tier.seconds(largest) for tier in network.tiers)
        return MemoryProblem(
            self.operators, self.spec.cluster.gpus, max(0, self.cluster.available[0] - self.passing),
            copy_bandwidth=self.spec.cluster.host_bandwidth or 1.0,
            link_bandwidth=largest / max(1e-12, fastest), modes=modes,
            micro_batches=self.spec.micro_batches, copy_buffers=copy_buffers, ahead=ahead)

    def candidate(self, plan: MemoryPlan) -> ModelCandidate:
        """The placement of ``plan``."""
        ops, stages = plan.problem.operators, plan.stages
        static = tuple(stage.resident for stage in stages)
        names = tuple(tuple(dict.fromkeys(op.layer or op.name for op in ops[a:b])) for a, b in pairwise(plan.cuts))
        forward = [sum(op.forward for op in ops[stage.first:stage.last]) for stage in stages]
        rows = tuple(StageRow(s, s, names[s], seconds_of(forward[s]), seconds_of(stage.device - forward[s]),
                              stage.resident, _taken(plan, s)) for s, stage in enumerate(stages))
        devices = tuple(Device(f"gpu{s}", capacity - held)
                        for s, (capacity, held) in enumerate(zip(self.cluster.available, static, strict=True)))
        offloads = "offload" in plan.modes
        problem = Problem(f"{self.spec.name} (chain, memory decided{' with offload' if offloads else ''})", devices,
                          tuple(_blocks(plan, self.passing, self.cluster.network)), time_unit="s", memory_unit="B")
        problem = with_offloads(problem, (
            Offload(f"F{s}", f"B{s}", stage.offloaded, _one_way(stage.offloaded, plan.problem.copy_bandwidth))
            for s, stage in enumerate(stages) if stage.offloaded), _MOMENT)
        return ModelCandidate("chain", "full", "1f1b", problem, static, names, tuple(range(len(stages))), rows,
                              (*self.notes, _told(plan)), decided=plan)


def _told(plan: MemoryPlan) -> str:
    ops = plan.problem.operators

    def counts(mode: Mode) -> str:
        return " + ".join(str(plan.modes[a:b].count(mode)) for a, b in pairwise(plan.cuts))

    allowed = "kept, recomputed or offloaded" if "offload" in plan.problem.modes else "kept or recomputed"
    # Buffers go by class in the planner: operators that break up runs of one kind are not among those compared.
    by_kind = " (buffers by kind of operator)" if len({op.kind or op.name for op in ops}) < len(ops) else ""
    return (f"memory decided: stages begin at {', '.join(ops[cut].name for cut in plan.cuts[:-1])}; "
            f"{counts('recompute')} of {len(ops)} operators are recomputed"
            + (f", {counts('offload')} offloaded" if "offload" in plan.modes else "")
            + f"; with room for 1F1B's micro-batches{' and one more' if plan.problem.ahead else ''}, no plan of a "
              f"chain whose operators are {allowed}{by_kind} has a bottleneck below {plan.bound / 1e6:.1f} ms, this "
              f"one has {plan.time / 1e6:.1f} ms")


def _chain(spec: Spec) -> tuple[list[ChainOperator], list[LayerCost], tuple[str, ...]]:
    """The spec's operators in a row (for listed layers: whole layers), its layers, and remarks."""
    if not isinstance(spec.model, ExplicitModel):
        if uses_measured_gpt(spec) and spec.costs is None:
            spec = spec.model_copy(update={"costs": DEFAULT_PROFILE})
        family = family_costs(spec)
        state = bytes_per_parameter(spec) / spec.run.parameter_bytes
        return graph_chain(family.graph, family.times, state=state), list(family.layers), family.notes
    layers = explicit_layers(spec.model, spec.run.parameter_bytes, training=True, recompute=False)
    require_possible(layers, spec.where)
    return _listed(layers, bytes_per_parameter(spec)), layers, ()


def _listed(layers: Sequence[LayerCost], per_parameter: int) -> list[ChainOperator]:
    """Listed layers as operators, with each output to the next as an operator without time in between: if kept, it lets
    the next layer be recomputed alone."""
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
            layer.output_bytes, layer.output_bytes, layer.parameters * per_parameter,
            kind=layer.name.rpartition(".")[0], layer=layer.name))
    return chain


def _blocks(plan: MemoryPlan, passing: int, network: Network) -> Iterator[Block]:
    ops, stages = plan.problem.operators, plan.stages
    # Every block takes time: a nanosecond for a stage without any, being only one layer's output to the next.
    forward = [max(1, sum(op.forward for op in ops[stage.first:stage.last])) for stage in stages]
    lags = [network.seconds(ops[stage.first - 1].output, (s - 1,), (s,)) if s else 0.0
            for s, stage in enumerate(stages)]
    held = [_taken(plan, s) for s in range(len(stages))]
    for s in range(len(stages)):
        after = (Dependency(f"F{s - 1}", lags[s]),) if s else ()
        yield Block(f"F{s}", BlockKind.FORWARD, (s,), seconds_of(forward[s]), (held[s],), (passing,), after)
    for s in reversed(range(len(stages))):
        last = s + 1 == len(stages)
        after = (Dependency(f"F{s}", 0.0) if last else Dependency(f"B{s + 1}", lags[s + 1]),)
        yield Block(f"B{s}", BlockKind.BACKWARD, (s,), seconds_of(max(1, stages[s].device - forward[s])), (-held[s],),
                    (stages[s].recompute_buffer + passing,), after)


def _taken(plan: MemoryPlan, stage: int) -> int:
    """Bytes that a forward of ``stage`` allocates: those that stay on the GPU, and those offloaded."""
    found = plan.stages[stage]
    return found.activations // found.in_flight + found.offloaded


def _one_way(size: int, bandwidth: float) -> float:
    """Seconds of a copy, in whole nanoseconds."""
    return round(math.ceil(size / bandwidth * 1e9) * 1e-9, 9)


#: Bytes of weight, gradient and Adam state (a master copy and two moments in fp32) for each byte of an fp16 weight.
STATE = 8


def graph_chain(graph: OperatorGraph, times: Mapping[str, OperatorTime], *,
                state: float = STATE) -> list[ChainOperator]:
    """The operators of ``graph`` in its order; ``state``: bytes of state for each byte of parameters.

    A tensor that any operator keeps is kept by its producer (a tensor from outside: by its first reader). An operator
    passes on every tensor that a later one reads. A shared parameter is counted with each of its operators.
    """
    order = [graph.by_name[name] for name in graph.order]
    position = {op.name: k for k, op in enumerate(order)}
    kept_by: dict[str, int] = {}
    for k, op in enumerate(order):
        for name in op.keeps:
            storage = graph.storage(name)
            kept_by.setdefault(storage, position.get(graph.producer.get(storage, ""), k))
    kept, held = [0] * len(order), [set[str]() for _ in order]
    for storage, k in kept_by.items():
        kept[k] += graph.tensors[storage].bytes
        held[k].add(storage)
    crossing: list[set[str]] = [set() for _ in order]
    for name, producer in graph.producer.items():
        last = max((position[reader] for reader in graph.readers[name]), default=-1)
        for k in range(position[producer], last):
            crossing[k].add(graph.storage(name))
    chain = []
    for k, op in enumerate(order):
        size = sum(graph.tensors[name].bytes for name in crossing[k])
        own = sum(graph.tensors[name].bytes for name in crossing[k] & held[k])
        time, weights = times[op.name], sum(parameter.bytes for parameter in op.parameters)
        part = op.name.removeprefix(op.layer)
        chain.append(ChainOperator(
            op.name, round(time.forward * 1e9), round((time.input_grad + time.weight_grad) * 1e9), kept[k], size,
            size - own, math.ceil(state * weights), kind=f"{op.kind}{part}", layer=op.layer))
    return chain
