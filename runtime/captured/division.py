"""The interface of a cut model, captured or run by its modules, and one rank's training and evaluation of it.

A rank trains its stages as an executor's :class:`~weft.runtime.interface.training.Training`, with the loss appended to
the last stage.

A captured graph has the mode of the model (``self.training``) as constant arguments of operators. For evaluation these
arguments are changed: no dropout, fixed running statistics. So training and evaluation have the same cuts and the same
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import TreeSpec, tree_unflatten

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.loss import LOSS, TARGET, LossStage, own_loss
from weft.runtime.captured.metadata_reads import attribute_of
from weft.runtime.interface.training import Boundary, Loss, Ports, Training

M = TypeVar("M", bound=nn.Module, covariant=True)


class InputLeaf(Protocol):
    """A leaf of the arguments of a model."""

    @property
    def name(self) -> str:
        """Its name; in a batch, with the prefix :data:`~weft.runtime.captured.cut.BATCH`."""


class KnownModel(Protocol):
    """A model whose computation has been recorded, by an export or by a run."""

    @property
    def model(self) -> nn.Module:
        """The model itself."""

    @property
    def inputs(self) -> Sequence[InputLeaf]:
        """The leaves of ``(args, kwargs)``."""

    @property
    def out_spec(self) -> TreeSpec:
        """The structure of its results."""

    @property
    def digest(self) -> str:
        """The model's identity."""

    def name_of(self, tensor: Tensor) -> str | None:
        """The model's own name of a parameter or buffer."""

    def unread(self) -> list[str]:
        """The trained parameters that are not read."""


@dataclass(frozen=True)
class StageModules(Generic[M]):
    """The stages of a cut. ``modules``: the requested ones, by number. ``ports``: of all stages. ``boundaries``: shape
    and dtype of every value between stages, by name. ``results``: the leaves of the model's result, names of values
    (``str``) and non-tensors; the last stage outputs these values. ``untrained``: values between stages that depend on
    no trained parameter."""

    modules: Mapping[int, M]
    ports: Mapping[int, Ports]
    boundaries: Mapping[str, Boundary]
    results: tuple[Any, ...]
    untrained: frozenset[str] = frozenset()


