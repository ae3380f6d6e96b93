"""Intercepts the calls of a model's own code: of its submodules, and of torch's functions between them."""

from __future__ import annotations

import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

#: Functions that pass numbers of a tensor to Python.
READS = {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__",
         "__contains__", "equal", "allclose", "is_nonzero"}
#: Functions that draw random numbers, beside those with these prefixes.
DRAWS = {"multinomial", "poisson", "binomial", "rrelu", "gumbel_softmax", "scaled_dot_product_attention",
         "multi_head_attention_forward", "uniform_", "normal_", "normal", "random_", "exponential_", "geometric_",
         "cauchy_", "log_normal_"}
DRAWS_BEGIN = ("rand", "bernoulli", "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")


class Watching(Protocol):
    """An interceptor of module calls."""

    def call(self, plain: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Replaces ``plain(module, *args, **kwargs)``."""


@contextmanager
def calls_seen(watching: Watching) -> Iterator[None]:
    """Inside, ``watching`` sees every call of a module in this thread."""
    plain: Any = nn.Module.__call__
    thread = threading.get_ident()

    def seen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return plain(module, *args, **kwargs)
        return watching.call(plain, module, args, kwargs)

    nn.Module.__call__ = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]


class ValueNames:
    """The names of values: their maker, the number of its call, and of the result. They are the same in all stages, as
    each goes through the same calls."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def next(self, maker: str) -> str:
        """The name of the results of this call of ``maker``, without their number."""
        self.counts[maker] += 1
        return maker if self.counts[maker] == 1 else f"{maker}#{self.counts[maker]}"


def function_name(func: Callable[..., Any]) -> str:
    """``"relu"``; the brackets behind it distinguish it from a submodule."""
    return str(getattr(func, "__name__", func))


def is_random(name: str) -> bool:
    """Whether a function of this name may draw random numbers."""
    return name in DRAWS or name.startswith(DRAWS_BEGIN)


def version(tensor: Tensor) -> int:
    """The number of writes to it; always 0 in inference mode, where that is not counted."""
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
