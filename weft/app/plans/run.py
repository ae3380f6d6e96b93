"""One rank's run of a plan written by hand, within the process group that the caller has opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.app.plans.lowering import lower
from weft.models.transform.plan import Preserved

if TYPE_CHECKING:
    import torch

#: The number of steps in a state.
_COUNT = "step"


@dataclass(frozen=True)
class LocalPiece:
    """What a rank has of a tensor: ``span``, its first elements and those after the last by dimension; ``value``: which
    of how many terms it is; ``data``."""

    span: tuple[tuple[int, int], ...]
    value: tuple[int, int]
    data: torch.Tensor


class PlanOnRank:
    """A preserved plan, ready to run on this rank: device d of the plan is rank d of the default process group.

    ``device``: where this rank computes; with ``cuda``, the process group must be of NCCL. ``timeout``: seconds that a
    communication may take before the rank gives up, by default those of the process group. To be made, and run, by all
    ranks together. Raises ``ValueError`` for a plan of more devices than there are ranks, for operators that torch has
    no kernel for here, and for a device that the process group cannot send from.

    A training is :meth:`load`, then :meth:`step` for each batch; parameters, buffers and an optimizer's states stay in
    pieces where they are read, and :meth:`state_dict` puts them together.
    """

    def __init__(self, done: Preserved, device: torch.device | str = "cpu", *, timeout: float | None = None) -> None:
        from torch import device as torch_device
        from torch import distributed as dist

        from weft.runtime.by_hand.executor import ShardedExecutor
        from weft.runtime.by_hand.kernels import runs

        if not isinstance(done, Preserved):
            raise ValueError(f"a preserved plan is run, not a {type(done).__name__}: write PlanOnRank(plan.preserve())")
        self.whole = done.planned.program
        unknown = {one.kind: one.name for one in self.whole.operations if not runs(one.kind, one.attributes)}
        for kind, name in unknown.items():
            raise ValueError(f"operator {name!r}: torch has no kernel {kind!r} here; write it with operators that have "
                             "one")
        where = torch_device(device)
        if where.type == "cuda" and dist.get_backend() == "gloo":
            raise ValueError(f"the device is {where}, but the process group is of gloo: open one of nccl")
        self.done = done
        self.program = lower(done, dist.get_world_size())[dist.get_rank()]
        self.wanted = dict.fromkeys(term for output in self.whole.outputs for term in self.whole.terms(output))
        kept = {key for name in self.wanted for key, _, _ in self.program.made.get(name, ())}
        kept |= {key for key, _ in self.program.carried.values()}
        self.executor = ShardedExecutor(self.program, device, kept=kept, timeout=timeout)
        self.held: dict[str, torch.Tensor] = {}
        self.steps = 0

    def run(self, given: Mapping[str, torch.Tensor]) -> dict[str, tuple[LocalPiece, ...]]:
        """Run the plan on inputs, parameters and states, given whole by name; the pieces that this rank has of each
        output and, of a sum, of its terms. A rank without any has no entry. Raises ``ValueError`` for what is missing
        or of another shape, before anything is sent, and :class:`~weft.runtime.communication.others.RankError` where
        another rank does not do its part."""
        self.whole.require_given(given)
        return self._pieces(self.executor.run(given))

    # -- training ------------------------------------------------------------------------------------------------------

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's pieces of parameters, buffers and states, given whole by name. States of an optimizer that
        are not given begin as zeros, and so does the number of steps (``step``). Raises ``ValueError`` for what is
        missing or of another shape."""
        import torch

        tensors = self.whole.given
        like = next((one for one in state.values() if one.is_floating_point()), torch.zeros(()))
        whole = {name: torch.zeros(tensor.shape, dtype=like.dtype) for name, tensor in tensors.items()
                 if tensor.source == "state"} | dict(state)
        self.whole.require_given(whole, {name for name, tensor in tensors.items() if tensor.source != "input"})
        self.held = {}
        for key, (name, span) in self.program.given.items():
            if tensors[name].source != "input":
                cut = tuple(slice(low, high) for low, high in span)
                self.held[key] = whole[name][cut].detach().to(self.executor.device, copy=True)
        self.steps = int(state[_COUNT]) if _COUNT in state and self._counts() else 0

    def step(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, tuple[LocalPiece, ...]]:
        """One step of training on inputs, given whole: the pieces of the outputs, as of :meth:`run`; what the plan
        carries is this rank's in the next step.

        ``step`` (counted from 1), ``seed`` (the same number) and ones for gradients of losses, which are one number,
        are filled in where they are not given. Raises ``ValueError`` before :meth:`load`, and as :meth:`run` does.
        """
        import torch

        tensors = {name: tensor for name, tensor in self.whole.given.items() if tensor.source == "input"}
        if not self.held and any(tensor.source != "input" for tensor in self.whole.given.values()):
            raise ValueError("there are no parameters yet: call load with a state dict first")
        count = self.steps + 1
        whole = dict(inputs)
        dtype = next((one.dtype for one in self.held.values() if one.is_floating_point()), torch.get_default_dtype())
        for name, tensor in tensors.items():
            if name in ("step", "seed") and tensor.shape == ():
                whole.setdefault(name, torch.tensor(count))
            elif name.endswith(") given") and math.prod(tensor.shape) == 1:
                whole.setdefault(name, torch.ones(tensor.shape, dtype=dtype))
        self.whole.require_given(whole, tensors)
        values = self.executor.run(whole, self.held)
        for key, (source, span) in self.program.carried.items():
            self.held[key] = values[source][tuple(slice(low, high) for low, high in span)]
        self.steps = count
        return self._pieces(values)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and states, whole, on the CPU, by the names of the model, and where something counts
        steps or draws from their number how many there were (``step``); on every rank. To be called by all ranks
        together."""
        import torch
        from torch import distributed as dist

        mine = [(*self.program.given[key], tensor.cpu()) for key, tensor in self.held.items()]
        every: list[list[tuple[str, tuple[tuple[int, int], ...], torch.Tensor]]] = [[] for _ in range(
            dist.get_world_size())]
        self.executor.awaited("gathering the state", range(dist.get_world_size()),
                              lambda: dist.all_gather_object(every, mine))
        tensors = self.whole.given
        found: dict[str, torch.Tensor] = {}
        for name, span, piece in (entry for entries in every for entry in entries):
            whole = found.setdefault(name, torch.zeros(tensors[name].shape, dtype=piece.dtype))
            whole[tuple(slice(low, high) for low, high in span)] = piece
        if self._counts():
            found[_COUNT] = torch.tensor(self.steps)
        return found

    # -- within --------------------------------------------------------------------------------------------------------

    def _counts(self) -> bool:
        """Whether the number of the step is read, by an optimizer or to draw from, and no parameter has its name."""
        tensors = self.whole.given
        read = [name for name in (_COUNT, "seed") if name in tensors]
        return bool(read) and all(tensors[name].source == "input" and tensors[name].shape == () for name in read)

    def _pieces(self, values: Mapping[str, torch.Tensor]) -> dict[str, tuple[LocalPiece, ...]]:
        return {name: tuple(LocalPiece(span, value, values[key]) for key, span, value in self.program.made[name])
                for name in self.wanted if name in self.program.made}
