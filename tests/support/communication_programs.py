"""Programs of computation and communication for tests that run them on ranks."""

from __future__ import annotations

from collections.abc import Iterator

from weft.communication import Builder, as_slice, data_parallel, overlap, reorder, split
from weft.models.communication.program import CommunicationProgram

CHUNKS = (1, 2, 4, 8, 16)


def tensor_parallel(ranks: int, rows: int, inner: int, columns: int) -> CommunicationProgram:
    """A matmul that is cut where it is summed, an all-reduce, bias, dropout and residual (CoCoNet's first example)."""
    builder = Builder("tensor parallel", ranks, itemsize=8)
    left = builder.input("x", (rows, inner), "sliced", 1)
    product = builder.matmul("product", left, builder.parameter("w", (inner, columns), "sliced", 0))
    total = builder.all_reduce("sum", product)
    biased = builder.pointwise("biased", "add", total, builder.parameter("b", (columns,)))
    kept = builder.dropout("kept", biased, rate=0.25, seed=3)
    return builder.build(builder.pointwise("out", "add", kept, builder.input("r", (rows, columns))))


def pipeline(ranks: int, rows: int, columns: int) -> CommunicationProgram:
    """An all-reduce whose result the next pipeline group takes (CoCoNet's third example)."""
    builder = Builder("pipeline", ranks, itemsize=8)
    total = builder.all_reduce("sum", builder.input("x", (rows, columns), "local"))
    sent = builder.send("sent", builder.pointwise("half", "scale", total, factor=0.5))
    weight = builder.parameter("w", (columns, columns), group=1)
    return builder.build(builder.matmul("out", builder.pointwise("bent", "tanh", sent), weight))


def sliced_optimizer(rule: str, ranks: int, shape: tuple[int, ...]) -> CommunicationProgram:
    """Adam or LAMB as RS-C-AG with sliced states."""
    program = split(data_parallel(rule, ranks, shape, itemsize=8), "gradient", 0)
    gather = "gather(gradient)"
    moved = [stage.name for stage in program.stages if stage.kind in ("pointwise", "norm", "update")]
    program = reorder(program, moved, gather)
    for name, tensor in list(program.tensors.items()):
        if tensor.source == "state" and tensor.layout == "replicated":
            program = as_slice(program, name)
    return program


def chunked(program: CommunicationProgram, stages: tuple[str, ...],
            counts: tuple[int, ...] = CHUNKS) -> Iterator[CommunicationProgram]:
    """``program`` with these stages in each of so many chunks."""
    for count in counts:
        yield overlap(program, stages, count)
