"""One stage of a model: its passes over one micro-batch at a time, while others are under way.

The split backward is a weight-gradient store (the idea of zero-bubble pipelines: Qi et al., ICLR 2024, section 2): the
input-gradient pass goes through the whole graph and frees it, but a layer that can wait
(:mod:`~weft.runtime.train.deferring`) only records its input and its output's gradient there, and the weight-gradient
pass multiplies them. PyTorch's own split keeps the graph until the weight-gradient pass, and more beside it. All other
parameters get their gradients in the input-gradient pass: they cost little.

A stage's graph begins in a custom function (:class:`_Entrance`), and of its ends only the edges are kept, so that the
runner itself keeps neither inputs nor outputs: only the tensors that the stage's operations saved stay in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import graph as autograd_graph
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from weft.runtime.train.deferred import DeferredInputs, DeferredLinear, tapped
from weft.runtime.train.deferring import deferrable, deferred_parameters, operator_of
from weft.runtime.train.moment import Moment, seeds_of
from weft.runtime.train.offload import CopyEngine, Shelf
from weft.runtime.train.sharding import is_divided, local_of, lying_in

__all__ = ["Offloading", "StageRunner", "add_gradient", "deferrable", "deferred_parameters"]

Gradients: TypeAlias = list[Tensor | None]


def add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Add ``gradient`` to the gradient of ``parameter``."""
    gradient = gradient.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient


