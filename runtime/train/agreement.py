"""Compares the modules that run with the problem that was solved, before the first step.

A plan may have facts about its stages (:mod:`weft.solver.model_facts`): parameters, sizes of outputs, parameters common
to several stages. It always knows which backwards it splits. A training that has forgotten a tie, cuts the model
elsewhere, or cannot split what the plan splits would run, and silently train or time something else. So each is a
sentence, on all ranks.

The rule for a split backward: the executor defers the weight gradients of linear layers, convolutions, embeddings, and
other registered layers (:mod:`weft.runtime.train.deferring`). Of the others, matrices and kernels of more dimensions
count: biases, norms and embeddings have weight gradients that take next to nothing, wherever a plan counts them. The
work that moves from W to I is estimated as the planned W times the share of the stage's trained matrix elements that
cannot be deferred, and more than :data:`HELD_BACK` of its planned backward is refused. A stage that was measured by
this executor with as many parameters deferred as now has the I and W that it was planned with, and is never refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.stage_graph import StageGraph
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.words import some
from weft.runtime.train.deferring import deferred_parameters
from weft.runtime.train.parallel import is_sharded
from weft.runtime.train.tied_parameters import HeldTies, holding, shared_stages
from weft.runtime.train.wiring import Wiring
from weft.solver.model_facts import StageFacts

#: The share of a stage's planned backward that may run in I though the plan has it in W, as with a patch embedding or
#: #: learned positions beside linear layers: the scatter of timings.
HELD_BACK = 0.05
#: Parts of names of modules whose weights may have several dimensions, but cheap gradients: a scatter, a sum.
CHEAP = ("embedding", "norm")
SHOWN = 4  # number of modules named in a sentence


class Allowed(NamedTuple):
    """Allowed differences between a plan and its run: these are reported, and the run continues. ``unsplit``: backwards
    that the plan splits and the executor cannot; ``model``: parameters, ties and sizes of outputs."""

    unsplit: bool = False
    model: bool = False


class StageFound(NamedTuple):
    """A stage's module: its parameters and their bytes (``None`` for a share of a stage on several ranks), the number
    that the executor can defer, its trained matrix elements, those that cannot be deferred: name, kind of module,
    number; and its layers, if the training names them."""

    parameters: int | None
    parameter_bytes: int | None
    deferred: int
    matrices: int
    held_back: tuple[tuple[str, str, int], ...]
    layers: tuple[str, ...]


class RankFacts(NamedTuple):
    """One rank's facts: its stages, the bytes of each stage's outputs where known, and its knowledge of shared
    parameters.
    """

    stages: Mapping[int, StageFound]
    outputs: Mapping[int, int]
    holding: HeldTies


def wiring_of(plan: Plan, rank: int, training: Training) -> Wiring:
    """The values between the plan's stages, after comparing ``training`` with their number and places.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if it does not fit.
    """
    graph = plan.vocabulary.graph
    if graph is None:
        raise SessionError(str(plan.why_not_trained))
    wiring = Wiring(graph, training)
    mine = {s for s, stage in enumerate(graph.stages) if rank in stage.ranks}
    if set(training.stages) != mine:
        raise SessionError(f"rank {rank} runs the stages {sorted(mine)}, but was handed the modules of "
                           f"{sorted(training.stages)}")
    return wiring


def require_agreement(plan: Plan, session: Session, training: Training, allowed: Allowed | None) -> None:
    """Compare the ranks' modules with the plan. All ranks must call it together, on a training that :func:`wiring_of`
    has accepted.

    Raises :class:`~weft.runtime.ranks.session.SessionError` on all of them for the first difference that is not
    ``allowed``; rank 0 reports allowed ones on standard error.
    """
    def tell(sentence: str) -> None:
        if session.process(session.rank) == 0:
            warn(sentence)

    found = session.exchange(facts_of(plan, training), "comparing the stages with the plan")
    require_allowed(plan, found, allowed, tell)


def require_allowed(plan: Plan, found: Sequence[RankFacts], allowed: Allowed | None,
                    tell: Callable[[str], None]) -> None:
    """Call ``tell`` with each of the :func:`differences` that is ``allowed`` (``None``: none can be). Raises
    :class:`~weft.runtime.ranks.session.SessionError` for the first that is not."""
    for sentence, flag in differences(plan, found):
        if not getattr(allowed or Allowed(), flag):
            raise SessionError(sentence if allowed is None else f"{sentence}, or go on with {_OPTIONS[flag]}")
        tell(sentence)


def warn(sentence: str) -> None:
    """Write ``sentence`` to standard error."""
    sys.stderr.write(f"weft: warning: {sentence}\n")


_OPTIONS = {"unsplit": "--allow-unsplit", "model": "--allow-other-model"}


def facts_of(plan: Plan, training: Training) -> RankFacts:
    """The facts of the rank with ``training``. Raises :class:`~weft.runtime.ranks.session.SessionError` for ties that
    name missing parameters."""
    graph = plan.vocabulary.graph
    assert graph is not None  # there is a training
    return RankFacts({stage: _found(module, len(graph.stages[stage].ranks) > 1, tuple(training.layers.get(stage, ())))
                      for stage, module in training.stages.items()},
                     dict(_outputs(graph, training)), holding(training))


def _found(module: nn.Module, is_spread: bool, layers: tuple[str, ...]) -> StageFound:
    parameters = list(module.parameters())
    deferred = deferred_parameters(module)
    kinds = {name: type(module.get_submodule(name.rpartition(".")[0])).__name__
             for name, _ in module.named_parameters()}
    matrices = {p: name for name, p in module.named_parameters() if p.requires_grad and p.dim() > 1
                and not any(kind in kinds[name].lower() for kind in CHEAP)}
    held_back = [(name, kinds[name], p.numel()) for p, name in matrices.items() if p not in deferred]
    is_share = is_spread or any(is_sharded(p) for p in parameters)
    return StageFound(None if is_share else sum(p.numel() for p in parameters),
                      None if is_share else sum(p.numel() * p.element_size() for p in parameters),
                      sum(p.numel() for p in deferred), sum(p.numel() for p in matrices), tuple(held_back), layers)


def _outputs(graph: StageGraph, training: Training) -> Iterator[tuple[int, int]]:
    """The bytes of each stage's outputs to others, for stages whose outputs all have a boundary of known lengths."""
    wiring = Wiring(graph, training)
    for stage, ports in wiring.ports.items():
        handed = [value for value in ports.gives if value in wiring.takers]
        if handed and all(value in wiring.boundaries and wiring.boundaries[value].is_known for value in handed):
            yield stage, sum(wiring.boundaries[value].nbytes for value in handed)


