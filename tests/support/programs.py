"""Small models as programs, with numbers to run them on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from weft.app.plans.checking import Array
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError, PlanProgram, ProgramBuilder
from weft.plans import Layout, with_backward, with_update


def mlp(batch: int = 8, width: int = 8, hidden: int = 16, *, update: bool = False) -> PlanProgram:
    """Two products with a gelu between, and a mean of squares."""
    b = ProgramBuilder("mlp")
    x = b.input("x", (batch, width), gradient=True)
    up = b.add("up", "einsum", "b m+, m+ f -> b f", [x, b.parameter("w1", (width, hidden))])
    biased = b.add("bias", "add", "b f, f -> b f", [up, b.parameter("b1", (hidden,))])
    act = b.add("act", "gelu", "b f -> b f", [biased])
    down = b.add("down", "einsum", "b f+, f+ m -> b m", [act, b.parameter("w2", (hidden, width))])
    out = b.add("residual", "add", "b m, b m -> b m", [down, x])
    return _trained(b, b.add("loss", "einsum", "b+ m+, b+ m+ -> ", [out, out], scale=0.5 / batch), update=update)


def transformer(batch: int = 4, sequence: int = 8, width: int = 16, heads: int = 4, *, layers: int = 1,
                update: bool = False) -> PlanProgram:
    """Decoder layers with fused attention, and a loss of tokens."""
    b = ProgramBuilder("transformer")
    vocabulary, size = 24, width // heads
    x = b.add("embed", "embedding", "v+ m, b s -> b s m", [b.parameter("table", (vocabulary, width)),
                                                         b.input("tokens", (batch, sequence))])
    for i in range(layers):
        at = f"l{i}."
        y = b.add(f"{at}ln1", "norm", "b s m^, m^, m^ -> b s m^",
                  [x, b.parameter(f"{at}g1", (width,)), b.parameter(f"{at}c1", (width,))])
        q, k, v = (b.add(f"{at}{name}", "einsum", "b s m+, h d m+ -> b h s d",
                         [y, b.parameter(f"{at}w{name}", (heads, size, width))]) for name in "qkv")
        y = b.add(f"{at}attend", "attention", "b h s^ d^, b h t^ d^, b h t^ e^ -> b h s^ e^", [q, k, v],
                  causal=True)
        y = b.add(f"{at}out", "einsum", "b h+ s d+, m h+ d+ -> b s m",
                  [y, b.parameter(f"{at}wo", (width, heads, size))])
        x = b.add(f"{at}add1", "add", "b s m, b s m -> b s m", [x, y])
        y = b.add(f"{at}ln2", "norm", "b s m^, m^ -> b s m^", [x, b.parameter(f"{at}g2", (width,))], centred=False)
        y = b.add(f"{at}up", "einsum", "b s m+, f m+ -> b s f", [y, b.parameter(f"{at}wu", (4 * width, width))])
        y = b.add(f"{at}act", "gelu_tanh", "b s f -> b s f", [y])
        y = b.add(f"{at}down", "einsum", "b s f+, m f+ -> b s m", [y, b.parameter(f"{at}wd", (width, 4 * width))])
        x = b.add(f"{at}add2", "add", "b s m, b s m -> b s m", [x, y])
    logits = b.add("head", "einsum", "b s m+, v m+ -> b s v", [x, b.parameter("wh", (vocabulary, width))])
    lost = b.add("entropy", "cross_entropy", "b s v^, b s -> b s", [logits, b.input("targets", (batch, sequence))])
    return _trained(b, b.add("loss", "einsum", "b+ s+ -> ", [lost], scale=1 / batch / sequence), update=update)


def attention(batch: int = 4, sequence: int = 8, width: int = 8, heads: int = 4) -> PlanProgram:
    """Attention of plain products and a softmax, with heads that one dimension of the weights holds."""
    b = ProgramBuilder("attention")
    x, size = b.input("x", (batch, sequence, width), gradient=True), width // heads
    q, k, v = (b.add(name, "einsum", "b s m+, m+ (h d) -> b s (h d)", [x, b.parameter(f"w{name}", (width, width))],
                     sizes={"h": heads}) for name in "qkv")
    q, k, v = (b.add(f"{name}.heads", "einsum", "b s (h d) -> b h s d", [one], sizes={"h": heads})
               for name, one in zip("qkv", (q, k, v), strict=True))
    scores = b.add("scores", "einsum", "b h s d+, b h t d+ -> b h s t", [q, k], scale=size**-0.5)
    weights = b.add("softmax", "softmax", "b h s t^ -> b h s t^", [scores], over="t", causal=("s", "t"))
    mixed = b.add("mixed", "einsum", "b h s t+, b h t+ d -> b h s d", [weights, v])
    out = b.add("out", "einsum", "b h+ s d+, (h+ d+) m -> b s m", [mixed, b.parameter("wo", (width, width))])
    return _trained(b, b.add("loss", "einsum", "b+ s+ m+, b+ s+ m+ -> ", [out, out], scale=0.5))


def convolutions(batch: int = 4, channels: int = 4, side: int = 6) -> PlanProgram:
    """Two convolutions with a relu between, averaged."""
    b = ProgramBuilder("convolutions")
    x = b.input("x", (batch, 2, side, side), gradient=True)
    how = "n c+ y^ z^, o c+ p^ q^ -> n o u^ w^"
    y = b.add("conv1", "convolution", how, [x, b.parameter("k1", (channels, 2, 3, 3))],
              sizes={"u": side, "w": side}, padding=(1, 1))
    y = b.add("bias", "add", "n o u w, o -> n o u w", [y, b.parameter("b1", (channels,))])
    y = b.add("relu", "relu", "n o u w -> n o u w", [y])
    half = (side - 3) // 2 + 1
    y = b.add("conv2", "convolution", how, [y, b.parameter("k2", (8, channels, 3, 3))],
              sizes={"u": half, "w": half}, stride=(2, 2))
    y = b.add("mean", "einsum", "n o u+ w+ -> n o", [y], scale=1 / half**2)
    return _trained(b, b.add("loss", "einsum", "n+ o+, n+ o+ -> ", [y, y]))


def experts(tokens: int = 8, width: int = 8, count: int = 4, hidden: int = 8) -> PlanProgram:
    """A gate of the two best experts, every token through all of them with the gate's weight; groups of tokens."""
    b = ProgramBuilder("experts")
    x = b.input("x", (2, tokens, width), gradient=True)
    scores = b.add("scores", "einsum", "g t m+, m+ e -> g t e", [x, b.parameter("gate", (width, count))])
    gates = b.add("gates", "top_k", "g t e^ -> g t e^", [scores], k=2)
    sent = b.add("dispatch", "einsum", "g t e, g t m -> e g t m", [gates, x])
    y = b.add("up", "einsum", "e g t m+, e m+ f -> e g t f", [sent, b.parameter("w1", (count, width, hidden))])
    y = b.add("act", "silu", "e g t f -> e g t f", [y])
    y = b.add("down", "einsum", "e g t f+, e f+ m -> e g t m", [y, b.parameter("w2", (count, hidden, width))])
    out = b.add("combine", "einsum", "e+ g t m, g t e+ -> g t m", [y, gates])
    return _trained(b, b.add("loss", "einsum", "g+ t+ m+, g+ t+ m+ -> ", [out, out], scale=0.5))


