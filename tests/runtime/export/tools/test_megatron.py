"""Megatron-LM's own orders, by the rules of its source; and what it cannot run."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, loop, pipeline, v
from weft.runtime.export.refusal import ExportError
from weft.runtime.export.tools.megatron import GROUP, MEGATRON, arguments_of, megatron_orders
from weft.runtime.export.tools.megatron_arguments import read_megatron
from weft.solver import Schedule, baseline
from weft.solver.io.megatron_layout import layout_text
from weft.solver.pipeline import Pipeline


def by_its_source(p: int, chunks: int, micro_batches: int, group: int, rank: int) -> list[tuple[str, int, int]]:
    """The steps of a rank, (F or B, chunk, micro-batch): ``get_pp_rank_microbatches`` and ``get_schedule_table`` of
    ``pipeline_parallel/schedules.py``, written down from there."""
    table = [(m, chunk) for first in range(0, micro_batches, group) for chunk in range(chunks)
             for m in range(first, min(first + group, micro_batches))]
    warm_up = p - rank - 1 if chunks == 1 else 2 * (p - rank - 1) + (chunks - 1) * group
    total = micro_batches * chunks
    warm_up = min(warm_up, total)

    def forward(k: int) -> tuple[str, int, int]:
        return "F", table[k][1], table[k][0]

    def backward(k: int) -> tuple[str, int, int]:
        return "B", chunks - 1 - table[k][1], table[k][0]

    steps = [forward(k) for k in range(warm_up)]
    for k in range(total - warm_up):
        steps += [forward(k + warm_up), backward(k)]
    return steps + [backward(k) for k in range(total - warm_up, total)]


@pytest.mark.parametrize(("p", "chunks", "micro_batches"), [
    (1, 1, 3), (4, 1, 2), (4, 1, 9), (2, 2, 2), (4, 2, 8), (4, 3, 8), (3, 2, 7), (4, 2, 12), (2, 5, 6)])
def test_its_orders_are_those_of_its_source(p: int, chunks: int, micro_batches: int) -> None:
    found = Pipeline.of(pipeline(loop(p, chunks)))
    letters = {block: ("F" if block == stage.forward else "B", s // p)
               for s, stage in enumerate(found.stages) for block in stage.blocks}
    made = [*megatron_orders(found, micro_batches)]
    assert made and all(p <= order.settings.get(GROUP, p) <= max(p, micro_batches) for order in made)
    for order in made:
        group = order.settings.get(GROUP, p)
        for rank, row in enumerate(order.orders):
            assert [(*letters[block], m) for block, m in row] == by_its_source(p, chunks, micro_batches, group, rank)


def test_a_last_group_that_its_source_refuses_is_not_made() -> None:
    """7 micro-batches in groups of 3 leave one, fewer than the 3 ranks: only all 7 together are left."""
    assert [order.settings for order in megatron_orders(Pipeline.of(pipeline(loop(3))), 7)] == [{GROUP: 7}]


def with_layers(schedule: Schedule, *stages: str) -> Schedule:
    names = {"E": "embedding", "t": "layer", "m": "predict", "L": "head"}
    return schedule.with_solver(layers_of_stage=[[f"{names[letter]}{i}" for i, letter in enumerate(word)]
                                                 for word in stages])


def test_split_backwards_are_run_whole_and_cost_what_that_costs() -> None:
    """On unit times ZB-H1 fills its ramp with weight gradients; in 1F1B every stage waits for whole backwards."""
    found = with_layers(baseline("zb-h1", pipeline(chain(4), split=(1, 1)), 8), "Ett", "tt", "tt", "tL")
    run = MEGATRON.run(found)
    assert run.order == "1F1B" and run.schedule.makespan == 3 * 8 + 3 * 3 > found.makespan
    assert {block.kind.letter for block in run.schedule.problem.blocks} == {"F", "B"}
    again = baseline("1f1b", pipeline(chain(4), backward=2), 8)
    assert run.schedule.makespan == again.makespan


def test_a_larger_group_is_told_where_it_is_shorter_or_the_only_one() -> None:
    found = with_layers(baseline("interleaved", pipeline(loop(3)), 7), *("Et", "t", "t", "t", "t", "tL"))
    run = MEGATRON.run(found)
    assert run.settings == {GROUP: 7} and "--microbatch-group-size-per-virtual-pipeline-stage 7\n" in arguments_of(
        run).text()


def test_prediction_is_where_megatron_has_it() -> None:
    one = baseline("1f1b", pipeline(chain(3)), 4)
    assert layout_text(arguments_of(MEGATRON.run(with_layers(one, "Ett", "ttt", "mL"))).layout) == "Et*2|t*3|mL"
    for stages, said in ((("Ett", "tm", "mL"), "are on stages 1, 2, and there all are on one"),
                         (("Etm", "mm", "L"), "are on stages 0, 1")):
        with pytest.raises(ExportError, match=said):
            MEGATRON.run(with_layers(one, *stages))
    looped = baseline("interleaved", pipeline(loop(2)), 4)
    with pytest.raises(ExportError, match="is on stage 1 of 4, and there it is on the last chunk of a rank"):
        MEGATRON.run(with_layers(looped, "Et", "tm", "", "L"))


def test_what_it_cannot_run_is_said_by_name() -> None:
    full = with_layers(baseline("gpipe", pipeline(chain(4), memory=4), 4), "Et", "t", "t", "L")
    assert MEGATRON.run(full).schedule.makespan == 21
    tight = Schedule(pipeline(chain(4), memory=3), 4, full.operations, 0.0)
    for schedule, said in (
            (with_layers(baseline("interleaved", pipeline(loop(4)), 3), "Et", *("t",) * 6, "L"),
             "3 micro-batches are fewer than its 4 ranks"),
            (with_layers(tight, "Et", "t", "t", "L"), "Megatron-LM cannot run 'uniform': 1F1B: device 'gpu0'"),
            (full.with_solver(memory_plan={}), "decided operator by operator"),
            (with_layers(baseline("greedy", pipeline(chain(2), backward=None), 2), "Et", "L"), "it has no backward"),
            (with_layers(baseline("gpipe", pipeline(v(2)), 2), "Et", "t", "t", "L"), "stages round and round only")):
        with pytest.raises(ExportError, match=said):
            MEGATRON.run(schedule)


def test_a_grid_says_the_other_degrees() -> None:
    schedule = with_layers(baseline("1f1b", pipeline(chain(2)), 8), "Ett", "ttL")
    grid = {"tensor": 4, "pipeline": 2, "virtual": 1, "data": 16, "expert": 1, "context": 2, "zero": 2,
            "recompute": "selective", "micro_batch": 3, "sequence_parallel": True, "micro_batches": 8,
            "context_keys": "gather", "overlap_experts": True}
    told = arguments_of(MEGATRON.run(schedule.with_solver(grid=grid)))
    assert (told.tensor, told.pipeline, told.context, told.zero, told.recompute) == (4, 2, 2, 2, "selective")
    assert (told.micro_batch, told.batch, told.sequence_parallel) == (3, 8 * 3 * 16, True)
    assert (told.context_keys, told.overlap_experts) == ("gather", True)
    assert read_megatron(told.text()) == told
