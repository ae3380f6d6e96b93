"""Mixed precision: modules in bf16 (or fp16), with master weights and gradients in fp32.

Updates of about 1e-4 of a weight are below bf16's relative resolution of 2^-8, so they are applied to an fp32 copy
(Micikevicius et al., "Mixed precision training", ICLR 2018). The gradients of each micro-batch have the module's
precision and are accumulated in fp32: a sum in bf16 would lose terms smaller than 1/256 of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class MasterWeights:
    """A copy of ``parameters`` in ``dtype``, which an optimizer updates and which accumulates their gradients.

    Parameters that need no gradient are left out; one that already has ``dtype`` is its own master. ::

        masters = MasterWeights(module.to(torch.bfloat16).parameters())
        Training(..., masters=masters, optimizer=torch.optim.AdamW(masters.parameters()))

    For unrounded masters pass the weights in full precision as ``full``: the same parameters, in the same order, before
    rounding. Without it the masters begin with the rounded weights.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], full: Iterable[Tensor] | None = None,
                 dtype: torch.dtype = torch.float32) -> None:
        given = list(parameters)
        values: list[Tensor] = list(given) if full is None else list(full)
        self._masters: dict[Tensor, nn.Parameter] = {}
        for parameter, value in zip(given, values, strict=True):
            if parameter.requires_grad and parameter not in self._masters:
                own = parameter.dtype == dtype
                self._masters[parameter] = parameter if own else nn.Parameter(value.detach().to(dtype, copy=True))
        self._hooks = [parameter.register_post_accumulate_grad_hook(_folding(master))  # type: ignore[no-untyped-call]
                       for parameter, master in self._masters.items() if master is not parameter]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer updates."""
        return list(self._masters.values())

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master of ``parameter``, which has its gradient; itself if it has none."""
        return self._masters.get(parameter, parameter)

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add ``gradient`` of ``parameter`` to its master's."""
        _add(self._masters[parameter], gradient)

    def write_back(self) -> None:
        """Round the masters into the parameters, after the optimizer's step."""
        with torch.no_grad():
            for parameter, master in self._masters.items():
                if master is not parameter:
                    parameter.copy_(master)

    def close(self) -> None:
        """Remove the hooks: the parameters' gradients are no longer touched."""
        for hook in self._hooks:
            hook.remove()

    def move(self, device: torch.device) -> None:
        """Move the masters to ``device``."""
        for parameter, master in self._masters.items():
            if master is not parameter:
                master.data = master.data.to(device)


def _add(master: Tensor, gradient: Tensor) -> None:
    if master.grad is None:
        master.grad = gradient.to(master.dtype, copy=True)
    else:
        master.grad += gradient


def _folding(master: Tensor) -> Callable[[Tensor], None]:
    """A hook that moves a parameter's gradient to ``master``. It must not refer to the parameter: autograd hides the
    hook from the garbage collector, so the cycle of the two would keep the weights in memory for ever."""
    def fold(parameter: Tensor) -> None:
        if parameter.grad is not None:  # it is None where a split backward has deferred it
            _add(master, parameter.grad)
            parameter.grad = None

    return fold
