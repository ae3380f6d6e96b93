"""A cut model, however it was cut: its interface for the rest of a pipeline.

One rank's training of a cut model: the executor's :class:`~weft.runtime.interface.training.Training`, with the loss
behind the last stage.

A stage's graph in evaluation: without dropout, with fixed running statistics.

A captured graph is that of one mode of the model: ``self.training`` has become a constant argument of operators. Here
these arguments are changed, so that training and evaluation run stages cut at the same places, on the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import TreeSpec, tree_unflatten

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.looks import attribute_of
from weft.runtime.captured.loss import LOSS, TARGET, LossStage, own_loss
from weft.runtime.interface.training import Boundary, Loss, Ports, Training

M = TypeVar("M", bound=nn.Module, covariant=True)


class InputLeaf(Protocol):
    """A leaf of the arguments that a model is called with."""

    @property
    def name(self) -> str:
        """Its name: in a batch, behind :data:`~weft.runtime.captured.cut.BATCH`."""


class KnownModel(Protocol):
    """A model whose computation is known, by an export or by a run."""

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
    """The stages of a cut: ``modules`` by number (the requested ones), ``ports`` of all, the shape and type of every
    value that passes, and the model's ``results``: names of values (``str``), and non-tensors; the last stage gives, or
    takes and gives, the values. ``untrained``: the values that depend on no trained parameter."""

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
        """The stages, or the modules of those in ``only``; ``plain``: as in the model's own code, with random numbers
        without seeds."""

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters, buffers and constants that stage ``s`` reads."""

    def doubtful(self, results: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The values between stages on which none of the model's ``results`` depends, and those on which not every one
        is known to: they may have no gradient where one of these is the loss, or the loss is of them."""

    def ties(self) -> list[dict[int, str]]:
        """Parameters of several stages: by stage, the name in its module."""

    def spans(self) -> tuple[tuple[str, str], ...]:
        """The first and the last operator, or submodule, of each stage."""


#: Prefix of the names of the model's results without a loss.
RESULT = "result."


@dataclass
class Data:
    """The tensors of the current batch, by micro-batch and name; ``first``: the number of the first one, where other
    copies of the plan have earlier ones."""

    micro_batches: Sequence[Mapping[str, Tensor]] = ()
    first: int = 0

    def of(self, step: int, micro_batch: int) -> Mapping[str, Tensor]:
        """The tensors of one micro-batch."""
        return self.micro_batches[micro_batch - self.first]


@dataclass(frozen=True)
class Goal:
    """The training objective: ``loss`` of the model's result and a target, with the structure ``target``; without a
    loss, the model's own. Random operators draw from ``seed``."""

    loss: Callable[..., Loss] | None
    target: TreeSpec | None
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves of the target."""
        return tuple(f"{TARGET}{i}" for i in range(0 if self.target is None else self.target.num_leaves))


def training_of(cut: ModelDivision, only: Sequence[int], goal: Goal, data: Data, evaluating: bool = False) -> Training:
    """The stages in ``only`` of ``cut``, whose loss is a value of the last one."""
    found, last = cut.stages(only, plain=evaluating), cut.count - 1
    modules: dict[int, nn.Module] = {s: evaluated(module) if evaluating else module
                                     for s, module in found.modules.items()}
    prefix = dict.fromkeys(range(cut.count), "")
    prefix[last] = "stage."
    if last in modules:
        modules[last] = LossStage(modules[last], cut.captured.out_spec, found.results, goal.loss, goal.target)
    ports = dict(found.ports)
    ports[last] = Ports((*ports[last].takes, *goal.names), (LOSS,))
    ties = [{s: prefix[s] + name for s, name in tie.items()} for tie in cut.ties()]
    lost, doubtful = cut.doubtful([own_loss(found.results, cut.captured.out_spec)] if goal.loss is None else [
        leaf for leaf in found.results if isinstance(leaf, str)])
    # A stage that gives nothing else has a backward in the plan.
    lost = frozenset(value for _, gives in found.ports.values() for value in {*gives} & lost
                     if {*gives} - found.untrained - lost)
    return Training(modules, found.boundaries, data.of, ports=ports, losses=(LOSS,), ties=() if evaluating else ties,
                    seed=goal.seed, untrained=found.untrained | lost, doubtful=doubtful)


def evaluation_of(cut: ModelDivision, only: Sequence[int], data: Data) -> tuple[Training, Callable[[], list[Any]]]:
    """The stages in ``only`` of ``cut`` in evaluation, and a function that returns the results of all micro-batches of
    the last batch: none on a rank without the last stage."""
    found, last = cut.stages(only, plain=True), cut.count - 1
    gathered = _Results(found.results, cut.captured.out_spec)
    modules: dict[int, nn.Module] = {s: evaluated(module) for s, module in found.modules.items()}
    ports = dict(found.ports)
    ports[last] = Ports(ports[last].takes, tuple(RESULT + name for name in ports[last].gives))
    return (Training(modules, found.boundaries, data.of, ports=ports, losses=(), collect=gathered.collect),
            gathered.take)


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


#: Arguments that say whether a layer trains, by name, and their values in evaluation.
FLAGS: dict[str, float | bool] = {"train": False, "training": False, "dropout_p": 0.0, "use_input_stats": False}


def evaluated(stage: nn.Module) -> nn.Module:
    """``stage``, changed in place: a graph as described, any other module by ``eval()``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where a graph would still write into a buffer."""
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
    """Remove the batch counter, which is not read; refuse any other write into persistent memory."""
    target = node.args[0]
    if not isinstance(target, Node) or target.op != "get_attr":
        return
    value = attribute_of(stage, target.target)
    if isinstance(value, Tensor) and not value.dim() and not node.users:
        node.graph.erase_node(node)
        return
    raise CaptureError(f"the operator {node.name} writes into {target.target!r} in evaluation too: evaluate the plain "
                       "model, with the pipeline's state dict")
