"""One module that calls every operator that has an annotation, with inputs of drawn sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from weft.app.plans.checking import Array, computed
from weft.models.transform.planned import Part, Planned
from weft.models.transform.program import PlanError, PlanOperation, PlanProgram
from weft.models.transform.transformations import split
from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels import run_kernel


def differences(program: PlanProgram, values: Mapping[str, Array]) -> Iterator[tuple[str, float]]:
    """Operator and cut, and the largest difference of the parts together from ``values``, which one device has; the
    whole itself is among them."""
    base = Planned(program, devices={operation.name: (0,) for operation in program.operations})
    for operation in program.operations:
        for along in (None, *operation.annotation.names):
            planned = base
            if along is not None:
                size = operation.sizes[along]
                parts = next((n for n in range(2, size + 1) if size % n == 0), 0)
                try:
                    planned = split(base, operation.name, along, parts, in_turn=True)
                except PlanError:
                    continue
            yield f"{operation.name} ({operation.annotation}) along {along}", _apart(planned, operation, values)


def wrong_types(program: PlanProgram, given: Mapping[str, Array]) -> list[str]:
    """Tensors that torch makes of another type than the program says, all operators run whole."""
    values = {name: torch.tensor(array) for name, array in given.items()}

    def value(name: str) -> torch.Tensor:
        terms = [values[term] for term in program.terms(name)]
        return sum(terms[1:], terms[0])

    wrong = []
    for operation in program.operations:
        how = operation.annotation
        call = KernelCall(operation.kind, how.inputs, how.outputs, operation.sizes, {}, operation.attributes)
        made = run_kernel(call, [value(name) for name in operation.inputs])
        for name, tensor in zip(operation.outputs, made, strict=True):
            values[name] = tensor
            if str(tensor.dtype).removeprefix("torch.") != (program.tensors[name].dtype or "float64"):
                wrong.append(f"{name} of {operation.kind}: {tensor.dtype}")
    return wrong


def _apart(planned: Planned, operation: PlanOperation, values: Mapping[str, Array]) -> float:
    totals = [np.zeros(np.shape(values[name])) for name in operation.outputs]
    for part in planned.parts(operation.name):
        for total, array, dimensions in zip(totals, _part(planned, operation, part, values),
                                            operation.annotation.outputs, strict=True):
            total[_slices(planned, part, dimensions)] += array
    return max(float(np.abs(total - values[name]).max(initial=0)) / max(1.0, float(np.abs(values[name]).max(initial=0)))
               for total, name in zip(totals, operation.outputs, strict=True))


def _part(planned: Planned, operation: PlanOperation, part: Part, values: Mapping[str, Array]) -> Sequence[Array]:
    spans = planned.spans(part)
    arrays = [values[name][_slices(planned, part, dimensions)] for name, dimensions in zip(
        operation.inputs, operation.annotation.inputs, strict=True)]
    return computed(planned.program, operation, arrays, {name: high - low for name, (low, high) in spans.items()},
                    {name: low for name, (low, _) in spans.items()})


def _slices(planned: Planned, part: Part, dimensions: tuple[tuple[str, ...], ...]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in planned.box(part, dimensions))


#: What is read: x, y [batch, rows, columns], p [batch, channels, high, wide], s [batch, channels, length], weights of
#: convolutions, q, k, v of attention, i of whole numbers, m of truths.
Given = Mapping[str, Tensor]

CASES: dict[str, Callable[[Given], Tensor]] = {
    # products
    "einsum": lambda g: torch.einsum("abc,adc->abd", g["x"], g["y"]), "einsum of one": lambda g: torch.einsum(
        "abc->cb", g["x"]), "vector": lambda g: g["x"] @ g["x"][0, 0], "baddbmm": lambda g: g["x"] @ g["y"].mT,
    # elementwise
    "where": lambda g: torch.where(g["m"], g["x"], g["y"][:1]), "masked_fill": lambda g: g["x"].masked_fill(g["m"], 2.),
    "maximum": lambda g: torch.maximum(g["x"], g["y"]), "min": lambda g: torch.min(g["x"], g["y"]),
    "clamp": lambda g: g["x"].clamp(-0.5, 0.7), "pow": lambda g: g["x"].abs() ** 3, "rsqrt": lambda g: torch.rsqrt(
        g["x"].abs() + 1), "trigonometry": lambda g: g["x"].sin() + g["y"].cos(), "erf": lambda g: torch.erf(g["x"]),
    "softplus": lambda g: f.softplus(g["x"]), "leaky": lambda g: f.leaky_relu(g["x"], 0.1), "elu": lambda g: f.elu(
        g["x"]), "hard": lambda g: f.hardtanh(g["x"]) + f.hardsigmoid(g["x"].detach()) + f.hardswish(g["y"]),
    "logs": lambda g: torch.log1p(g["x"].abs()) + torch.expm1(g["y"]) + f.logsigmoid(g["x"]),
    "truths": lambda g: ((g["x"] > 0) & (g["y"] <= 0.3) | ~g["m"]).double() * g["x"],
    "compared": lambda g: (g["x"] < g["y"]).double() + (g["x"] >= 0) * 2.0 + g["i"].eq(1).unsqueeze(-1),
    "whole": lambda g: (g["i"] * 3 // 2 % 4 - 1).double() @ g["x"], "added in place": lambda g: (g["x"] * 1).add_(
        g["y"]).relu_(), "filled": lambda g: g["x"] + torch.full((3,), 2.0).double().sum(),
    "several": lambda g: torch.addcmul(g["x"], g["y"][:1], g["x"], value=0.3) + torch.atan2(g["x"], g["y"]),
    "between": lambda g: torch.lerp(g["x"], g["y"], 0.2), "powers": lambda g: g["x"].abs() ** g["y"][0] + 2.0 ** g["y"],
    "clamped by tensors": lambda g: g["x"].clamp(g["y"][:, :1], None) + g["x"].round() + f.mish(g["y"]),
    "bits": lambda g: (g["i"] & 1 | g["i"] ^ 2).double() @ g["x"],
    "divided": lambda g: torch.div(g["i"], 2, rounding_mode="floor").double() @ g["x"],
    # along a dimension
    "cumsum": lambda g: g["x"].cumsum(1), "pad": lambda g: f.pad(g["p"], (1, 0, 2, 1), value=0.5),
    "pad reflecting": lambda g: f.pad(g["s"], (1, 1), mode="reflect"), "roll": lambda g: g["x"].roll((1, 2), (0, 2)),
    "flip": lambda g: g["x"].flip(1, 2), "amax": lambda g: g["x"].amax((0, 2)), "sort": lambda g: g["x"].sort(1)[0],
    "topk": lambda g: g["x"].topk(2, -1)[0], "argmax": lambda g: g["x"].argmax(1).double(), "diff": lambda g: g[
        "x"].diff(dim=1) + g["x"].diff(dim=1, prepend=g["y"][:, :1])[:, 1:],
    "any": lambda g: g["m"].any(1).double() + g["m"].all(-1, keepdim=True)[:, :1, 0].double(),
    "tril": lambda g: g["x"].tril() + g["x"].triu(1), "variance": lambda g: g["x"].var(1) + g["y"].std((1,)),
    "norm": lambda g: torch.linalg.vector_norm(g["x"], dim=-1, keepdim=True), "logsumexp": lambda g: g["x"].logsumexp(
        (0, 2)) + g["y"].prod(1).sum(), "whole argmax": lambda g: g["x"].argmax() * 1.0,
    "count": lambda g: g["m"].sum(0) * 1.0,
    # indices
    "index": lambda g: g["x"][:, g["i"][0] - 3], "indices": lambda g: g["x"][torch.arange(2), g["i"][:2, 0]],
    "index_select": lambda g: g["x"].index_select(1, g["i"][0]), "gather": lambda g: g["x"].gather(
        1, g["i"][:, :2, None].expand(-1, -1, g["x"].shape[2])), "scatter_add": lambda g: g["y"].scatter_add(
        1, g["i"][:, :, None].expand(-1, -1, g["x"].shape[2])[:, :g["x"].shape[1]], g["x"][:, :g["i"].shape[1]]),
    "scatter": lambda g: g["x"].scatter(1, g["i"][:, :1, None].expand(-1, -1, g["x"].shape[2]), 3.0),
    "index_add": lambda g: g["y"].index_add(1, g["i"][0], g["x"][:, :1].expand(-1, g["i"].shape[1], -1)),
    "masked_scatter": lambda g: g["x"].masked_scatter(g["m"][:, :, :1], g["y"]),
    # pieces
    "stack": lambda g: torch.stack([g["x"], g["y"]], 1), "repeat": lambda g: g["x"].repeat(2, 1, 3),
    "repeat_interleave": lambda g: g["x"].repeat_interleave(3, 1), "chunk": lambda g: g["x"].chunk(2, -1)[1],
    "split": lambda g: torch.split(g["x"], 1, 1)[0] * 2, "joined": lambda g: torch.cat([g["x"], g["y"]], 2),
    "expand": lambda g: g["x"][:, :1].expand(-1, 4, -1) * 2, "broadcast": lambda g: torch.ops.aten.broadcast_tensors(
        [g["x"], g["y"][:1, :1]])[1] * 1.0,
    # norms
    "layer_norm": lambda g: f.layer_norm(g["x"], g["x"].shape[1:]), "rms_norm": lambda g: f.rms_norm(
        g["x"], g["x"].shape[2:]), "group_norm": lambda g: f.group_norm(g["p"], 2, g["w"], g["w"]),
    "batch_norm": lambda g: f.batch_norm(g["p"], None, None, g["w"], g["w"], True),
    "batch_norm in use": lambda g: f.batch_norm(g["p"], g["w"].detach(), g["w"].detach().abs() + 1),
    "instance_norm": lambda g: f.instance_norm(g["p"]),
    # convolutions and windows
    "conv1d": lambda g: f.conv1d(g["s"], g["k1"], padding="same"), "conv1d far": lambda g: f.conv1d(
        g["s"], g["k1"], dilation=2, stride=2, padding=2), "conv2d in groups": lambda g: f.conv2d(
        g["p"], g["kg"], g["w"], padding=1, groups=2), "depthwise": lambda g: f.conv2d(
        g["p"], g["kd"], groups=4, stride=2), "transposed": lambda g: f.conv_transpose2d(
        g["p"], g["kt"], stride=2, padding=1, output_padding=1), "transposed in groups": lambda g: f.conv_transpose1d(
        g["s"], g["kh"], groups=2), "max_pool": lambda g: f.max_pool2d(g["p"], 2), "max_pool padded": lambda g: (
        f.max_pool2d(g["p"], 3, 2, 1)), "avg_pool": lambda g: f.avg_pool2d(g["p"], 3, 2, 1),
    "avg_pool inside": lambda g: (
        f.avg_pool1d(g["s"], 3, 2, 1, count_include_pad=False)), "adaptive": lambda g: f.adaptive_avg_pool2d(g["p"], 3),
    "nearest": lambda g: f.interpolate(g["p"], scale_factor=2.0), "bilinear": lambda g: f.interpolate(
        g["p"], size=(7, 9), mode="bilinear"), "bilinear cornered": lambda g: f.interpolate(
        g["p"], size=(7, 9), mode="bilinear", align_corners=True),
    # attention
    "attention": lambda g: f.scaled_dot_product_attention(g["q"], g["k"], g["v"], is_causal=True),
    "attention masked": lambda g: f.scaled_dot_product_attention(g["q"], g["k"], g["v"], g["seen"]),
    "attention biased": lambda g: f.scaled_dot_product_attention(g["q"], g["k"], g["v"], g["bias"], scale=0.3),
    "attention shared": lambda g: f.scaled_dot_product_attention(g["q"], g["k"][:, :2], g["v"][:, :2], g["seen"],
                                                                 enable_gqa=True),
    "attention of three axes": lambda g: f.scaled_dot_product_attention(g["q"][0], g["k"][0], g["v"][0]),
    # losses
    "mse": lambda g: f.mse_loss(g["x"], g["y"]) + f.mse_loss(g["x"], g["y"], reduction="sum"), "l1": lambda g: (
        f.l1_loss(g["x"], g["y"])), "huber": lambda g: f.huber_loss(g["x"], g["y"], delta=0.4) + f.smooth_l1_loss(
        g["x"], g["y"], beta=0.3), "entropy": lambda g: f.cross_entropy(g["x"].flatten(0, 1), g["t"]),
    "entropy of places": lambda g: f.cross_entropy(g["x"].mT, g["i"] % 2, ignore_index=1),
    "likelihood": lambda g: f.nll_loss(g["x"].flatten(0, 1).log_softmax(-1), g["t"]),
    "truth": lambda g: f.binary_cross_entropy_with_logits(g["x"], g["y"].sigmoid()),
}


class Every(nn.Module):
    """All cases, or some; gives a tuple. Numbers with a fraction are its parameters."""

    def __init__(self, given: Mapping[str, Tensor], names: tuple[str, ...] = tuple(CASES)) -> None:
        super().__init__()
        self.names = names
        self.held = nn.ParameterDict({name: one for name, one in given.items() if one.is_floating_point()})

    def forward(self, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
        every = {**self.held, **given}
        return tuple(CASES[name](every) * 1.0 for name in self.names)


def inputs(batch: int, rows: int, columns: int, side: int, seed: int = 0) -> dict[str, Tensor]:
    """All that cases read; ``rows`` at least 3, ``columns`` at least 2, ``side`` at least 4."""
    draw = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    targets = torch.randint(columns, (batch * rows,), generator=draw)
    targets[0] = -100
    return {"x": some(batch, rows, columns), "y": some(batch, rows, columns), "p": some(batch, 4, side, side + 1),
            "s": some(batch, 4, side + 2), "w": some(4), "k1": some(6, 4, 3), "kg": some(4, 2, 3, 3),
            "kd": some(4, 1, 3, 3), "kt": some(4, 2, 3, 3), "kh": some(4, 3, 2), "q": some(batch, 4, rows, columns),
            "k": some(batch, 4, side, columns), "v": some(batch, 4, side, 3), "bias": some(4, rows, side),
            "m": torch.rand((batch, rows, columns), generator=draw) > 0.5,
            "i": torch.randint(0, 3, (batch, rows), generator=draw), "t": targets,
            "seen": torch.rand((batch, 1, rows, side), generator=draw) > 0.4}
