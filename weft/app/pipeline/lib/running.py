"""Modes in which the modules of stages run: autocast and ``torch.compile``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.loss import ResultStage
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.ranks.session import Session

Compile = bool | str | Mapping[str, Any]


def under_autocast(training: Training, dtype: torch.dtype | None, device: torch.device) -> Training:
    """``training`` with stages and loss under autocast to ``dtype``; unchanged for ``None``."""
    if dtype is not None:
        for module in training.stages.values():
            module.forward = torch.autocast(device.type, dtype)(module.forward)
    return training


def compiled(training: Training, how: Compile, session: Session, examples: Mapping[str, Tensor]) -> None:
    """Compile the stages of ``training`` (not the loss), and run a forward and backward of each on random tensors.

    ``examples``: a tensor with the shape and dtype of each input of the batch. ``how``: a mode of ``torch.compile``,
    its arguments, or ``True``; ``False`` only runs the stages.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a stage that cannot be compiled.
    """
    assert isinstance(training.boundaries, Mapping) and training.ports is not None
    arguments = {"mode": how} if isinstance(how, str) else dict(how) if isinstance(how, Mapping) else {}
    for stage, module in training.stages.items():
        session.watch.doing(f"compiling stage {stage}")
        inner = module.stage if isinstance(module, ResultStage) else module
        xs = [_like(training.boundaries[name] if name in training.boundaries else examples[name], session.device,
                    name in training.boundaries) for name in training.ports[stage].takes
              if name in training.boundaries or name in examples]
        buffers = {buffer: buffer.clone() for buffer in inner.buffers()}
        try:
            if how:
                inner.compile(**arguments)
            with torch.random.fork_rng():
                ys = inner(*xs)
                ends = [y for y in ((ys,) if isinstance(ys, Tensor) else ys) if y.requires_grad]
                torch.autograd.backward(ends, [torch.randn_like(y) for y in ends])
        except CaptureError:
            raise
        except Exception as error:  # of many types: of dynamo, of inductor, of a missing compiler
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            hint = "; install what torch.compile needs (on a CPU a C++ compiler), or leave compile out" if how else ""
            raise CaptureError(f"stage {stage} cannot be {'compiled' if how else 'run'}: {lines[0].rstrip('.'):.300}"
                               f"{hint}") from error
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
        for parameter in inner.parameters():
            parameter.grad = None


def _like(example: Boundary | Tensor, device: torch.device, has_gradient: bool) -> Tensor:
    """A random tensor of the example's shape and dtype, as input of a stage."""
    shape = example.known if isinstance(example, Boundary) else tuple(example.shape)
    if not example.dtype.is_floating_point:
        return torch.zeros(shape, dtype=example.dtype, device=device)
    found = torch.randn(shape, dtype=example.dtype, device=device)
    return found.requires_grad_(has_gradient)


def require_compile(how: object) -> None:
    """Refuse values that ``torch.compile`` does not accept."""
    if not isinstance(how, bool | str | Mapping):
        raise CaptureError(f"compile is {how!r:.60}, it must be True, a mode of torch.compile such as "
                           "'reduce-overhead', or its arguments as a mapping")
