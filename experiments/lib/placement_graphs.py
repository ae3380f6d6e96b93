"""Operator graphs of the size and shape of published ones, from a seed: for measuring placement where the originals
cannot be had.

Times, memory and transfers are drawn, not measured; what is true to life is the shape (branches, skips, weights as
leaves, backward twins), the number of operators, and the proportion of transfers to work.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from weft.solver.placement.problem import DeviceKind, Node, PlacementProblem, PlacementTensor


class _Sketch:
    """A forward graph that is being drawn; :meth:`problem` mirrors it for training."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names: list[str] = []
        self.times: list[float] = []
        self.memory: list[float] = []
        self.consumers: list[list[int]] = []
        self.transfer: list[float] = []

    def add(self, name: str, inputs: list[int], time: float, transfer: float, memory: float = 1.0) -> int:
        index = len(self.names)
        self.names.append(f"{name}.{index}")
        self.times.append(round(time * self.chance.uniform(0.7, 1.4), 6))
        self.memory.append(round(memory * self.chance.uniform(0.7, 1.4), 3))
        self.transfer.append(round(transfer * self.chance.uniform(0.8, 1.25), 6))
        self.consumers.append([])
        for producer in inputs:
            self.consumers[producer].append(index)
        return index

    def chain(self, names: tuple[str, ...], at: int, time: float, transfer: float) -> int:
        for name in names:
            heavy = name in ("conv", "matmul", "separable")
            at = self.add(name, [at], time if heavy else time * 0.06, transfer)
        return at

    def problem(self, name: str, accelerators: int, *, training: bool, memory: float | None = None) -> PlacementProblem:
        """On ``accelerators`` devices and one CPU, ten times as slow and free of transfers; ``memory`` a device, as a
        multiple of an equal share."""
        nodes = [Node(n, (t, 10 * t), m, 0.0, n if training else None)
                 for n, t, m in zip(self.names, self.times, self.memory, strict=True)]
        tensors = [PlacementTensor(i, tuple(to), cost) for i, (to, cost) in
                   enumerate(zip(self.consumers, self.transfer, strict=True)) if to]
        if training:
            count = len(nodes)
            nodes += [Node(f"{n}.grad", (1.9 * t, 19 * t), 0.4 * m, 0.0, n, True)
                      for n, t, m in zip(self.names, self.times, self.memory, strict=True)]
            tensors += [PlacementTensor(count + target, (count + source,), self.transfer[source])
                        for source, targets in enumerate(self.consumers) for target in targets]
        limit = None if memory is None else memory * sum(node.resident for node in nodes) / accelerators
        kinds = (DeviceKind("accelerator", accelerators, limit), DeviceKind("cpu", 1, None, 0.0))
        return PlacementProblem(name, kinds, tuple(nodes), tuple(tensors))


def inception_like(accelerators: int = 6, *, training: bool = True, blocks: int = 11, seed: int = 1,
                   memory: float | None = None) -> PlacementProblem:
    """Blocks of four branches of convolutions (each with normalisation and activation) between concatenations."""
    sketch = _Sketch(seed)
    unit = ("conv", "norm", "relu")
    at = sketch.chain(unit * 5, sketch.add("input", [], 0.0, 0.2), 1.5, 0.2)
    for block in range(blocks):
        work, move = sketch.chance.uniform(0.4, 1.2), 0.15 * 0.85**block
        ends = [sketch.chain(unit * length, at, work, move) for length in (1, 2, 3, 2)]
        at = sketch.add("concat", ends, 0.02, move * 2)
    sketch.chain(("pool", "matmul", "softmax"), at, 0.3, 0.01)
    return sketch.problem(f"inception-like, {len(sketch.names)} layers" + (", training" if training else ""),
                          accelerators, training=training, memory=memory)