class ModelDivision(Protocol):
    """A model cut into ``count`` stages."""

    @property
    def captured(self) -> KnownModel:
        """The model."""

    @property
    def count(self) -> int:
        """The number of stages."""

    @property
    def parameters(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The trained parameters that each stage reads."""

    def stages(self, only: Sequence[int] | None = None, plain: bool = False) -> StageModules[nn.Module]:
        """The stages, with the modules of all or of those in ``only``. ``plain``: operators as in the model's code, and
        random numbers of torch's generator."""

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters, buffers and constants that stage ``s`` reads."""

    def doubtful(self, results: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Two sets of values between stages: those on which none of ``results`` depends, and those on which not all of
        ``results`` are known to depend. Where the loss depends on ``results`` alone, the first have no gradient, and
        the second may have none."""

    def ties(self) -> list[dict[int, str]]:
        """The parameters of several stages: for each, its name in the stage's module, by stage."""

    def spans(self) -> tuple[tuple[str, str], ...]:
        """The first and the last operator, or submodule, of each stage."""


#: Prefix of the names of the model's results in evaluation.
RESULT = "result."


@dataclass
class Data:
    """The tensors of the current batch, by micro-batch and name. ``first``: the number of the first micro-batch: with
    several replicas of the plan, earlier ones belong to other replicas."""

    micro_batches: Sequence[Mapping[str, Tensor]] = ()
    first: int = 0

    def of(self, step: int, micro_batch: int) -> Mapping[str, Tensor]:
        """The tensors of one micro-batch."""
        return self.micro_batches[micro_batch - self.first]


@dataclass(frozen=True)
class Goal:
    """The training objective: ``loss`` of the model's result and a target with the structure ``target``; ``None``: the
    loss that the model computes itself. Random operators draw from ``seed``."""

    loss: Callable[..., Loss] | None
    target: TreeSpec | None
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leaves of the target."""
        return tuple(f"{TARGET}{i}" for i in range(0 if self.target is None else self.target.num_leaves))


def training_of(cut: ModelDivision, only: Sequence[int], goal: Goal, data: Data, evaluating: bool = False) -> Training:
    """The training of the stages in ``only`` of ``cut``; the last stage outputs the loss. ``evaluating``: the stages in
    evaluation mode."""
    stages, last = cut.stages(only, plain=evaluating), cut.count - 1
    modules: dict[int, nn.Module] = {s: evaluated(module) if evaluating else module
                                     for s, module in stages.modules.items()}
    prefix = dict.fromkeys(range(cut.count), "")
    prefix[last] = "stage."
    if last in modules:
        modules[last] = LossStage(modules[last], cut.captured.out_spec, stages.results, goal.loss, goal.target)
    ports = dict(stages.ports)
    ports[last] = Ports((*ports[last].takes, *goal.names), (LOSS,))
    ties = [{s: prefix[s] + name for s, name in tie.items()} for tie in cut.ties()]
    unused, doubtful = cut.doubtful([own_loss(stages.results, cut.captured.out_spec)] if goal.loss is None else [
        leaf for leaf in stages.results if isinstance(leaf, str)])
    # A stage without other outputs has a backward in the plan, which needs a gradient.
    unused = frozenset(value for _, gives in stages.ports.values() for value in {*gives} & unused
                       if {*gives} - stages.untrained - unused)
    return Training(modules, stages.boundaries, data.of, ports=ports, losses=(LOSS,), ties=() if evaluating else ties,
                    seed=goal.seed, untrained=stages.untrained | unused, doubtful=doubtful)


def evaluation_of(cut: ModelDivision, only: Sequence[int], data: Data) -> tuple[Training, Callable[[], list[Any]]]:
    """The stages in ``only`` of ``cut`` in evaluation, and a function that returns the model's result for each
    micro-batch of the last batch; an empty list on a rank without the last stage."""
    stages, last = cut.stages(only, plain=True), cut.count - 1
    results = _Results(stages.results, cut.captured.out_spec)
    modules: dict[int, nn.Module] = {s: evaluated(module) for s, module in stages.modules.items()}
    ports = dict(stages.ports)
    ports[last] = Ports(ports[last].takes, tuple(RESULT + name for name in ports[last].gives))
    return (Training(modules, stages.boundaries, data.of, ports=ports, losses=(), collect=results.collect),
            results.take)


@dataclass
class _Results:
    leaves: Sequence[Any]
    spec: TreeSpec
    found: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def collect(self, step: int, micro_batch: int, values: Mapping[str, Tensor]) -> None:
        self.found[micro_batch] = dict(values)

    def take(self) -> list[Any]:
        found, self.found = self.found, {}
        return [tree_unflatten([found[i][RESULT + leaf] if isinstance(leaf, str) else leaf for leaf in self.leaves],
                               self.spec) for i in sorted(found)]


#: Arguments of operators that depend on the mode, by name, and their values in evaluation.
FLAGS: dict[str, float | bool] = {"train": False, "training": False, "dropout_p": 0.0, "use_input_stats": False}


def evaluated(stage: nn.Module) -> nn.Module:
    """Switch ``stage`` to evaluation in place: a graph by its arguments, any other module by ``eval()``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a graph that would still write into a buffer."""
    if not isinstance(stage, GraphModule):
        return stage.eval()
    for node in list(stage.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for place, argument in enumerate(schema.arguments):
            if argument.name in FLAGS:
                _set(node, place, argument.name)
        if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
            _refuse_or_drop(stage, node)
    stage.recompile()
    return stage


def _set(node: Node, place: int, name: str) -> None:
    if place < len(node.args):
        node.update_arg(place, FLAGS[name])
    elif name in node.kwargs:
        node.update_kwarg(name, FLAGS[name])


def _refuse_or_drop(stage: nn.Module, node: Node) -> None:
    """Remove an update of the batch counter, which nothing reads; refuse any other write into a buffer."""
    target = node.args[0]
    if not isinstance(target, Node) or target.op != "get_attr":
        return
    value = attribute_of(stage, target.target)
    if isinstance(value, Tensor) and not value.dim() and not node.users:
        node.graph.erase_node(node)
        return
    raise CaptureError(f"the operator {node.name} writes into {target.target!r} in evaluation too: evaluate the plain "
                       "model, with the pipeline's state dict")