class _Entrance(torch.autograd.Function):
    """The entrance of an input: the same tensor, whose gradient is recorded in ``gradients[place]``."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, x: Tensor, gradients: Gradients, place: int) -> Tensor:
        ctx.gradients, ctx.place = gradients, place
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.gradients[ctx.place] = gradient
        return None, None, None, None


class _BackwardEdges(NamedTuple):
    """A forward's data for its backward: the edges of the outputs, by their number, and the list for the inputs'
    gradients.
    """

    ends: tuple[tuple[int, GradientEdge], ...]
    inputs: Gradients


class _Repeat(NamedTuple):
    """A forward's data for its recomputation: its inputs, as the shelf's or as tensors, and the random state."""

    inputs: tuple[Any, ...]
    random: Tensor
    random_gpu: Tensor | None


class Offloading(NamedTuple):
    """How a forward's saved tensors are moved to the host: by ``engine``, all of them, or only those of the submodules
    named in ``modules``. With ``beside``, copies run beside the computation: they begin at the end of a forward and at
    :meth:`StageRunner.load`, and :meth:`StageRunner.offload` and :meth:`StageRunner.arrive` wait for them."""

    engine: CopyEngine
    modules: Collection[str] | None = None
    beside: bool = False


class StageRunner:
    """Runs ``module`` on micro-batches that overlap in time: tensors in, a tensor or several out.

    The inputs numbered in ``constant`` get no gradient, nor do integers or booleans. ``function`` is what a forward
    calls, by default the module itself. With ``split``, the module's layers that can wait
    (:func:`~weft.runtime.train.deferring.deferrable`) defer their weight gradients; they are changed in place, and
    restored by :meth:`close`. Hooks on their weights do not see the deferred gradients, which go to ``add``, and the
    module must not be compiled. With ``recompute``, a forward keeps its inputs only, until :meth:`recompute` runs it
    again on the same random numbers (running statistics, as of a batch norm, are then counted twice). With
    ``offloading``, a forward's saved tensors can be moved to the host. ``complete``, if set, is called for a deferred
    parameter when it has all contributions of a micro-batch from its layers' uses. Only the copy engine is shared
    between runners. Random operators (:class:`~weft.runtime.train.moment.Seeded`) draw at ``moment``: the caller sets
    its step; its micro-batch, when the runner is made, is that of micro-batch 0.
    """

    def __init__(self, module: nn.Module, *, constant: Collection[int] = (),
                 function: Callable[..., Tensor | Sequence[Tensor]] | None = None, split: bool = False,
                 recompute: bool = False, offloading: Offloading | None = None, moment: Moment | None = None,
                 add: Callable[[Tensor, Tensor], None] = add_gradient) -> None:
        self.module, self.constant, self.add = module, constant, add
        self.complete: Callable[[Tensor], None] = lambda parameter: None
        self._function = module if function is None else function
        self._graphs: dict[int, _BackwardEdges] = {}
        self._kept: dict[int, list[DeferredInputs]] = {}
        self._repeats: dict[int, _Repeat] | None = {} if recompute else None
        self._shelves: dict[int, Shelf] | None = None if offloading is None else {}
        engine, names, self._beside = offloading or (None, None, False)
        self._engine: CopyEngine | None = engine
        self._inside = 0 if names is not None else 1  # number of the named submodules that are running
        self._hooks = [hook for name in names or () for hook in self._watch(module.get_submodule(name))]
        self._handle = torch.empty(0, requires_grad=True)
        self._micro_batch = 0
        self.moment = moment or Moment()
        self._before = self.moment.micro_batch
        seeds_of(module, self.moment)
        self._parameters = tuple(module.parameters())
        self._split = deferrable(module) if split else []
        for layer in self._split:
            layer.__dict__["forward"] = self._deferring(layer)

    def close(self) -> None:
        """Restore the module's own layers."""
        for layer in self._split:
            layer.__dict__.pop("forward", None)
        for hook in self._hooks:
            hook.remove()

    @property
    def deferring(self) -> Sequence[nn.Module]:
        """The layers whose weight gradients wait."""
        return self._split

    @property
    def held(self) -> tuple[int, int]:
        """The number of micro-batches with a graph, and of those that wait for their weight gradient only."""
        return len(self._graphs), len(self._kept.keys() - self._graphs.keys())

    def enter(self, micro_batch: int) -> None:
        """Switch to ``micro_batch``: layers record for it, and draw its random numbers."""
        self._micro_batch = micro_batch
        self.moment.micro_batch = self._before + micro_batch

    def forward(self, micro_batch: int, *xs: Tensor) -> tuple[Tensor, ...]:
        """The stage's outputs for the inputs ``xs``, detached. The backward's inputs are kept until then."""
        self.enter(micro_batch)
        if self._repeats is None:
            return self._forward(micro_batch, xs)
        shelf = self._shelf(micro_batch) if self._shelves is not None else None
        put: Callable[[Tensor], Any] = Tensor.detach if shelf is None else shelf.put
        on_gpu = next((x.device for x in xs if x.is_cuda), None)
        self._repeats[micro_batch] = _Repeat(tuple(put(x) for x in xs), torch.get_rng_state(),
                                             None if on_gpu is None else torch.cuda.get_rng_state(on_gpu))
        if shelf is not None and self._beside:
            shelf.begin_offload()
        return self.infer(*xs)

    def recompute(self, micro_batch: int) -> None:
        """Run the forward again, now keeping the backward's inputs."""
        assert self._repeats is not None
        self.arrive(micro_batch)
        inputs, random, random_gpu = self._repeats.pop(micro_batch)
        shelf = self._shelves.pop(micro_batch) if self._shelves is not None else None
        xs = inputs if shelf is None else tuple(shelf.take(x) for x in inputs)
        on_gpu = [x.device for x in xs if x.is_cuda][:1]
        with torch.random.fork_rng(on_gpu):
            torch.set_rng_state(random)
            if random_gpu is not None:
                torch.cuda.set_rng_state(random_gpu, on_gpu[0])
            self._forward(micro_batch, xs, shelved=False)

    def offload(self, micro_batch: int) -> None:
        """Complete the offload of the forward's saved tensors, and release their memory."""
        assert self._shelves is not None
        if not self._beside:
            self._shelves[micro_batch].begin_offload()
        self._shelves[micro_batch].arrive()

    def load(self, micro_batch: int) -> None:
        """Bring back the tensors that :meth:`offload` moved: their memory is allocated here."""
        assert self._shelves is not None
        self._shelves[micro_batch].begin_load()
        if not self._beside:
            self._shelves[micro_batch].arrive()

    def arrive(self, micro_batch: int) -> None:
        """Wait for copies of this micro-batch that are under way, if there are any."""
        if self._shelves is not None and micro_batch in self._shelves:
            self._shelves[micro_batch].arrive()

    def moving(self, micro_batch: int) -> int:
        """Bytes that move to the host and back, for a forward that has run."""
        assert self._shelves is not None
        return self._shelves[micro_batch].size

    def infer_of(self, micro_batch: int, *xs: Tensor) -> tuple[Tensor, ...]:
        """The same for a micro-batch that may draw random numbers."""
        self.enter(micro_batch)
        return self.infer(*xs)

    def infer(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """The stage's outputs for ``xs``, without keeping anything."""
        with torch.no_grad():
            return _several(self._function(*xs))

    def backward(self, micro_batch: int, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Full backward from the ``gradients`` of the outputs (``None``: nothing depends on that output).

        Adds to the parameters' gradients and returns the inputs' (``None`` for one that has none).
        """
        self.enter(micro_batch)  # for layers that are recomputed now
        self.arrive(micro_batch)
        graph = self._graphs.pop(micro_batch)
        led = [(edge, gradient) for i, edge in graph.ends if (gradient := gradients[i]) is not None]
        if led:
            _run_backward(*zip(*led, strict=True))
            self._keep_apart([gradient for _, gradient in led])
        if self._shelves is not None:
            self._shelves.pop(micro_batch, None)
        return tuple(graph.inputs)

    def _keep_apart(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients of parameters that lie in the memory of the outputs' ``gradients``: for a parameter that
        an output is a view of, torch stores the same tensor, whose memory will soon hold another message."""
        lent = {gradient.untyped_storage().data_ptr() for gradient in gradients}
        for parameter in self._parameters:
            own = parameter.grad
            if own is not None and own.layout == torch.strided and local_of(own).untyped_storage().data_ptr() in lent:
                parameter.grad = own.clone()

    def input_grad(self, micro_batch: int, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Backward without the deferred weight gradients; :meth:`weight_grad` must follow."""
        self._kept.setdefault(micro_batch, [])
        return self.backward(micro_batch, *gradients)

    def weight_grad(self, micro_batch: int) -> None:
        """Add the weight gradients that :meth:`input_grad` deferred, and free their inputs."""
        kept = self._kept.pop(micro_batch)
        uses = Counter(parameter for item in kept for parameter in item.parameters)
        with torch.no_grad():
            for item in _drain(kept):
                for parameter, gradient in item.gradients():
                    self.add(parameter, gradient if is_divided(gradient) else lying_in(gradient, parameter))
                for parameter in item.parameters:
                    uses[parameter] -= 1
                    if not uses[parameter]:
                        self.complete(parameter)

    def _forward(self, micro_batch: int, xs: Sequence[Tensor], shelved: bool = True) -> tuple[Tensor, ...]:
        self.enter(micro_batch)
        gradients: Gradients = [None] * len(xs)
        kept: AbstractContextManager[object] = nullcontext()
        shelf = self._shelf(micro_batch) if self._shelves is not None and shelved else None
        if shelf is not None:
            shelf.leave(xs)
            kept = torch.autograd.graph.saved_tensors_hooks(shelf.put, shelf.take)
        entered = [x.detach() if i in self.constant or not (x.is_floating_point() or x.is_complex())
                   else _Entrance.apply(self._handle, x, gradients, i)  # type: ignore[no-untyped-call]
                   for i, x in enumerate(xs)]
        with kept:
            ys = _several(self._function(*entered))
        ends = tuple((i, _end(y)) for i, y in enumerate(ys) if y.requires_grad)
        if not ends:
            raise ValueError("none of the stage's outputs depends on a parameter or on an input that has a gradient, "
                             "but the plan has a backward for it")
        self._graphs[micro_batch] = _BackwardEdges(ends, gradients)
        if shelf is not None and self._beside:
            shelf.begin_offload()
        return tuple(y.detach() for y in ys)

    def _shelf(self, micro_batch: int) -> Shelf:
        assert self._shelves is not None and self._engine is not None
        if micro_batch not in self._shelves:
            moves: Callable[[], bool] = (lambda: True) if self._repeats is not None else lambda: self._inside > 0
            self._shelves[micro_batch] = Shelf(self._engine, [*self.module.parameters(), *self.module.buffers()], moves)
        return self._shelves[micro_batch]

    def _watch(self, part: nn.Module) -> Iterator[RemovableHandle]:
        """Track when ``part`` is running."""
        def enter(module: nn.Module, xs: Any) -> None:
            self._inside += 1

        def leave(module: nn.Module, xs: Any, ys: Any) -> None:
            self._inside -= 1

        yield part.register_forward_pre_hook(enter)
        yield part.register_forward_hook(leave, always_call=True)

    def _deferring(self, layer: nn.Module) -> Callable[..., Any]:
        operator, is_linear = operator_of(layer), type(layer) is nn.Linear

        def forward(*xs: Any, **settings: Any) -> Any:
            if settings or not torch.is_grad_enabled() or not all(isinstance(x, Tensor) for x in xs) or not any(
                    parameter.requires_grad for parameter in operator.own):
                return type(layer).forward(layer, *xs, **settings)
            kept = self._kept.setdefault(self._micro_batch, [])
            if is_linear:  # the same, in one node of the graph
                x, = xs
                return DeferredLinear.apply(x, layer.weight, layer.bias, operator, kept)  # type: ignore[no-untyped-call]
            return tapped(operator, xs, kept)

        return forward


#: The function that ``torch.autograd.backward`` calls after its own checks in Python, which take as long as a small
#: stage's backward, and which the engine repeats. It is private, but the same from torch 2.6 to 2.14; before 2.7 it is
#: also the only way to go backward from an edge. A torch without it uses the public function.
_ENGINE: Callable[..., object] | None = (
    getattr(autograd_graph, "_engine_run_backward", None) if torch.__version__ < "2.15" else None)


def _run_backward(ends: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    """``torch.autograd.backward``, without its slow checks."""
    if _ENGINE is None:
        torch.autograd.backward(ends, gradients)
    else:
        _ENGINE(tuple(ends), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _end(y: Tensor) -> GradientEdge:
    """The edge of ``y``, which keeps the graph before it alive. The edge of a Python node (a custom function) does so
    from torch 2.9 on only; so for these it is the edge of a view of ``y``, whose node is not in Python."""
    return get_gradient_edge(y.view_as(y) if isinstance(y.grad_fn, BackwardCFunction) else y)


def _several(ys: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (ys,) if isinstance(ys, Tensor) else tuple(ys)


def _drain(kept: list[DeferredInputs]) -> Iterator[DeferredInputs]:
    while kept:
        yield kept.pop()  # each is freed as soon as it has been used
