"""One rank's program by itself: what is given, what is kept, fused stages, and times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.communication_programs import chunked, tensor_parallel
from tests.support.one_rank import one_rank
from weft.communication import Builder, ProgramOnRank, RankError, fuse, random_values, results, run
from weft.models.communication.functions import FUNCTIONS, Function
from weft.models.communication.program import CommunicationProgram
from weft.models.communication.search.schedules import fused_parts


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_rank():
        yield


def given(program: CommunicationProgram) -> dict[str, Tensor]:
    return {name: torch.tensor(np.asarray(value)) for name, value in random_values(program).items()}


def wanted(program: CommunicationProgram) -> Tensor:
    return torch.tensor(results(program, run(program, random_values(program)))["out"])


@pytest.mark.parametrize("compiled", [False, "eager", "no such backend"])
def test_a_fused_stage_is_one_function_and_runs_as_it_is_where_torch_cannot_compile_it(compiled: bool | str) -> None:
    program = fused_parts(tensor_parallel(1, 8, 4, 6))
    on_rank = ProgramOnRank(program, compiled=compiled)
    for _ in range(2):
        torch.testing.assert_close(on_rank.run(given(program))["out"], wanted(program), rtol=0, atol=1e-14)
    if compiled == "no such backend":
        (note,) = on_rank.notes
        assert "fused stage 'biased + kept + out' runs without torch.compile, which said: " in note
    else:
        assert not on_rank.notes
    on_rank.close()


def test_what_is_gathered_flattened_has_its_shape_inside_a_fused_stage() -> None:
    step = Builder("flat", 1, itemsize=8)
    whole = step.all_gather("whole", step.reduce_scatter("sum", step.input("x", (4, 6), "local")))
    program = step.build(step.matmul("out", whole, step.parameter("w", (6, 2))))
    program = fuse(program, ["whole", "out"])
    on_rank = ProgramOnRank(program)
    numbers = {**given(program), "x": given(program)["x"][0]}
    torch.testing.assert_close(on_rank.run(numbers)["out"], wanted(program), rtol=0, atol=1e-14)
    on_rank.close()


@pytest.mark.parametrize(("change", "sentence"), [
    ({"w": None}, "the sliced tensor 'w' of shape (4, 6) and 8 bytes an element is missing"),
    ({"w": torch.zeros(3, 6)}, "the sliced tensor 'w' of shape (4, 6) and 8 bytes an element is given in shape (3, 6)"),
    ({"b": torch.zeros(6)}, "the replicated tensor 'b' of shape (6,) and 8 bytes an element is given as torch.float32"),
    ({"b": torch.zeros(6, dtype=torch.int64)}, "is given as torch.int64"),
    ({"b": torch.zeros(6, dtype=torch.float64, device="meta")}, "is given on meta, but the program runs on cpu"),
    ({"c": torch.zeros(6)}, "the program has no tensor 'c'")])
def test_what_does_not_fit_is_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    program = tensor_parallel(1, 8, 4, 6)
    on_rank = ProgramOnRank(program)
    tensors = {name: value for name, value in {**given(program), **change}.items() if value is not None}
    with pytest.raises(ValueError) as told:
        on_rank.run(tensors)
    assert str(told.value).endswith(sentence)
    with pytest.raises(RankError, match="failed before, make it anew: "):
        on_rank.run(given(program))
    on_rank.close()


def test_a_stage_that_fails_is_named_to_the_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any, one: Tensor) -> Tensor:
        raise MemoryError(f"no room for {one.numel()} elements")

    monkeypatch.setitem(FUNCTIONS, "fails", Function("fails", 1, fail))
    builder = Builder("failing", 1, itemsize=8)
    program = builder.build(builder.pointwise("bad", "fails", builder.input("x", (4,))))
    on_rank = ProgramOnRank(program)
    with pytest.raises(MemoryError, match="no room for 4 elements"):
        on_rank.run(given(program))
    told = on_rank._executor._channels["network"].others.record.read()
    assert told == "rank 0 failed in the stage 'bad': no room for 4 elements"
    on_rank.close()


def test_what_is_kept_is_nobody_elses_memory() -> None:
    builder = Builder("slices", 1, itemsize=8)
    weight = builder.parameter("w", (4,))
    builder.update("w.next", weight, builder.input("new", (4,)))
    program = builder.build(builder.slice("part", weight))
    tensors = {"w": torch.zeros(4, dtype=torch.float64), "new": torch.ones(4, dtype=torch.float64)}
    on_rank = ProgramOnRank(program)
    found = on_rank.run(tensors)
    for tensor in tensors.values():
        tensor.fill_(9.0)
    assert found["part"].tolist() == [0.0] * 4 and on_rank.next_step(found)["w"].tolist() == [1.0] * 4
    on_rank.close()


def test_what_nobody_reads_any_more_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    program = tensor_parallel(1, 8, 4, 6)
    (program,) = chunked(program, tuple(stage.name for stage in program.stages), (4,))
    on_rank, left = ProgramOnRank(program), list[str]()
    kept = on_rank._executor._kept

    def noted(values: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        left.extend(values)
        return kept(values, tensors)
    monkeypatch.setattr(on_rank._executor, "_kept", noted)
    torch.testing.assert_close(on_rank.run(given(program))["out"], wanted(program), rtol=0, atol=1e-14)
    assert left == ["out"]
    on_rank.close()


def test_elements_that_ranks_cannot_sum_are_refused() -> None:
    builder = Builder("casts", 1)
    program = builder.build(builder.cast("byte", builder.input("x", (4,)), itemsize=1))
    with pytest.raises(ValueError, match="'byte' has elements of 1 bytes, which ranks cannot sum: take 2, 4, 8"):
        ProgramOnRank(program)


def test_casts_have_the_type_of_their_bytes() -> None:
    builder = Builder("casts", 1)
    half = builder.cast("half", builder.input("x", (4,)), itemsize=2)
    program = builder.build(half, builder.cast("double", half, itemsize=8))
    for kind in (None, torch.float16):
        on_rank = ProgramOnRank(program, half=kind)
        found = on_rank.run({"x": torch.full((4,), 1.001)})
        assert found["half"].dtype == (kind or torch.bfloat16) and found["double"].dtype == torch.float64
        on_rank.close()
