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

#: The name of the step count in a state.
_COUNT = "step"


@dataclass(frozen=True)
class LocalPiece:
    """A rank's piece of a tensor: ``span``, the first and past-the-last elements by dimension; ``value``: its term of
    how many; ``data``."""

    span: tuple[tuple[int, int], ...]
    value: tuple[int, int]
    data: torch.Tensor


class PlanOnRank:
    """A preserved plan, ready to run on this rank: device d of the plan is rank d of the default process group.

    ``device``: where this rank computes; with ``cuda``, the process group must be NCCL. ``timeout``: seconds before a
    rank gives up on a communication, by default that of the process group. To be created, and run, by all ranks
    together. Raises ``ValueError`` for a plan with more devices than there are ranks, for operators without a torch
    kernel here, and for a device from which the process group cannot send.

    Training consists of :meth:`load`, then :meth:`step` for each batch; parameters, buffers and an optimizer's states
    stay in pieces where they are read, and :meth:`state_dict` assembles them.
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
        """Run the plan on inputs, parameters and states, given whole by name; returns this rank's pieces of each output
        and, for a sum, of its terms. A rank without any has no entry. Raises ``ValueError`` for missing values or wrong
        shapes, before anything is sent, and :class:`~weft.runtime.communication.failures.RankError` if another rank
        fails to take part."""
        self.whole.require_given(given)
        return self._pieces(self.executor.run(given))

    # -- training ------------------------------------------------------------------------------------------------------

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's pieces of parameters, buffers and states, given whole by name. Optimizer states that are not
        given start as zeros, as does the number of steps (``step``). Raises ``ValueError`` for missing values or wrong
        shapes."""
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
        """One training step on inputs, given whole: returns the pieces of the outputs, as :meth:`run`; the tensors that
        the plan carries are kept for the next step.

        ``step`` (counted from 1), ``seed`` (the same number) and ones for gradients of scalar losses are filled in if
        not given. Raises ``ValueError`` before :meth:`load`, and as :meth:`run`.
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
        """Parameters, buffers and states, whole, on the CPU, by the model's names, on every rank; with the number of
        steps (``step``) if an operator counts them or is seeded by them. To be called by all ranks together."""
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
        """Whether the step count is read, by an optimizer or as a seed, and no parameter has its name."""
        tensors = self.whole.given
        read = [name for name in (_COUNT, "seed") if name in tensors]
        return bool(read) and all(tensors[name].source == "input" and tensors[name].shape == () for name in read)

    def _pieces(self, values: Mapping[str, torch.Tensor]) -> dict[str, tuple[LocalPiece, ...]]:
        return {name: tuple(LocalPiece(span, value, values[key]) for key, span, value in self.program.made[name])
                for name in self.wanted if name in self.program.made}
