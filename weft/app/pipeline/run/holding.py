"""The arguments that a pipeline reads on this rank, and the parameters that it trains there, by the model's names."""

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
#: Attributes of a module that a script may expect, and their replacement.
INSTEAD = {"train": _MODES, "eval": _MODES, "training": _MODES, "module": _PLAIN, "modules": _PLAIN, "buffers": _PLAIN,
           "forward": "step and eval_step run it", "backward": "step runs it",
           "no_sync": "gradients of further steps add up, summed once by pipe.accumulate(batches)"}


class Holding:
    """The part of a :class:`~weft.app.pipeline.run.pipe.PipelineEngine` about inputs and parameters of a rank."""

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
        """The factor on losses before the backward, if anything is computed in fp16. The update of a batch with a
        gradient that is not finite is skipped, as by ``GradScaler``: parameters then have no gradients."""
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
        """Whether this rank reads the model's argument ``name``, or ``"target"``; others may be omitted here. Raises
        :class:`~weft.runtime.captured.inputs.batch.BatchError` for an unknown name."""
        return self.feeding.needs(name)

    @property
    def takes_data(self) -> bool:
        """Whether this rank reads any part of a batch; if not, call :meth:`step` without one."""
        return self.rank in self.data_ranks

    @property
    def data_ranks(self) -> tuple[int, ...]:
        """The ranks that read a part of a batch, and so need a data loader; all must get the same batches."""
        return tuple(sorted({rank for ranks in self.feeding.arguments.values() for rank in ranks}))

    @property
    def data_group(self) -> ProcessGroup | None:
        """The process group of this rank's data-parallel copies, over which torch's ``ZeroRedundancyOptimizer``
        (ZeRO-1) shards an optimizer's states; ``None`` if there is one copy. ::

            ZeroRedundancyOptimizer(pipe.parameters(), torch.optim.AdamW, process_group=pipe.data_group, lr=1e-3)

        (It does not support ``tensor_parallel``.)
        """
        return self.session.counterparts() if self.session.replicas > 1 else None

    # -- what is trained -----------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained parameters of this rank's stages, each once: the model's own objects; with a lower ``dtype``,
        their master weights in fp32; with ``fully_shard``, this copy's shards. If all are frozen, one empty parameter,
        as torch's optimizers refuse an empty list. ``torch.nn.utils.clip_grad_norm_``, called on all ranks, clips by
        the norm over all ranks, as ``clip_norm`` does in each step; a norm computed by hand is that of this rank."""
        yield from self._own.values() or (self._nothing,)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As :meth:`parameters`, with the model's names."""
        yield from self._own.items()

    def zero_grad(self) -> None:
        """Drop the gradients of this rank's parameters, as the optimizer's ``zero_grad`` does."""
        for parameter in self._own.values():
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of this rank's parameters that have one, by the model's names."""
        return {name: parameter.grad for name, parameter in self._own.items() if parameter.grad is not None}

    def state_dict(self, whole: bool = True) -> dict[str, Tensor]:
        """The current parameters and buffers of the model by its own names, on every rank; the plain module loads it.
        With ``whole=False``: those of this rank's stages only."""
        return self._guarded("state_dict", lambda: self._state.gather(whole))

    def load_state_dict(self, state: State, strict: bool = True) -> None:
        """Load the model's parameters and buffers from ``state``: a state dict, a ``.pt`` or ``.safetensors`` file, or
        a folder of these (:func:`~weft.runtime.checkpoint.weights.weights_of`). Each rank reads only its own part. All
        tensors of the model must be in ``state``; with ``strict``, other tensors in it are refused."""
        self._guarded("load_state_dict", lambda: self._state.load(state, strict))