def bert_like(accelerators: int = 8, *, layers: int = 12, training: bool = True, seed: int = 2,
              memory: float | None = None) -> PlacementProblem:
    """Transformer layers as single operators, weights and biases as leaves, one mask read by every layer."""
    sketch = _Sketch(seed)
    mask = sketch.add("mask", [], 0.01, 0.05)

    def dense(name: str, source: int, time: float, width: float) -> int:
        weight = sketch.add(f"{name}.weight", [], 0.0, 0.4 * width, 4 * width)
        bias = sketch.add(f"{name}.bias", [], 0.0, 0.0005, 0.01)
        product = sketch.add(f"{name}.matmul", [source, weight], time, 0.25 * width)
        return sketch.add(f"{name}.add", [product, bias], 0.05 * time, 0.25 * width)

    def normed(name: str, a: int, b: int) -> int:
        total = sketch.add(f"{name}.residual", [a, b], 0.05, 0.25)
        mean = sketch.add(f"{name}.mean", [total], 0.03, 0.001)
        centred = sketch.add(f"{name}.sub", [total, mean], 0.03, 0.25)
        square = sketch.add(f"{name}.pow", [centred, sketch.add(f"{name}.two", [], 0.0, 0.0001, 0.01)], 0.03, 0.25)
        root = sketch.add(f"{name}.sqrt", [sketch.add(f"{name}.var", [square], 0.03, 0.001)], 0.01, 0.001)
        scaled = sketch.add(f"{name}.div", [centred, root], 0.04, 0.25)
        gamma = sketch.add(f"{name}.gamma", [], 0.0, 0.0005, 0.01)
        beta = sketch.add(f"{name}.beta", [], 0.0, 0.0005, 0.01)
        return sketch.add(f"{name}.shift", [sketch.add(f"{name}.scale", [scaled, gamma], 0.03, 0.25), beta], 0.03, 0.25)

    at = sketch.add("embedding", [sketch.add("tokens", [], 0.0, 0.001)], 0.6, 0.25, 12.0)
    for layer in range(layers):
        head = f"layer{layer}"
        parts = []
        for name in ("query", "key", "value"):
            flat = dense(f"{head}.{name}", at, 0.5, 1.0)
            shaped = sketch.add(f"{head}.{name}.reshape", [flat], 0.01, 0.25)
            parts.append(sketch.add(f"{head}.{name}.transpose", [shaped], 0.02, 0.25))
        scores = sketch.add(f"{head}.scores", parts[:2], 0.3, 0.5)
        for name in ("scale", "masked", "softmax", "dropout"):
            scores = sketch.add(f"{head}.{name}", [scores, mask] if name == "masked" else [scores], 0.06, 0.5)
        context = sketch.add(f"{head}.context", [scores, parts[2]], 0.3, 0.25)
        merged = sketch.chain(("transpose", "reshape"), context, 0.3, 0.25)
        attended = normed(f"{head}.norm1", at, dense(f"{head}.output", merged, 0.5, 1.0))
        wide = dense(f"{head}.up", attended, 2.0, 2.0)
        wide = sketch.chain(("div", "erf", "add", "mul", "mul"), wide, 1.0, 1.0)
        at = normed(f"{head}.norm2", attended, dense(f"{head}.down", wide, 2.0, 1.0))
    sketch.add("loss", [dense("classifier", at, 1.0, 1.0)], 0.1, 0.001)
    size = len(sketch.names) * (2 if training else 1)
    return sketch.problem(f"bert-like, {layers} layers, {size} operators" + (", training" if training else ""),
                          accelerators, training=training, memory=memory)


def nasnet_like(accelerators: int = 8, *, cells: int = 18, seed: int = 3, memory: float | None = None
                ) -> PlacementProblem:
    """Cells of five sums of two separable convolutions each, that read the two cells before them."""
    sketch = _Sketch(seed)
    before = sketch.add("stem", [sketch.add("input", [], 0.0, 0.2)], 0.5, 0.2)
    at = sketch.chain(("conv", "norm"), before, 0.5, 0.2)
    unit = ("relu", "depthwise", "separable", "norm") * 2
    for cell in range(cells):
        move = 0.12 * 0.96**cell
        left = sketch.chain(("relu", "conv", "norm"), before, 0.1, move)
        right = sketch.chain(("relu", "conv", "norm"), at, 0.1, move)
        sums = []
        for a, b in ((right, left), (left, right), (left, left), (right, right), (right, left)):
            ends = [sketch.chain(unit if sketch.chance.random() < 0.7 else ("pool",), source, 0.15, move)
                    for source in (a, b)]
            sums.append(sketch.add(f"cell{cell}.add", ends, 0.02, move))
        before, at = at, sketch.add(f"cell{cell}.concat", sums, 0.02, move * 3)
    sketch.chain(("pool", "matmul", "softmax"), at, 0.1, 0.01)
    return sketch.problem(f"nasnet-like, {len(sketch.names)} operators", accelerators, training=False, memory=memory)


#: Name -> problem, in growing size.
GRAPHS: dict[str, Callable[[], PlacementProblem]] = {
    "inception, 6 accelerators": lambda: inception_like(6),
    "inception, 8 accelerators": lambda: inception_like(8),
    "inception, 16 accelerators": lambda: inception_like(16),
    "inception, 8 accelerators, tight memory": lambda: inception_like(8, memory=1.1),
    "nasnet, 8 accelerators": lambda: nasnet_like(8),
    "bert, 2,012 operators, 6 accelerators": lambda: bert_like(6, layers=15),
    "bert, 2,012 operators, 14 accelerators": lambda: bert_like(14, layers=15),
    "bert, 2,012 operators, 14 accelerators, tight memory": lambda: bert_like(14, layers=15, memory=1.1),
    "bert, 10,000 operators, 8 accelerators": lambda: bert_like(8, layers=149, training=False),
    "bert, 10,000 operators, 16 accelerators": lambda: bert_like(16, layers=149, training=False),
    "inception, 10,000 operators, 16 accelerators": lambda: inception_like(16, blocks=400, training=False),
}
