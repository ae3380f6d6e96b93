"""Interception of the calls in a model's code: of its submodules, and of torch functions between them.

A stage runs a copy of the model's modules with the parameters and buffers of the original. A tensor of another stage
has a shape, a dtype and a device, and data only if the stage received them.
"""

from __future__ import annotations

import copy
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from weft.runtime.captured.captured import CaptureError
from weft.runtime.interface.training import Boundary


def copy_of(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with new modules, which share the parameters and buffers of ``model``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that cannot be copied.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo.update((id(table), table) for table in (module._parameters, module._buffers))
        memo.update((id(leaf), leaf) for leaf in tree_leaves(list(vars(module).values())) if isinstance(leaf, Tensor))
    memo.update((id(tensor), tensor) for tensor in (*model.parameters(), *model.buffers()))
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # attributes of the user's modules may raise anything
        raise CaptureError(f"split: {type(model).__name__} cannot be copied, which every stage does with its modules "
                           f"(not its parameters): {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                           ) from error


#: Functions that pass a tensor's data to Python.
READS = {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__",
         "__contains__", "equal", "allclose", "is_nonzero"}
#: Functions that may draw random numbers, by name and by prefix.
DRAWS = {"multinomial", "poisson", "binomial", "rrelu", "gumbel_softmax", "scaled_dot_product_attention",
         "multi_head_attention_forward", "uniform_", "normal_", "normal", "random_", "exponential_", "geometric_",
         "cauchy_", "log_normal_"}
DRAWS_BEGIN = ("rand", "bernoulli", "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")


class Interceptor(Protocol):
    """An interceptor of module calls."""

    def call(self, plain: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Replaces ``plain(module, *args, **kwargs)``."""


@contextmanager
def intercepted(interceptor: Interceptor) -> Iterator[None]:
    """Inside, ``interceptor`` replaces every call of a module in this thread."""
    plain: Any = nn.Module.__call__
    thread = threading.get_ident()

    def seen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return plain(module, *args, **kwargs)
        return interceptor.call(plain, module, args, kwargs)

    nn.Module.__call__ = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]


class ValueNames:
    """Names of values: the producer, the number of its call, and the number of the result. All stages assign the same
    names, as all make the same calls."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def next(self, producer: str) -> str:
        """The name of the next call of ``producer``: the prefix of its results' names."""
        self.counts[producer] += 1
        return producer if self.counts[producer] == 1 else f"{producer}#{self.counts[producer]}"


def function_name(func: Callable[..., Any]) -> str:
    """The name of a torch function, such as ``"relu"``. In names of values it has brackets; submodules do not."""
    return str(getattr(func, "__name__", func))


def is_random(name: str) -> bool:
    """Whether a function of this name may draw random numbers."""
    return name in DRAWS or name.startswith(DRAWS_BEGIN)


def version(tensor: Tensor) -> int:
    """The number of in-place writes to ``tensor``; always 0 in inference mode, where torch does not count them."""
    return 0 if torch.is_inference(tensor) else int(tensor._version)


_OURS = (str(Path(__file__).resolve().parents[1]), str(Path(torch.__file__).parent))


def users_line() -> str:
    """The innermost running line outside of torch and weft, as ``file:line (code)``."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not str(Path(name).resolve() if not name.startswith("<") else name).startswith((*_OURS, "<")):
            break
        frame = frame.f_back
    if frame is None:
        return "the model"
    code = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" + (f" ({code:.80})" if code else "")


class RemoteTensor(Tensor):
    """The value ``name`` of another stage: a fake tensor, and the value itself if it was ``received``.

    Operations on it outside of the interceptors (inside a submodule that got it in a custom container) use the received
    value.
    """

    fake: Tensor
    name_: str
    real_: Tensor | None

    @staticmethod
    def __new__(cls, fake: Tensor, name: str, received: Tensor | None = None) -> RemoteTensor:
        remote: RemoteTensor = Tensor._make_wrapper_subclass(
            cls, fake.shape, strides=fake.stride(), dtype=fake.dtype, device=fake.device)
        remote.__dict__.update(fake=fake, name_=name, real_=received)
        return remote

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        return func(*real(args), **real(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),  # type: ignore[override]
                           kwargs: Any = None) -> Any:
        raise CaptureError(f"split: {users_line()} does with a value of another stage what cannot be followed "
                           f"({func}): move it into a submodule")


def real(value: Any) -> Any:
    """The nested ``value`` with received values in place of remote tensors.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a value that was not received.
    """
    return tree_map(_real, value)


def numbers(value: Any) -> Any:
    """The nested ``value`` with received values, detached, in place of remote tensors: for reads by Python."""
    return tree_map(lambda leaf: real(leaf).detach() if isinstance(leaf, RemoteTensor) else leaf, value)


def _real(leaf: Any) -> Any:
    if not isinstance(leaf, RemoteTensor):
        return leaf
    received = leaf.__dict__["real_"]
    if received is None:
        raise CaptureError(f"split: {users_line()} reads {leaf.__dict__['name_']!r} of another stage, which it did not "
                           "in the example: what is read between submodules must not depend on the numbers of a batch, "
                           "so move this into a submodule")
    return received


class FakeExecution:
    """Runs torch functions on fake tensors in place of remote ones."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def tensor(self, boundary: Boundary, device: torch.device) -> Tensor:
        """A fake tensor with this shape and dtype."""
        with self.mode:
            return torch.empty(boundary.known, dtype=boundary.dtype, device=device)

    def like(self, tensor: Tensor) -> Tensor:
        """A fake tensor with the metadata of ``tensor``."""
        return self.mode.from_tensor(tensor)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``func`` on the fake tensors of remote ones.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` if a shape or a number depends on data.
        """
        given = tree_map(lambda leaf: leaf.__dict__["fake"] if isinstance(leaf, RemoteTensor) else leaf, (args, kwargs))
        try:
            with self.mode, torch.no_grad():
                return func(*given[0], **given[1])
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise CaptureError(f"split: at {users_line()} a shape or a number depends on the numbers of a tensor of "
                               "another stage: move this into a submodule") from None