# -- what differs ------------------------------------------------------------------------------------------------------


def differences(plan: Plan, found: Sequence[RankFacts]) -> Iterator[tuple[str, str]]:
    """A sentence for each difference between ``found``, of all ranks or some, and the modules that ``plan`` was made
    for, with the field of :class:`Allowed` that permits it."""
    graph = plan.vocabulary.graph
    assert graph is not None
    facts = {} if plan.problem.model is None else {
        graph.pass_of[plan.problem.index[stage.forward]][0]: stage for stage in plan.problem.model.stages
        if plan.problem.index.get(stage.forward) in graph.pass_of}
    stages = {stage: it for rank in found for stage, it in rank.stages.items()}
    outputs = {stage: size for rank in found for stage, size in rank.outputs.items()}
    for stage, it in sorted(stages.items()):
        if stage in facts:
            for sentence in _of_another_model(plan, facts[stage], stage, it, outputs.get(stage)):
                yield sentence, "model"
    if graph.has_backward:
        for sentence in _forgotten_ties(plan, graph, found, stages):
            yield sentence, "model"
    for stage, it in sorted(stages.items()):
        why = _unsplit(plan, graph, facts.get(stage), stage, it) if "I" in graph.stages[stage].blocks else None
        if why is not None:
            yield why, "unsplit"


