"""One rank's run of a plan written by hand, within the process group that the caller has opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.app.plans.lowering import lower
from weft.models.transform.plan import Preserved

if TYPE_CHECKING:
    import torch

__all__ = ["LocalPiece", "PlanOnRank"]


@dataclass(frozen=True)
class LocalPiece:
    """What a rank has of a tensor: ``span``, its first elements and those after the last by dimension; ``value``: which
    of how many terms it is; ``data``."""

    span: tuple[tuple[int, int], ...]
    value: tuple[int, int]
    data: torch.Tensor


class PlanOnRank:
    """A preserved plan, ready to run on this rank: device d of the plan is rank d of the default process group.

    To be made, and run, by all ranks together. Raises ``ValueError`` for a plan of more devices than there are ranks,
    and for operators that torch has no kernel for here.
    """

    def __init__(self, done: Preserved, device: torch.device | str = "cpu") -> None:
        from torch import distributed as dist

        from weft.runtime.by_hand.executor import ShardedExecutor

        self.done = done
        self.program = lower(done, dist.get_world_size())[dist.get_rank()]
        self.executor = ShardedExecutor(self.program, device)

    def run(self, given: Mapping[str, torch.Tensor]) -> dict[str, tuple[LocalPiece, ...]]:
        """Run the plan on inputs, parameters and states, given whole by name; the pieces that this rank has of each
        output and, of a sum, of its terms. A rank without any has no entry. Raises ``ValueError`` for what is missing
        or of another shape, before anything is sent."""
        program = self.done.planned.program
        for name, tensor in program.tensors.items():
            if tensor.source != "operator" and (name not in given or tuple(given[name].shape) != tensor.shape):
                what = "is missing" if name not in given else f"is of shape {tuple(given[name].shape)}"
                raise ValueError(f"the {tensor.source} {name!r} of shape {tensor.shape} {what}")
        values = self.executor.run(given)
        wanted = dict.fromkeys(term for output in program.outputs for term in program.terms(output))
        return {name: tuple(LocalPiece(span, value, values[key]) for key, span, value in self.program.made[name])
                for name in wanted if name in self.program.made}
