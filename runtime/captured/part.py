"""What one rank trains of a captured model that has been cut: the executor's
:class:`~weft.runtime.interface.training.Training`, with the loss behind the last stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_unflatten

from weft.runtime.captured.division import Division
from weft.runtime.captured.evaluation import evaluated
from weft.runtime.captured.loss import LOSS, TARGET, LossStage
from weft.runtime.interface.training import Loss, Ports, Training

__all__ = ["RESULT", "Data", "Goal", "evaluation_of", "training_of"]

#: How the results of the model are named where no loss is taken of them: this, and the value's own name.
RESULT = "result."


@dataclass
class Data:
    """The tensors of the batch that is run now, by micro-batch and name; ``first``: what number the first one is, where
    other copies of the plan have those before."""

    micro_batches: Sequence[Mapping[str, Tensor]] = ()
    first: int = 0

    def of(self, step: int, micro_batch: int) -> Mapping[str, Tensor]:
        """Those of one micro-batch."""
        return self.micro_batches[micro_batch - self.first]


@dataclass(frozen=True)
class Goal:
    """What is trained on: ``loss`` of the model's result and a target, whose leaves ``target`` puts together; without a
    loss, what the model gives as its own. Random operators draw from ``seed``."""

    loss: Callable[..., Loss] | None
    target: TreeSpec | None
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves of the target."""
        return tuple(f"{TARGET}{i}" for i in range(0 if self.target is None else self.target.num_leaves))


def training_of(cut: Division, only: Sequence[int], goal: Goal, data: Data, evaluating: bool = False) -> Training:
    """The stages in ``only`` of ``cut``, whose loss is a value that the last one gives."""
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
    return Training(modules, found.boundaries, data.of, ports=ports, losses=(LOSS,), ties=() if evaluating else ties,
                    seed=goal.seed, untrained=found.untrained)


def evaluation_of(cut: Division, only: Sequence[int], data: Data) -> tuple[Training, Callable[[], list[Any]]]:
    """The stages in ``only`` of ``cut`` in evaluation, and what gives the results of all micro-batches of the last
    batch that was run: none on a rank without the last stage."""
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
