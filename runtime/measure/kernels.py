"""The times of kernels on one device: matrix products by size and dtype, attention, memory traffic, launches, others.

Each kernel runs alone on random tensors, forward and backward by autograd, in laps that are long compared with the
clock's precision (:class:`~weft.runtime.measure.measure.Timer`). Autograd's start-up time, which a step pays once, is
subtracted from a backward that does not hide it. Operations and bytes are counted as in the operator graphs: the
backward of a product is two products, that of attention 2.5 times its forward; element-wise kernels count reads and
writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from weft.runtime.measure.measure import Timer, single_threaded

Pass: TypeAlias = Literal["forward", "backward"]

#: Groups that are no class of a device: launches (a chain of tiny kernels), and memory traffic.
LAUNCH, MEMORY = "launch", "memory"
#: Sizes of square products, by kind of device; those of the quick mode.
_SIZES = {"cpu": (64, 128, 256, 512, 1024), "cuda": (256, 512, 1024, 2048, 4096, 8192)}
_QUICK = {"cpu": (32, 128), "cuda": (256, 2048)}
#: Elements of the largest tensors: several times any cache.
_LARGE = {"cpu": 1 << 24, "cuda": 1 << 28}
#: The number of consecutive tiny layers with which launches are timed.
_CHAIN = 32
#: The number of laps, and the least seconds of a lap.
_REPEATS, _LEAST = 7, 5e-3
#: Seconds: after a kernel that took this long, no larger one of its group and dtype is run.
_LONGEST = 0.5
#: A backward longer than this multiple of autograd's time on the host is GPU time.
_HIDDEN = 1.2


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel in ``weft.device/1``: its group, pass, dtype and shape, operations and bytes, and the median seconds
    of ``repeats`` laps with their ``spread``."""

    group: str
    which: Pass
    dtype: str
    shape: str
    flops: float
    bytes: int
    seconds: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel to time. ``make``: runs the forward. ``forward``, ``backward``: operations and bytes of the passes
    (``None``: no backward). ``count``: the number of kernels in each pass."""

    group: str
    dtype: str
    shape: str
    make: Callable[[], Tensor]
    forward: tuple[float, int]
    backward: tuple[float, int] | None = None
    count: tuple[int, int] = (1, 1)


def measure_kernels(device: torch.device, *, quick: bool = False, timer: Timer | None = None,
                    on_progress: Callable[[str], None] = lambda title: None) -> list[KernelTime]:
    """Time all kernels on ``device``. ``quick``: small kernels, few laps. On a CPU one thread computes, and seconds are
    CPU time of the process, which other load affects least."""
    timer = timer or Timer.of_work(device)
    repeats, least = (3, 0.0) if quick else (_REPEATS, _LEAST)
    times: list[KernelTime] = []
    autograd = _Autograd(0.0, 0.0)
    slow: set[tuple[str, str]] = set()
    with single_threaded():
        for kernel in _kernels(device, quick):
            if (kernel.group, kernel.dtype) in slow:
                continue
            on_progress(f"{kernel.group} {kernel.dtype} {kernel.shape}")
            try:
                samples = list(_samples(kernel, timer, repeats, least, autograd))
            except (RuntimeError, NotImplementedError):  # an unsupported kernel, or too little memory
                continue
            times += samples
            if kernel.group == LAUNCH:
                autograd = _autograd_overhead(device, timer, repeats, least, samples[1].seconds)
            if samples[0].seconds > _LONGEST:
                slow.add((kernel.group, kernel.dtype))
    return times


class _Autograd(NamedTuple):
    """Autograd's start-up time. ``start``: seconds of the backward of one tiny layer minus its two launches. A backward
    of more than ``hidden`` seconds hides it: on a GPU its kernels run while the host starts the next one."""

    start: float
    hidden: float

    def without(self, seconds: float) -> float:
        """The ``seconds`` of a backward without the start-up time."""
        return seconds if seconds > self.hidden else max(seconds - self.start, seconds / 10)


def _autograd_overhead(device: torch.device, timer: Timer, repeats: int, least: float, launch: float) -> _Autograd:
    x, weight = (torch.ones(8, 8, device=device, requires_grad=True) for _ in range(2))
    y = functional.linear(x, weight)
    gradient = torch.ones_like(y)
    whole = timer.sample(lambda: torch.autograd.grad(y, (x, weight), gradient, retain_graph=True), repeats, least)
    return _Autograd(max(0.0, whole.seconds - 2 * launch),
                     _HIDDEN * whole.seconds if device.type == "cuda" else math.inf)


def _samples(kernel: _Kernel, timer: Timer, repeats: int, least: float,
             autograd: _Autograd) -> Iterator[KernelTime]:
    def of(which: Pass, run: Callable[[], object], work: tuple[float, int], count: int) -> KernelTime:
        sample = timer.sample(run, repeats, least)
        seconds = autograd.without(sample.seconds) if which == "backward" else sample.seconds
        return KernelTime(kernel.group, which, kernel.dtype, kernel.shape, work[0], work[1], seconds / count,
                          sample.spread, sample.repeats)

    yield of("forward", kernel.make, kernel.forward, kernel.count[0])
    if kernel.backward is not None:
        result = kernel.make()
        inputs = _leaves(result)
        gradient = torch.ones_like(result)
        yield of("backward", lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True), kernel.backward,
                 kernel.count[1])


def _leaves(result: Tensor) -> list[Tensor]:
    """The leaves of ``result`` that require a gradient."""
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    left: list[Any] = [result.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        left += [following for following, _ in node.next_functions]
    return list(leaves.values())


def _kernels(device: torch.device, quick: bool) -> Iterator[_Kernel]:
    kind = device.type
    dtypes = [torch.float32, torch.bfloat16, *([torch.float16] if kind == "cuda" else [])]

    def drawn(*shape: int, dtype: torch.dtype = torch.float32, gradient: bool = True) -> Tensor:
        return torch.randn(shape, device=device).to(dtype).requires_grad_(gradient)

    yield _launch(drawn(8, 8, gradient=True), [drawn(8, 8) for _ in range(_CHAIN)])
    large = _LARGE[kind] >> (6 if quick else 0)
    x, y = drawn(large, gradient=False), drawn(large, gradient=False)
    yield _Kernel(MEMORY, "float32", f"{large}", lambda: torch.add(x, y, out=y), (0.0, 12 * large))
    for dtype in dtypes:
        for size in (_QUICK if quick else _SIZES)[kind]:
            yield _product(drawn(size, size, dtype=dtype), drawn(size, size, dtype=dtype))
    if kind == "cuda":
        yield from _fp8_products(drawn, (_QUICK if quick else _SIZES)[kind])
    main = torch.float32 if kind == "cpu" else torch.bfloat16
    rows, heads, head, width, images = (64 if quick else 512, 8, 64, 1024, 4) if kind == "cpu" else (
        1024 if quick else 8192, 32, 128, 8192, 64)
    yield _attention(*(drawn(1, heads, rows, head, dtype=main) for _ in range(3)))
    yield _batched(*(drawn(heads, rows, head, dtype=main) for _ in range(2)))
    yield _convolution(drawn(images, 32, 56, 56, dtype=main), drawn(32, 32, 3, 3, dtype=main))
    yield from _rest(drawn, rows, width, main, device)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _launch(x: Tensor, weights: Sequence[Tensor]) -> _Kernel:
    """A chain of 8x8 layers, whose time is launch overhead: one launch in each forward, two in each backward."""

    def chain() -> Tensor:
        y = x
        for weight in weights:
            y = functional.linear(y, weight)
        return y

    return _Kernel(LAUNCH, "float32", "8x8x8", chain, (0.0, 0), (0.0, 0), (_CHAIN, 2 * _CHAIN))


def _product(x: Tensor, weight: Tensor) -> _Kernel:
    size, item = x.shape[0], x.element_size()
    work = 2.0 * size**3
    return _Kernel("gemm", _name(x), f"{size}x{size}x{size}", lambda: functional.linear(x, weight),
                   (work, 3 * size**2 * item), (2 * work, 5 * size**2 * item))


def _fp8_products(drawn: Callable[..., Tensor], sizes: Sequence[int]) -> Iterator[_Kernel]:
    """FP8 products with one scale per tensor, on GPUs of compute capability 8.9 or higher."""
    if torch.cuda.get_device_capability() < (8, 9):
        return
    for size in sizes:
        x, y = (drawn(size, size, gradient=False).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=x.device)

        def product(x: Tensor = x, y: Tensor = y, one: Tensor = one) -> Tensor:
            result: Tensor = torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16)
            return result

        yield _Kernel("gemm", "float8_e4m3fn", f"{size}x{size}x{size}", product, (2.0 * size**3, 4 * size**2))


def _attention(query: Tensor, key: Tensor, value: Tensor) -> _Kernel:
    _, heads, rows, width = query.shape
    work, moved = 4.0 * heads * rows * rows * width, query.numel() * query.element_size()
    return _Kernel("attention", _name(query), f"{heads} heads of {width}, {rows} tokens",
                   lambda: functional.scaled_dot_product_attention(query, key, value), (work, 4 * moved),
                   (2.5 * work, 8 * moved))


def _batched(x: Tensor, y: Tensor) -> _Kernel:
    batch, rows, width = x.shape
    work, moved = 2.0 * batch * rows * rows * width, batch * rows * (rows + 2 * width) * x.element_size()
    return _Kernel("bmm", _name(x), f"{batch} of {rows}x{width}x{rows}", lambda: torch.bmm(x, y.transpose(1, 2)),
                   (work, moved), (2 * work, 2 * moved))


def _convolution(x: Tensor, weight: Tensor) -> _Kernel:
    work, moved = 2.0 * x.numel() * weight.shape[0] * 9, 2 * x.numel() * x.element_size()
    return _Kernel("convolution", _name(x), f"{tuple(x.shape)}, 3x3",
                   lambda: functional.conv2d(x, weight, padding=1), (work, moved), (2 * work, 2 * moved))


def _rest(drawn: Callable[..., Tensor], rows: int, width: int, dtype: torch.dtype,
          device: torch.device) -> Iterator[_Kernel]:
    """Memory-bound kernels: element-wise kernels, norms, softmax, embeddings, the loss."""
    x, one, zero = drawn(rows, width, dtype=dtype), drawn(width, dtype=dtype), drawn(width, dtype=dtype)
    moved, shape, name = x.numel() * x.element_size(), f"{rows}x{width}", _name(x)

    def kernel(group: str, make: Callable[[], Tensor]) -> _Kernel:
        return _Kernel(group, name, shape, make, (0.0, 2 * moved), (0.0, 3 * moved))

    yield kernel("pointwise", lambda: functional.gelu(x))
    yield kernel("norm", lambda: functional.layer_norm(x, (width,), one, zero))
    yield kernel("softmax", lambda: functional.softmax(x, -1))
    target = torch.randint(width, (rows,), device=device)
    yield kernel("loss", lambda: functional.cross_entropy(x, target, reduction="none"))
    table = drawn(rows, width, dtype=dtype)
    index = torch.randint(rows, (rows,), device=device)
    yield kernel("embedding", lambda: functional.embedding(index, table))
