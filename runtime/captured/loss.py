"""The loss of the last stage: a function of the model's result and a target, or computed by the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.errors import raised_at
from weft.runtime.interface.counting import LossError, one_tensor
from weft.runtime.interface.training import Loss
from weft.runtime.train.sharding import is_divided, local_of

#: The name of the loss among values, and the prefix of the names of a target's leaves, before their number.
LOSS, TARGET = "loss", "target."
_IN_MODEL = "what reads it in the model's forward, and give it to the loss as a part of the result"


def loss_of(output: Any) -> Tensor:
    """The loss in a model's result: ``result["loss"]``, ``result.loss``, the first item of a tuple, or the result
    itself. Raises :class:`~weft.runtime.captured.captured.CaptureError` if that is not a scalar."""
    found = output
    if isinstance(output, Mapping) and "loss" in output:
        found = output["loss"]
    elif isinstance(getattr(output, "loss", None), Tensor):
        found = output.loss
    elif isinstance(output, Sequence) and output:
        found = output[0]
    require_scalar(found, f"the model gives {type(output).__name__}, in which")
    return found  # type: ignore[no-any-return]


def require_scalar(loss: object, whose: str) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless ``loss`` is a floating-point scalar;
    ``whose``: the beginning of the message."""
    if not isinstance(loss, Tensor):
        raise CaptureError(f"{whose} the loss is {type(loss).__name__}, it must be a tensor with one number: give "
                           "loss=FUNCTION(output, target), or labels among the model's arguments")
    if loss.numel() != 1 or not loss.is_floating_point():
        raise CaptureError(f"{whose} the loss has the shape {tuple(loss.shape)} and type {loss.dtype}, it must be one "
                           "floating-point number: take the mean over the micro-batch, or give (sum, count)")


def own_loss(results: Sequence[Any], spec: TreeSpec) -> str:
    """The name among ``results`` (leaves of a model's result with the structure ``spec``) that :func:`loss_of` selects;
    ``""`` if that depends on the values."""
    names = {leaf: torch.zeros(()) for leaf in results if isinstance(leaf, str)}
    try:
        found = loss_of(tree_unflatten([names[leaf] if isinstance(leaf, str) else leaf for leaf in results],
                                       spec))
    except CaptureError:  # reported when the loss is computed
        return ""
    return next((name for name, value in names.items() if value is found), "")


def learning(loss: object) -> nn.Module | None:
    """``loss`` if it is a module with trained parameters, which belong to the last stage; otherwise ``None``."""
    is_trained = isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters())
    return loss if is_trained else None  # type: ignore[return-value]


def require_own(model: nn.Module, loss: object) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` for a ``loss`` module that shares tensors with
    ``model``, or whose tensors' names, prefixed, clash with the model's."""
    own = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    for name, tensor in (*loss.named_parameters(), *loss.named_buffers()) if isinstance(loss, nn.Module) else ():
        if id(tensor) in own:
            raise CaptureError(f"the loss has the model's {own[id(tensor)]}: compute {_IN_MODEL}")
        if f"{LOSS}.{name}" in own.values():
            raise CaptureError(f"the model has {LOSS}.{name}, as {name} of the loss is called beside it: give the "
                               "model's another name")


class ResultStage(nn.Module):
    """A stage that outputs the model's result. ``stage`` computes its tensors; ``results`` are its leaves, names of
    tensors (``str``) and constants, and ``spec`` its structure."""

    def __init__(self, stage: nn.Module, spec: TreeSpec, results: Sequence[Any]) -> None:
        super().__init__()
        self.stage, self.spec, self.results = stage, spec, tuple(results)

    def output(self, *xs: Tensor) -> Any:
        """The model's result, in its own structure."""
        found = dict(zip(dict.fromkeys(leaf for leaf in self.results if isinstance(leaf, str)), self.stage(*xs),
                         strict=True))
        return tree_unflatten([found[leaf] if isinstance(leaf, str) else leaf for leaf in self.results], self.spec)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the model's result, in the order of its leaves."""
        return tuple(leaf for leaf in tree_leaves(self.output(*xs)) if isinstance(leaf, Tensor))


#: Errors that indicate a mistake in a loss function, not a limit of the machine.
MISTAKES = (AttributeError, TypeError, KeyError, IndexError, ValueError, NameError, AssertionError)


class LossStage(ResultStage):
    """The last stage in training. Its last ``targets`` arguments are the leaves of the target, whose structure is
    ``target_spec``. ``loss`` is called with result and target; ``None``: the model computes its loss itself."""

    def __init__(self, stage: nn.Module, spec: TreeSpec, results: Sequence[Any],
                 loss: Callable[..., Loss] | None, target_spec: TreeSpec | None = None) -> None:
        super().__init__(stage, spec, results)
        self.loss, self.target_spec, self._is_known = loss, target_spec, False
        self.targets = 0 if target_spec is None else target_spec.num_leaves

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """The mean loss of the micro-batch, or its sum and count in one tensor."""
        inputs, targets = xs[:len(xs) - self.targets], xs[len(xs) - self.targets:]
        output = self.output(*inputs)
        if self.loss is None:
            return (loss_of(output),)
        target = None if self.target_spec is None else tree_unflatten(targets, self.target_spec)
        name = getattr(self.loss, "__name__", type(self.loss).__name__)
        try:
            loss = one_tensor(given := self._known(output, self._loss(output, target)))
        except LossError as error:
            raise CaptureError(f"{name}: {error}") from None
        if isinstance(given, tuple):
            return (loss,)
        require_scalar(loss, f"{name}:")
        return (loss.reshape(()),)

    def _loss(self, output: Any, target: Any) -> Any:
        assert self.loss is not None
        loss: Any = self.loss
        whole = {name: local_of(parameter) for name, parameter in loss.named_parameters() if is_divided(parameter)
                 } if isinstance(loss, nn.Module) else {}
        try:
            return functional_call(loss, whole, (output, target)) if whole else loss(output, target)
        except MISTAKES as error:
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise CaptureError(f"loss cannot be called: {name} raised {raised_at(error)}: it is called with the "
                               "model's result and the target of one micro-batch") from error

    def _known(self, output: Any, given: Any) -> Any:
        """The loss ``given``. Its first call checks the autograd graph: between ``given`` and ``output``, only the
        loss's own parameters may be read, as gradients of others would be lost."""
        roots = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        if self._is_known or not roots:
            return given
        self._is_known, parts = True, [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        own = {id(tensor) for tensor in (*parts, *(self.loss.parameters() if isinstance(self.loss, nn.Module) else ()))}
        seen, left = {leaf.grad_fn for leaf in parts}, [leaf.grad_fn for leaf in roots]
        while left:
            if (step := left.pop()) is None or step in seen:
                continue
            seen.add(step)
            left += [before for before, _ in step.next_functions]
            if isinstance(read := getattr(step, "variable", None), nn.Parameter) and id(read) not in own:
                name = getattr(self.loss, "__name__", type(self.loss).__name__)
                raise CaptureError(f"{name}: the loss reads a parameter of the shape {tuple(read.shape)}: if it is the "
                                   f"model's, compute {_IN_MODEL}; if it is the loss's own, give a module that has it "
                                   "as loss")
        return given