def _trained(b: ProgramBuilder, loss: str, *, update: bool = False) -> PlanProgram:
    program = with_backward(b.build(loss))
    return with_update(program, "adam", rate=0.1) if update else program


def numbers(program: PlanProgram, seed: int = 0) -> dict[str, Array]:
    """Random values of all that a program is given; indices stay small."""
    numbers_of = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, tensor in program.tensors.items():
        if tensor.source == "operator":
            continue
        if name in ("tokens", "targets"):
            found[name] = numbers_of.integers(0, 24, tensor.shape)
        elif tensor.source == "state":
            found[name] = np.zeros(tensor.shape)
        else:
            found[name] = numbers_of.standard_normal(tensor.shape) if tensor.shape else np.ones(())
    return found


def random_plan(program: PlanProgram, draw: random.Random, devices: int = 4) -> TransformPlan:
    """Every operator cut, copied and placed at random on some of so many devices."""
    plan = TransformPlan(program)
    if draw.random() < 0.5:
        forwards = [operation.name for operation in program.operations if operation.phase == "forward"]
        plan.recompute(" ".join(draw.sample(forwards, 2)))
    for operation in plan.program.operations:
        if operation.phase != "forward":
            continue
        count = 1
        for _ in range(draw.randint(0, 2)):
            name = draw.choice(operation.annotation.names) if operation.annotation.names else "none"
            in_turn = draw.random() < 0.2 or 2 * count > devices
            try:
                plan.split(operation.name, name, 2, in_turn=in_turn)
                count *= 1 if in_turn else 2
            except PlanError:
                continue
        if count == 1 < devices and draw.random() < 0.3:
            plan.replicate(operation.name, 2)
            count = 2
        in_order = draw.random() < 0.7
        plan.assign(operation.name, range(count) if in_order else draw.sample(range(devices), count))
    return plan


def layouts_over(devices: int, dimensions: int) -> Iterator[Layout]:
    """All layouts of a tensor of so many dimensions over so many devices."""
    def factored(rest: int, roles: int) -> Iterator[tuple[int, ...]]:
        if roles == 1:
            yield (rest,)
            return
        for first in range(1, rest + 1):
            if rest % first == 0:
                yield from ((first, *others) for others in factored(rest // first, roles - 1))

    for replicas, values, *splits in factored(devices, dimensions + 2):
        yield Layout(replicas, values, tuple(splits))
