"""Programs of computation and communication, and random ones with random passes, for their tests and measures."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.communication import Builder, Prices, as_slice, fuse, overlap, reorder, split
from weft.models.communication.interpreter import Array, random_values, results, run
from weft.models.communication.program import CommunicationError, CommunicationProgram, Kind


def tensor_parallel(ranks: int = 4, rows: int = 16, inner: int = 8, columns: int = 16) -> CommunicationProgram:
    """A matmul cut where it is summed, its all-reduce, and what follows it in a transformer's block."""
    step = Builder("tensor parallel", ranks)
    x = step.input("x", (rows, inner), "sliced", 1)
    w = step.parameter("w", (inner, columns), "sliced", 0)
    total = step.all_reduce("total", step.matmul("xw", x, w))
    biased = step.pointwise("biased", "add", total, step.parameter("bias", (columns,)))
    dropped = step.dropout("dropped", biased, rate=0.25, seed=3)
    return step.build(step.pointwise("out", "add", dropped, step.input("residual", (rows, columns))))


def pipelined(ranks: int = 2, shape: tuple[int, int] = (8, 12)) -> CommunicationProgram:
    """An all-reduce in one pipeline group, the send to the next, and computation there."""
    step = Builder("pipelined", ranks)
    total = step.all_reduce("total", step.input("partial", shape, "local"))
    there = step.send("there", total)
    biased = step.pointwise("biased", "add", there, step.parameter("bias", shape[1:], group=1))
    dropped = step.dropout("dropped", biased, rate=0.1, seed=1)
    return step.build(step.pointwise("out", "add", dropped, step.input("residual", shape, group=1)))


def chunked_collective(compute: float, collective: float, after: float, launch: float) -> tuple[CommunicationProgram,
                                                                                                Prices]:
    """A matmul, an all-reduce and something pointwise, of so many microseconds each; ``launch`` in microseconds too."""
    step = Builder("chunked collective", 2)
    x, w = step.input("x", (64, 64), "sliced", 1), step.parameter("w", (64, 64), "sliced", 0)
    program = step.build(step.pointwise("after", "gelu", step.all_reduce("sum", step.matmul("compute", x, w))))
    size = program.tensors["sum"].bytes
    return program, Prices(bandwidth=size / collective * 1e6, memory=2 * size / after * 1e6, launch=launch / 1e6,
                           compute={"compute": compute / 1e6})


def error(one: CommunicationProgram, other: CommunicationProgram, given: Mapping[str, Any] | None = None) -> float:
    """The largest difference between what two programs give of the same numbers, as a share of the largest of these
    where that is above 1; infinite where they give different tensors, or no numbers."""
    given = random_values(one) if given is None else given
    expected, found = results(one, run(one, given)), results(other, run(other, given))
    if expected.keys() != found.keys():
        return float("inf")
    return max((_difference(np.asarray(expected[name]), np.asarray(found[name])) for name in expected), default=0.0)


def _difference(expected: Array, found: Array) -> float:
    if expected.shape != found.shape or not np.isfinite(found).all():
        return float("inf")
    largest = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    return float(np.max(np.abs(expected - found), initial=0.0)) / largest


def random_program(draw: random.Random) -> CommunicationProgram:
    """Up to a dozen stages on 2 to 4 ranks, all layouts among them; every tensor that nothing reads is an output."""
    ranks = draw.choice([2, 3, 4])
    step = Builder("random", ranks)
    square, row = (24, 24), (24,)
    step.input("local", square, "local")
    step.input("cut", square, "sliced", 1)
    step.parameter("weight", square)
    step.parameter("rows", square, "sliced", 0)
    step.parameter("bias", row)
    step.state("state", square)
    step.all_reduce("sum", "local")
    for number in range(draw.randint(4, 12)):
        try:
            _add_any(step, f"s{number}", draw)
        except CommunicationError:
            continue  # operands that do not go together
    read_by = {name for stage in step.stages for name in stage.inputs}
    made = [stage.outputs[0] for stage in step.stages]
    return step.build(*[name for name in made if name not in read_by and (name not in step.carried)])


_ANY: Sequence[Kind] = ("pointwise", "pointwise", "pointwise", "pointwise", "all_reduce", "all_reduce", "all_reduce",
                        "matmul", "norm", "dropout", "cast", "send", "reduce_scatter", "all_gather", "slice", "update")


def _add_any(step: Builder, name: str, draw: random.Random) -> None:
    """A stage of any kind that reads some of the last tensors."""
    def read() -> str:
        return draw.choice([*list(step.tensors)[-4:], "sum", draw.choice(list(step.tensors))])

    kind = draw.choice(_ANY)
    if kind == "pointwise":
        function = draw.choice(["add", "mul", "tanh", "gelu", "scale"])
        operands = [read() for _ in range(2 if function in ("add", "mul") else 1)]
        step.pointwise(name, function, *operands, **({"factor": 0.5} if function == "scale" else {}))
    elif kind == "update":
        step.update(name, draw.choice(["state", "weight"]), read())
    else:
        cut = {"axis": draw.choice([None, 0, 1])}
        attributes: dict[str, dict[str, Any]] = {"dropout": {"rate": 0.3, "seed": len(step.stages)},
                                                 "cast": {"itemsize": 4}, "slice": cut, "reduce_scatter": cut}
        step.add(name, kind, [read() for _ in range(2 if kind == "matmul" else 1)], **attributes.get(kind, {}))


def random_pass(program: CommunicationProgram, draw: random.Random) -> CommunicationProgram:
    """One pass with random arguments. Raises :class:`CommunicationError` where it is not legal, which it often is."""
    names = list(program.by_name)

    def some(least: int, most: int) -> Sequence[str]:
        """Stages that are likely to hang together: a walk along what reads what, and perhaps another."""
        found = [draw.choice(names)]
        for _ in range(draw.randint(least - 1, most)):
            behind = [reader for name in program.stage(found[-1]).outputs for reader in program.readers[name]]
            found.append(draw.choice(behind or names))
        return list(dict.fromkeys(found))

    def of(kind: str) -> str:
        return draw.choice([stage.name for stage in program.stages if stage.kind == kind] or names)

    splits = ["split"] * 4 if not of("all_gather").startswith("gather(") else []
    match draw.choice([*splits, "reorder", "reorder", "reorder", "as_slice", "fuse", "overlap", "overlap"]):
        case "split":
            return split(program, of("all_reduce"), draw.choice([None, 0, 1]),
                         into="reduce" if draw.random() < 0.1 else "reduce_scatter")
        case "reorder":
            gather = of("all_gather")
            behind = [reader for name in program.stage(gather).outputs for reader in program.readers[name]]
            first = draw.choice(behind or names)
            also = [reader for name in program.stage(first).outputs for reader in program.readers[name]]
            return reorder(program, {first, *draw.sample(also, min(len(also), draw.randint(0, 2)))}, gather)
        case "as_slice":
            return as_slice(program, draw.choice(list(program.tensors)))
        case "fuse":
            return fuse(program, some(2, 4))
        case _:
            return overlap(program, some(2, 3), draw.choice([1, 2, 3, 4]))


def steps(program: CommunicationProgram, given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The :func:`results` of several steps: what is carried in each goes into the next, which ``given`` adds to."""
    held: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for inputs in given:
        found = results(program, run(program, {**inputs, **held}))
        held = {old: found[f"next {old}"] for old in program.carried.values()}
    return found
