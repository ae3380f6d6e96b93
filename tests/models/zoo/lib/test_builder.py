"""What a builder works out for every operator: bytes of its passes, gradients, names."""

from __future__ import annotations

from weft.models.graph.operators import Split, Work
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved


def test_bytes_of_each_pass_follow_from_what_is_read_kept_and_written() -> None:
    b = GraphBuilder("one", dtype="float16")
    ids = b.input("ids", (4,), "int64")
    with b.layer("first"):
        x = b.tensor("x", (4, 8))
        b.add("embedding", "x", [ids], [x], parameters=[b.parameter("table", 10, 8)],
              saved=Saved([ids], deferred=[ids]))
    with b.layer("second"):
        y, mask = b.tensor("y", (4, 2)), b.tensor("mask", (4, 2), "bool")
        weight = b.parameter("weight", 2, 8)
        b.add("linear", "y", [x], [y], work=Passes(100.0, input_flops=50.0), parameters=[weight],
              saved=Saved([x, mask], deferred=[x], internal=[mask]), splits=[Split("output", 1, {}, {y.name: 1})])
    first, second = b.graph(y).operators
    assert (first.name, second.name, weight.name) == ("first.x", "second.y", "second.weight")
    assert first.input_grad is None and first.weight_grad == Work(0.0, 64 + 32, 160)  # nothing flows back to numbers
    assert second.forward == Work(100.0, 64 + 32, 16 + 8)
    assert second.input_grad == Work(50.0, 16 + 64 + 8 + 32, 64)
    assert second.weight_grad == Work(100.0, 16 + 64, 32)
    assert second.keeps == ("first.x", "second.mask") and second.deferred == ("first.x",)
    assert second.splits == ()  # one part is no split


def test_forward_only_operators_share_the_parameters_of_another_layer() -> None:
    b = GraphBuilder("one")
    x = b.input("x", (4, 8))
    with b.layer("early"), b.forward_only("late"):
        y = b.tensor("y", (4, 8))
        b.add("linear", "y", [x], [y], parameters=[b.parameter("weight", 8, 8)], saved=Saved([x], deferred=[x]))
    with b.layer("late"):
        z = b.tensor("z", (4, 8))
        b.add("linear", "z", [y], [z], parameters=[b.parameter("weight", 8, 8)], saved=Saved([y], deferred=[y]))
    early, late = b.graph(z).operators
    assert early.parameters == late.parameters and early.weight_grad is None and early.keeps == ()
    assert late.input_grad is None and late.weight_grad is not None  # what is read has no gradient
