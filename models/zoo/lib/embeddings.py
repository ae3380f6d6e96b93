"""Learned tables: embeddings of tokens and positions, and biases for attention scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.models.graph.operators import Parameter, Split, Tensor, Work
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved, along_rows


def embedding(b: GraphBuilder, ids: Tensor, table: Parameter, *, positions: int | Parameter = 0, dropout: bool = False,
              types: int = 0) -> Tensor:
    """Rows of ``table`` by number; ``ids`` is (batch, sequence).

    ``positions``: so many learned positions are added (0: none), or those of another layer's table.

    Split by vocabulary every device looks up the rows it holds, and the terms are added up; the gradient of the table
    is dense, as frameworks make it.
    """
    name, (entries, width) = "tokens", table.shape
    place = (positions,) if isinstance(positions, Parameter) else (
        b.parameter(f"{name}.positions", positions, width),) if positions else ()
    if types:
        place = (*place, b.parameter(f"{name}.types", types, width))
    y = b.tensor(name, (*ids.shape, width))
    names = frozenset(p.name for p in (table, *place))
    mask = [b.tensor(f"{name}.mask", y.shape, "bool")] if dropout and b.dropout else []
    last = len(y.shape) - 1
    b.add("embedding", name, [ids], [y],
          work=Passes(forward=Work(float(math.prod(y.shape)), ids.bytes + y.bytes, y.bytes),
                      weight_grad=Work(float(math.prod(y.shape)), y.bytes + ids.bytes,
                                       sum(p.bytes for p in (table, *place)) + y.bytes)),
          parameters=(table, *place), saved=Saved([ids, *mask], deferred=[ids, *mask], internal=mask),
          splits=[*along_rows(b, ids, y),
                  Split("vocabulary", entries, {}, {y.name: "partial"}, frozenset({table.name})),
                  Split("hidden", width, {}, {y.name: last}, names)])
    return y


def placed(b: GraphBuilder, x: Tensor, tables: Sequence[Parameter], *, extra: int = 0) -> Tensor:
    """Learned positions added, behind ``extra`` learned entries in front, such as one of the class."""
    y = b.tensor("places", (x.shape[0], x.shape[1] + extra, x.shape[2]))
    b.add("add", "places", [x], [y], work=Passes(float(math.prod(y.shape))), parameters=tables,
          saved=Saved(deferred=[]), splits=[b.along("batch", 0, [x], [y])])
    return y


def first(b: GraphBuilder, x: Tensor, name: str) -> Tensor:
    """The first token of every sequence: a view."""
    y = b.tensor(name, (x.shape[0], x.shape[2]), base=x)
    b.add("select", name, [x], [y], work=Passes(forward=Work(), input_grad=Work(0, y.bytes, x.bytes)),
          splits=[b.along("batch", 0, [x], [y])])
    return y


def relative_bias(b: GraphBuilder, heads: int, shape: tuple[int, int], entries: int) -> Tensor:
    """A bias for every head and every pair of positions, looked up in a learned table of ``entries``."""
    y = b.tensor("relative_bias", (heads, *shape))
    table = b.parameter("relative_bias.weight", entries, heads)
    b.add("relative_bias", "relative_bias", [], [y],
          work=Passes(forward=Work(0, table.bytes, y.bytes), weight_grad=Work(float(y.bytes), y.bytes, table.bytes)),
          parameters=[table], saved=Saved(deferred=[]),
          splits=[Split("heads", heads, {}, {y.name: 0}, frozenset({table.name}))])
    return y
