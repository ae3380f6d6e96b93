"""One stage of a model that is cut at submodules: it runs its part of the model's own forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from weft.runtime.by_modules.calls import (
    READS,
    FakeExecution,
    RemoteTensor,
    ValueNames,
    copy_of,
    function_name,
    intercepted,
    is_random,
    numbers,
    real,
    users_line,
    version,
)
from weft.runtime.by_modules.traced import ModuleCall, TensorName, Traced, argument_name
from weft.runtime.captured.captured import CaptureError
from weft.runtime.interface.training import Boundary
from weft.runtime.train.moment import Seeded

#: The name of the submodule that draws the stage's random numbers, from its own seeds.
RANDOM = "weft_random"


class ModuleStage(nn.Module):
    """Stage ``number`` of ``traced``: its inputs are the values named in ``values`` and the leaves ``inputs`` of the
    model's arguments, its outputs the values named in ``gives``.

    Its submodules have the model's names. They are copies with the model's parameters and buffers, so that stages, in
    training and in evaluation, do not affect each other. Unless ``plain``, random numbers are seeded.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if a batch takes another path through the model than
    the example and needs values that were not sent.
    """

    #: Its cost is measured on the values of the example: :func:`weft.runtime.measure.stage_feeds.needs_numbers`.
    needs_numbers = True

    def __init__(self, traced: Traced, number: int, values: Sequence[str], inputs: Sequence[int],
                 gives: Sequence[str], plain: bool) -> None:
        super().__init__()
        self.number = number
        model = copy_of(traced.model)
        run = _StageRun(traced, number, model, tuple(values), tuple(inputs), tuple(gives))
        self.__dict__["run_"] = run
        if not plain:
            self.add_module(RANDOM, Seeded(run, number))
        for path in traced.entries[number].modules:
            _put(self, path, model.get_submodule(path))
        for parameter in traced.entries[number].parameters.values():
            _put(self, traced.names[id(parameter)], parameter)
        self.train(model.training)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """The stage's outputs."""
        run: Any = self._modules.get(RANDOM, self.__dict__["run_"])
        outputs: tuple[Tensor, ...] = run(*xs)
        return outputs

    def train(self, mode: bool = True) -> ModuleStage:
        """Set the mode of the whole model, as all of its code runs. Submodules that the user put into evaluation mode
        keep it in training."""
        run: _StageRun | None = self.__dict__.get("run_")
        if run is not None and mode != run.training:
            run.set_training(mode)
        self.training = mode
        return self


def _put(root: nn.Module, path: str, what: nn.Module | nn.Parameter) -> None:
    *steps, leaf = path.split(".")
    for step in steps:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root._modules[step]  # type: ignore[assignment]
    if isinstance(what, nn.Parameter):
        root.register_parameter(leaf, what)
    else:
        root._modules[leaf] = what


class _StageRun:
    """A function that runs a stage's forward."""

    def __init__(self, traced: Traced, number: int, model: nn.Module, values: tuple[str, ...], inputs: tuple[int, ...],
                 gives: tuple[str, ...]) -> None:
        self.traced, self.number, self.model, self.gives = traced, number, model, gives
        self.values, self.inputs = values, inputs
        self.entry = traced.entries[number]
        self.next = traced.entries[number + 1].at if number + 1 < len(traced.entries) else None
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.fakes = FakeExecution()
        self.readable = {*self.entry.parameters, *(id(p) for path in self.entry.modules
                                                   for p in model.get_submodule(path).parameters())}
        self.training = model.training
        self._modes = {module: module.training for module in model.modules()}

    def set_training(self, mode: bool) -> None:
        self.training = mode
        for module, was in self._modes.items():
            module.training = was and mode

    def __call__(self, *xs: Tensor) -> tuple[Tensor, ...]:
        traced = self.traced
        received = {name: x.clone() if name in self.entry.copies else x
                    for name, x in zip(self.values, xs, strict=False)}
        device = next((x.device for x in xs), torch.device("cpu"))
        leaves = list(traced.in_leaves)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                boundary = Boundary(tuple(leaf.shape), leaf.dtype)
                leaves[i] = RemoteTensor(self.fakes.tensor(boundary, device), traced.inputs[i].name)
        for place, x in zip(self.inputs, xs[len(self.values):], strict=True):
            leaves[place] = x
        args, kwargs = tree_unflatten(leaves, traced.in_spec)
        forward = _StageForward(self, received, device)
        with intercepted(forward), forward:
            try:
                result = self.model(*args, **kwargs)
            except _ForwardDone:
                pass
            else:
                forward.end(result)
        return tuple(forward.given(name) for name in self.gives)


class _ForwardDone(BaseException):
    """Aborts the forward where the next stage begins."""


