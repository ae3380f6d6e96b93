"""How the modules of stages run, beside what they compute: under autocast, compiled."""

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
    """``training`` whose stages compute under autocast to ``dtype``, loss and all; ``None``: as they are."""
    if dtype is not None:
        for module in training.stages.values():
            module.forward = torch.autocast(device.type, dtype)(module.forward)
    return training


def compiled(training: Training, how: Compile, session: Session, looks: Mapping[str, Tensor]) -> None:
    """Compile the stages of ``training`` (not the loss), each with a first forward and backward on random numbers:
    ``looks`` has a tensor like each of the batch's. ``how``: a mode of ``torch.compile``, its arguments, or ``True``;
    ``False``: parts of it are compiled at its first call, or are only tried.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a stage that cannot be compiled.
    """
    assert isinstance(training.boundaries, Mapping) and training.ports is not None
    arguments = {"mode": how} if isinstance(how, str) else dict(how) if isinstance(how, Mapping) else {}
    for stage, module in training.stages.items():
        session.watch.doing(f"compiling stage {stage}")
        inner = module.stage if isinstance(module, ResultStage) else module
        xs = [_like(training.boundaries[name] if name in training.boundaries else looks[name], session.device,
                    name in training.boundaries) for name in training.ports[stage].takes
              if name in training.boundaries or name in looks]
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
        except Exception as error:  # of many types: dynamo's, inductor's, a compiler's that is not there
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            hint = ("; install what torch.compile needs (on a CPU a C++ compiler), or leave compile out" if how else "")
            raise CaptureError(f"stage {stage} cannot be {'compiled' if how else 'run'}: {lines[0].rstrip('.'):.300}"
                               f"{hint}") from error
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
        for parameter in inner.parameters():
            parameter.grad = None


def _like(looks: Boundary | Tensor, device: torch.device, has_gradient: bool) -> Tensor:
    """Numbers that look so, as they come to a stage."""
    shape = looks.known if isinstance(looks, Boundary) else tuple(looks.shape)
    if not looks.dtype.is_floating_point:
        return torch.zeros(shape, dtype=looks.dtype, device=device)
    found = torch.randn(shape, dtype=looks.dtype, device=device)
    return found.requires_grad_(has_gradient)


def require_compile(how: object) -> None:
    """Refuse what ``torch.compile`` cannot be called with."""
    if not isinstance(how, bool | str | Mapping):
        raise CaptureError(f"compile is {how!r:.60}, it must be True, a mode of torch.compile such as "
                           "'reduce-overhead', or its arguments as a mapping")
