"""AdamA: gradients are folded into Adam's moments as they come, so that no whole gradient is ever stored.

Zhang et al., "Adam Accumulation to Reduce Memory Footprints of both Activations and Gradients for Large-scale DNN
Training" (2023). A batch of N micro-batches has the gradients g_1 .. g_N of its mean loss, one for each micro-batch's
share in it (the executor's losses are divided by N already). Gradient accumulation holds their sum g and gives Adam

    m <- b1 m + (1 - b1) g                 v <- b2 v + (1 - b2) g^2

AdamA decays the moments once a batch and then adds each g_i as soon as it is there, after which it is freed:

    m <- b1 m,   v <- b2 v                 m += (1 - b1) g_i,   v += (1 - b2) g_i^2        for i = 1 .. N

m is the same up to rounding; v has the sum of squares in place of the square of the sum. For N = 1 both are Adam's.
For N > 1 v is the smaller one where micro-batches agree (N times smaller if all g_i are equal) and as large on average
where they differ only by noise, so steps are up to sqrt(N) times as long: a gradient's sign still is a step's.

*Data parallel.* M replicas with N micro-batches each must end with what one has after M N. Let g_rn be the gradients of
the mean over all M N, and let every replica begin from the same m, v with the decays b1 / M and b2 / M:

    m_r = b1/M m + (1 - b1) sum_n g_rn     so    sum_r m_r = b1 m + (1 - b1) sum_rn g_rn
    v_r = b2/M v + (1 - b2) sum_n g_rn^2   so    sum_r v_r = b2 v + (1 - b2) sum_rn g_rn^2

which is one replica's rule over M N micro-batches: sums of the moments over the replicas, once a batch, are exact (in
floating point, up to the order of adding), however large N is. The paper's rule is the same in other units: there each
replica has the gradients of its own mean, M times ours, so it averages m, and v is decayed by M b2 beforehand and its
sum divided by M^2.

Squares do not add up, so a gradient must be whole when it is folded: :mod:`weft.runtime.train.accumulation` ensures
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor


class AdamA(torch.optim.Optimizer):
    """Adam whose moments accumulate the gradients of micro-batches, one after another.

    In :class:`~weft.runtime.interface.training.Training` it replaces another optimizer, and the executor folds every
    gradient when it is complete. Elsewhere: :meth:`fold` every micro-batch's gradient, then :meth:`step`. With N = 1
    micro-batch a batch it is ``torch.optim.Adam``, or with ``weight_decay`` (which here is decoupled: one that is added
    to gradients would be squared with them) ``torch.optim.AdamW``.

    ``replicas``: the number of processes that fold parts of each batch; :meth:`reduce` then sums the moments over them,
    before :meth:`step`. Features that need the whole gradient of a batch are unavailable: clipping by its norm, and
    loss scales that adapt, which drop a batch after its gradients overflowed.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        for name, value, most in (("lr", lr, float("inf")), ("betas[0]", betas[0], 1.0), ("betas[1]", betas[1], 1.0),
                                  ("eps", eps, float("inf")), ("weight_decay", weight_decay, float("inf"))):
            if not 0 <= value < most:
                raise ValueError(f"{name} is {value}, it must be at least 0"
                                 + ("" if most == float("inf") else " and less than 1"))
        self.replicas = 1
        self._begun: dict[Tensor, None] = {}  # the parameters whose moments have been decayed for this batch
        self._place: dict[Tensor, int] = {}  # the number of each parameter's group
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """The attribute that ``torch.amp.GradScaler.step`` reads first."""
        raise ValueError("AdamA cannot be used with a gradient scaler that adapts: by the time an overflow is seen, "
                         "earlier micro-batches' gradients are in the moments and cannot be taken out again; use bf16, "
                         "which needs no scale, or torch.optim.Adam")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Update the parameters of another group too."""
        super().add_param_group(param_group)
        self._place.update(dict.fromkeys(self.param_groups[-1]["params"], len(self.param_groups) - 1))

    def holds(self, parameter: Tensor) -> bool:
        """Whether it updates ``parameter``."""
        return parameter in self._place

    @property
    def unfolded(self) -> bool:
        """Whether a parameter has a gradient that has not been folded: a step would leave it out."""
        return any(parameter.grad is not None and parameter not in self._begun for parameter in self._place)

    @torch.no_grad()
    def fold(self, parameter: Tensor, gradient: Tensor, *, whole: bool = False) -> None:
        """Add one micro-batch's complete ``gradient`` of ``parameter`` to its moments; it may be freed then.

        ``whole``: it is the gradient of the batch on all replicas, the same on each, and folded once.
        """
        state = self._begin(parameter, 1 if whole else self.replicas)
        first, second = self._group(parameter)["betas"]
        state["exp_avg"].add_(gradient, alpha=1 - first)
        state["exp_avg_sq"].addcmul_(gradient, gradient, value=1 - second)

    @torch.no_grad()
    def reduce(self, parameters: Iterable[Tensor], add_up: Callable[[list[Tensor]], None]) -> None:
        """Make the moments of ``parameters`` those of all replicas: ``add_up`` sums each of its tensors over them, in
        place. All replicas must call it together, with the same parameters, before :meth:`step`."""
        moments = []
        for parameter in parameters:
            state = self._begin(parameter, self.replicas)  # others may have had a gradient of it
            moments += [state["exp_avg"], state["exp_avg_sq"]]
        add_up(moments)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that had a gradient since the last step. Raises ``ValueError`` where one has a gradient
        that was never folded."""
        if closure is not None:
            raise ValueError("AdamA takes no closure: its gradients are folded before the step")
        if self.unfolded:
            raise ValueError("AdamA.step would leave out gradients that have not been folded: fold every micro-batch's "
                             "first, or give torch.optim.Adam")
        for parameter in self._begun:
            group, state = self._group(parameter), self.state[parameter]
            (first, second), rate, count = group["betas"], group["lr"], state["step"]
            if group["weight_decay"]:
                parameter.mul_(1 - rate * group["weight_decay"])
            size = (state["exp_avg_sq"] / (1 - second ** count)).sqrt_().add_(group["eps"])
            parameter.addcdiv_(state["exp_avg"], size, value=-rate / (1 - first ** count))
        self._begun.clear()

    def _begin(self, parameter: Tensor, replicas: int) -> dict[str, Any]:
        """The parameter's moments, decayed if this is its first gradient of the batch."""
        state: dict[str, Any] = self.state[parameter]
        if parameter not in self._begun:
            self._begun[parameter] = None
            if not state:
                state.update(step=0, exp_avg=torch.zeros_like(parameter, memory_format=torch.preserve_format),
                             exp_avg_sq=torch.zeros_like(parameter, memory_format=torch.preserve_format))
            state["step"] += 1
            for moment, beta in zip(("exp_avg", "exp_avg_sq"), self._group(parameter)["betas"], strict=True):
                state[moment].mul_(beta / replicas)
        return state

    def _group(self, parameter: Tensor) -> dict[str, Any]:
        return self.param_groups[self._place[parameter]]