class _StageForward(TorchFunctionMode):
    """One forward of a stage: code of earlier stages runs on fake tensors, that of the stage on real ones."""

    def __init__(self, run: _StageRun, received: Mapping[str, Tensor], device: torch.device) -> None:
        super().__init__()
        self.run, self.traced, self.received, self.device = run, run.traced, received, device
        self.mine, self.inside = run.number == 0, False
        self.counts, self.wanted = ValueNames(), frozenset(run.gives)
        self.kept: dict[str, Tensor] = {}

    # -- submodules ----------------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a submodule of this stage; return remote tensors for one of an earlier stage."""
        path = None if self.inside else self.run.paths.get(id(module))
        if path is None:
            return plain(module, *args, **kwargs)
        if path == self.run.next:
            self._stop(path, args, kwargs)
        if path == self.run.entry.at:
            self._enter(args, kwargs)
        if path in self.traced.through:
            return plain(module, *args, **kwargs)
        name = self.counts.next(path)
        if not self.mine:
            return self._stub(path, name, lambda *xs, **named: plain(module, *xs, **named), args, kwargs)
        if path not in self.run.entry.modules:
            raise CaptureError(f"split: stage {self.run.number} runs the submodule {path!r} for a micro-batch, but in "
                               "no micro-batch of the example, so that its gradient would be lost: give an example "
                               "with a micro-batch that goes this way")
        args, kwargs = real(args), real(kwargs)
        self.inside = True
        try:
            result = plain(module, *args, **kwargs)
        finally:
            self.inside = False
        self._record_results(path, name, result)
        return result

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves = tree_leaves((args, kwargs))
        for place, first in self.run.entry.arguments.items():
            if place < len(leaves) and isinstance(x := leaves[place], RemoteTensor) and x.__dict__["real_"] is None:
                x.__dict__["real_"] = self.received[argument_name(str(self.run.entry.at), first)]
        self.mine = True

    def _stop(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entry = self.traced.entries[self.run.number + 1]
        leaves, spec = tree_flatten((args, kwargs))
        if not self.mine or spec != entry.spec:
            raise CaptureError(f"split: {path!r} is called in another order, or with other arguments, than in the "
                               "example: which submodules are called, and with what, must not depend on numbers of a "
                               "batch where a stage begins")
        for first in dict.fromkeys(entry.arguments.values()):
            self.kept[argument_name(path, first)] = real(leaves[first])
        raise _ForwardDone

    def _known(self, path: str, name: str) -> ModuleCall | None:
        """The results of a call in the example, or of the submodule's first call if this one is new."""
        return self.traced.calls.get(name, self.traced.calls.get(path))

    def _stub(self, path: str, name: str, module: Callable[..., Any], args: tuple[Any, ...],
              kwargs: dict[str, Any]) -> Any:
        """The results of a submodule of an earlier stage, without running it."""
        known = self._known(path, name)
        if known is None:
            self.inside = True
            try:
                leaves, spec = tree_flatten(self.run.fakes.run(module, args, kwargs))
            finally:
                self.inside = False
            return tree_unflatten([self._remote(leaf, f"{name}.{i}") if isinstance(leaf, Tensor) else leaf
                                   for i, leaf in enumerate(leaves)], spec)
        spec, boundaries = known
        leaves = list(boundaries)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Boundary):
                leaves[i] = self._remote(self.run.fakes.tensor(leaf, self.device), f"{name}.{i}")
            elif leaf in (bool, int, float):
                leaves[i] = leaf(self._number(f"{name}.{i}"))
        return tree_unflatten(leaves, spec)

    def _number(self, name: str) -> Any:
        if name not in self.received:
            raise CaptureError(f"split: {users_line()} reads the number {name!r} of another stage, which it did not in "
                               "the example: move what decides about it into a submodule")
        return self.received[name].item()

    def _record_results(self, path: str, name: str, result: Any) -> None:
        """Keep the results that later stages need; refuse other shapes than in the example, which they assume."""
        leaves, spec = tree_flatten(result)
        known = self._known(path, name)
        for i, leaf in enumerate(leaves):
            if (own := f"{name}.{i}") in self.wanted:
                self.kept[own] = leaf if isinstance(leaf, Tensor) else torch.tensor(leaf, device=self.device)
        if known is None:
            return  # later stages run it on fake tensors
        if spec != known.spec or any(_kind(leaf) != kind for leaf, kind in zip(leaves, known.leaves, strict=True)):
            raise CaptureError(f"split: the submodule {path!r} gives {_described(leaves)} for a micro-batch, but gave "
                               f"{_described(known.leaves)} in the example: what passes between submodules must always "
                               "look the same")

    # -- torch's functions ---------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        given = kwargs or {}
        if self.inside:
            return func(*args, **given)
        if function_name(func) in READS:
            return func(*numbers(args), **numbers(given))
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        if not self.mine and (is_random(function_name(func)) or any(isinstance(leaf, RemoteTensor | nn.Parameter)
                                                                    for leaf in tensors)):
            return self._run_fake(func, args, given, tensors)
        if any(isinstance(leaf, RemoteTensor) for leaf in tensors):
            if function_name(func) == "__get__" and all(leaf.__dict__["real_"] is None for leaf in tensors
                                                        if isinstance(leaf, RemoteTensor)):
                return self._run_fake(func, args, given, tensors)  # a read of metadata needs no data
            args, given = real(args), real(given)
            tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        for leaf in tensors:
            if isinstance(leaf, nn.Parameter) and leaf.requires_grad and id(leaf) not in self.run.readable:
                if not list(filter(torch.is_tensor, tree_leaves(result := func(*args, **given)))):
                    return result  # metadata
                raise CaptureError(f"split: stage {self.run.number} reads {self.traced.names.get(id(leaf))!r} at "
                                   f"{users_line()}, but in no micro-batch of the example, so that its gradient would "
                                   "be lost: give an example with a micro-batch that goes this way")
        return self._run(func, args, given, tensors)

    def _called(self, func: Callable[..., Any], call: Callable[[], Any], watched: Sequence[Tensor],
                writes: Callable[[Any], int]) -> tuple[Any, list[int], list[Any], str]:
        """The result of ``call``, a call of ``func``; the places of tensors among its leaves; the tensors of
        ``watched`` whose count of ``writes`` changed; and the name of the call, "" without tensors and writes."""
        before = [writes(leaf) for leaf in watched]
        result = call()
        made = [i for i, leaf in enumerate(tree_leaves(result)) if isinstance(leaf, Tensor)]
        written = [leaf for leaf, was in zip(watched, before, strict=True) if writes(leaf) != was]
        return result, made, written, self.counts.next(f"{function_name(func)}()") if made or written else ""

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
             tensors: Sequence[Tensor]) -> Any:
        result, made, written, name = self._called(func, lambda: func(*args, **kwargs), tensors, version)
        leaves, spec = tree_flatten(result)
        for number, leaf in enumerate([leaves[i] for i in made] or written[:1]):
            if (own := f"{name}.{number}") in self.wanted:
                self.kept[own] = leaf
            if not self.mine and own in self.traced.not_free:
                leaves[made[number]] = self._remote(self.run.fakes.like(leaf), own)
        return result if self.mine or not name else tree_unflatten(leaves, spec)

    def _run_fake(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                  tensors: Sequence[Tensor]) -> Any:
        remotes = [leaf for leaf in tensors if isinstance(leaf, RemoteTensor)]
        result, made, written, name = self._called(func, lambda: self.run.fakes.run(func, args, kwargs), remotes,
                                                   lambda leaf: int(leaf.__dict__["fake"]._version))
        leaves, spec = tree_flatten(result)
        if written and not made:
            self._rename(written[0], f"{name}.0")
        for number, i in enumerate(made):
            own, fake = f"{name}.{number}", leaves[i]
            same = next((leaf for leaf in remotes if leaf.__dict__["fake"] is fake), written[0] if written else None)
            if same is not None:
                self._rename(same, own)
                leaves[i] = same
            else:
                leaves[i] = self._remote(self.run.fakes.like(fake), own)
        return tree_unflatten(leaves, spec) if made else result

    def _remote(self, fake: Tensor, name: str) -> RemoteTensor:
        return RemoteTensor(fake, name, self.received.get(name))

    def _rename(self, remote: RemoteTensor, name: str) -> None:
        remote.__dict__.update(name_=name, real_=self.received.get(name))

    def end(self, result: Any) -> None:
        """Keep the model's results at the end of the forward."""
        if self.run.next is not None or not self.mine:
            raise CaptureError(f"split: the submodule {self.run.next or self.run.entry.at!r} is not called for a "
                               "micro-batch, though it was in the example: each must be in every forward")
        leaves, spec = tree_flatten(result)
        if spec != self.traced.out_spec:
            raise CaptureError("split: the last stage gives results nested in another way than the example's: which "
                               "results there are must not depend on numbers, and what is collected behind the back of "
                               "submodules (hidden states, router logits) does not cross stages, so leave that out")
        for leaf, wanted in zip(leaves, self.traced.results, strict=True):
            if isinstance(wanted, TensorName):
                self.kept[wanted] = real(leaf)
            elif leaf != wanted:
                raise CaptureError(f"split: the model returns the number {leaf!r:.40}, but {wanted!r:.40} in the "
                                   "example: return a tensor")

    def given(self, name: str) -> Tensor:
        """The stage's output ``name``; zeros if this micro-batch's path did not compute it."""
        if name in self.kept:
            return self.kept[name]
        boundary = self.traced.boundaries[name]
        return torch.zeros(boundary.known, dtype=boundary.dtype, device=self.device)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return Boundary(tuple(leaf.shape), leaf.dtype)
    return type(leaf) if isinstance(leaf, bool | int | float) else leaf


def _described(leaves: Sequence[Any]) -> str:
    shown = tree_map(lambda leaf: str(tuple(leaf.shape)) if isinstance(leaf, Tensor | Boundary) else str(leaf), leaves)
    return ", ".join(shown)[:120] or "nothing"