def _of_another_model(plan: Plan, wanted: StageFacts, stage: int, it: StageFound, output: int | None) -> Iterator[str]:
    assert plan.problem.model is not None
    if wanted.layers and it.layers and wanted.layers != it.layers:
        yield (f"stage {stage} holds {_span(it.layers)}, but the plan is for a stage of {_span(wanted.layers)}: cut "
               "the model as the plan does, or plan for this one")
    layers = f" ({_span(wanted.layers)})" if wanted.layers else ""
    for what, planned, there in (("parameters", wanted.parameters, it.parameters),
                                 ("bytes of parameters", wanted.parameter_bytes, it.parameter_bytes),
                                 ("bytes to hand on", wanted.output_bytes, output)):
        if planned is not None and there is not None and abs(there - planned) > plan.problem.model.tolerance * planned:
            yield (f"stage {stage} has {there:,} {what}, but the plan is for a stage{layers} of {planned:,}: cut the "
                   "model as the plan does, or plan for this one")


def _span(layers: Sequence[str]) -> str:
    return f"{layers[0]} to {layers[-1]}, {len(layers)} layers" if len(layers) > 1 else layers[0]


def _forgotten_ties(plan: Plan, graph: StageGraph, found: Sequence[RankFacts],
                    present: Mapping[int, StageFound]) -> Iterator[str]:
    together = [set(stages) for stages in shared_stages(rank.holding for rank in found)]
    wanted = {} if plan.problem.model is None else {
        tie.parameter: {graph.pass_of[plan.problem.index[name]][0] for name in tie.stages
                        if plan.problem.index.get(name) in graph.pass_of} for tie in plan.problem.model.ties}
    signed = {f"what stages {' and '.join(map(str, stages))} shared when the plan was signed": set(stages)
              for stages in plan.shared if plan.signatures}
    for name, stages in {**{repr(name): stages for name, stages in wanted.items()}, **signed}.items():
        trained = {stage for stage in stages if graph.stages[stage].backward is not None}
        if len(trained) > 1 and trained & set(present) and not any(trained <= group for group in together):
            listed = ", ".join(map(str, sorted(trained)))
            yield (f"{name} is one parameter in the stages {listed}, but their modules do not share it and no tie "
                   "names it, so each stage would train its own: add to ties of the training an entry with its name "
                   "in each of these stages")


def _unsplit(plan: Plan, graph: StageGraph, wanted: StageFacts | None, stage: int, it: StageFound) -> str | None:
    """For a stage whose backward the plan splits: why the executor cannot split it in that way."""
    if wanted is not None and wanted.deferred is not None and plan.problem.model is not None:
        if abs(it.deferred - wanted.deferred) <= plan.problem.model.tolerance * wanted.deferred:
            return None
        return (f"stage {stage}: when its W was measured, the weight gradients of {wanted.deferred:,} parameters "
                f"waited for it, but now the executor defers those of {it.deferred:,}: measure these stages, and plan "
                "again")
    lost = sum(count for *_, count in it.held_back)
    early, late = (plan.problem.blocks[graph.stages[stage].blocks[letter]].duration for letter in "IW")
    if lost * late <= HELD_BACK * it.matrices * (early + late):
        return None
    names = some([f"{name} ({kind})" for name, kind, _ in it.held_back], SHOWN)
    return (f"stage {stage}: the plan splits its backward, but of {lost / it.matrices:.0%} of its weights ({lost:,} of "
            f"{it.matrices:,}) the executor computes the gradient in I, not in W: {names}, as it defers those of "
            "registered layers only (weft.runtime.register_deferred); plan with full backwards, or from stages "
            "measured with `weft profile --stages`")
