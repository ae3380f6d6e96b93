"""What a running pipeline reads of a batch on this rank, and what it trains there, in the model's own names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, TypeVar

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from weft.app.pipeline.run.feeding import Feeding
from weft.app.pipeline.run.state import PipelineState
from weft.runtime.checkpoint.weights import State
from weft.runtime.ranks.session import Session
from weft.runtime.replay.stepping import Stepping

Result = TypeVar("Result")
_MODES, _PLAIN = "step trains and eval_step evaluates, there is no mode to set", "the model is pipe.model"
#: What a script may look for on a module, and what there is here.
INSTEAD = {"train": _MODES, "eval": _MODES, "training": _MODES, "module": _PLAIN, "modules": _PLAIN, "buffers": _PLAIN,
           "forward": "step and eval_step run it", "backward": "step runs it",
           "no_sync": "gradients of further steps add up, summed once by pipe.accumulate(batches)"}


class Holding:
    """The part of a :class:`~weft.app.pipeline.run.pipe.PipelineEngine` that is about what a rank reads and trains."""

    rank: int
    session: Session
    feeding: Feeding
    _state: PipelineState
    _stepping: Stepping
    _own: Mapping[str, nn.Parameter]
    _nothing: nn.Parameter

    def _guarded(self, name: str, run: Callable[[], Result]) -> Result:
        raise NotImplementedError

    @property
    def norm(self) -> float | None:
        """The norm of the whole model's gradient in the last step, before ``clip_norm`` clipped; ``None`` without."""
        return self._stepping.norm

    @property
    def loss_scale(self) -> float | None:
        """What losses are multiplied with where something is computed in fp16, before they are differentiated. A batch
        with a gradient that is not finite is left out, as under ``GradScaler``: parameters then have none."""
        scaling = self._stepping.training.scaling
        return None if scaling is None else scaling.value

    def __getattr__(self, name: str) -> NoReturn:
        why = f": {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"a pipeline has no {name}{why}", name=name, obj=self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a running pipeline can be neither copied nor pickled: take pipe.state_dict(), or pipe.model, "
                        "in which the parameters of this rank's stages are trained")

    # -- what is read --------------------------------------------------------------------------------------------------

    def needs(self, name: str) -> bool:
        """Whether this rank reads the argument of the model called ``name``, or ``"target"``: others need not be handed
        over here. Raises :class:`~weft.runtime.captured.inputs.batch.BatchError` for a name that there is not."""
        return self.feeding.needs(name)

    @property
    def takes_data(self) -> bool:
        """Whether this rank reads anything of a batch: if not, :meth:`step` may be called without one."""
        return self.rank in self.data_ranks

    @property
    def data_ranks(self) -> tuple[int, ...]:
        """The ranks that read something of a batch, so that a loader is needed there; all must be given the same."""
        return tuple(sorted({rank for ranks in self.feeding.arguments.values() for rank in ranks}))

    @property
    def data_group(self) -> ProcessGroup | None:
        """The process group of the copies of this rank, among which torch's ``ZeroRedundancyOptimizer`` (ZeRO-1)
        divides an optimizer's states; ``None`` where there is one copy. ::

            ZeroRedundancyOptimizer(pipe.parameters(), torch.optim.AdamW, process_group=pipe.data_group, lr=1e-3)

        (It cannot hold what ``tensor_parallel`` has divided.)
        """
        return self.session.counterparts() if self.session.replicas > 1 else None

    # -- what is trained -----------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained parameters of this rank's stages, each once: the model's own objects. Where all are frozen, there
        is one without numbers, since torch's optimizers refuse to have none. With ``dtype`` in a lower
        precision they are copies in fp32, with ``fully_shard`` this copy's shares of them.
        ``torch.nn.utils.clip_grad_norm_``, called on all ranks, clips them by the norm over all ranks, as ``clip_norm``
        does in each step; a norm taken by hand is that of this rank's part."""
        yield from self._own.values() or (self._nothing,)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The same with the names that they have in the model."""
        yield from self._own.items()

    def zero_grad(self) -> None:
        """Drop the gradients of this rank's parameters, as the optimizer's ``zero_grad`` does."""
        for parameter in self._own.values():
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of this rank's parameters that have one, by the model's own names."""
        return {name: parameter.grad for name, parameter in self._own.items() if parameter.grad is not None}

    def state_dict(self, whole: bool = True) -> dict[str, Tensor]:
        """All parameters and buffers of the model as they are now, on every rank, in the model's own names: it loads
        into the plain module. Not ``whole``: those of this rank's stages only."""
        return self._guarded("state_dict", lambda: self._state.gather(whole))

    def load_state_dict(self, state: State, strict: bool = True) -> None:
        """Take the model's parameters and buffers from ``state``: a state dict, a ``.pt`` or ``.safetensors`` file, or
        a folder of such (:func:`~weft.runtime.checkpoint.weights.weights_of`). Each rank reads its own part only. With
        ``strict``, tensors that the model does not have are refused; those that it has must be there."""
        self._guarded("load_state_dict", lambda: self._state.load(state, strict))
