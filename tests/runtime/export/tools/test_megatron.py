"""Megatron-LM's own orders, by the rules of its source; and what it cannot run.

Megatron's arguments: published ones, what they mean for layers, and what is no argument.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import chain, loop, pipeline, v
from weft.runtime.export.forms import ExportError
from weft.runtime.export.tools.megatron import (
    GROUP,
    MEGATRON,
    MegatronArguments,
    arguments_of,
    megatron_orders,
    read_megatron,
)
from weft.solver import Schedule, baseline
from weft.solver.io.megatron_layout import layout_text, stages_of_layout
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


LLAMA_70B = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"


def layout_by_its_source(layout: str) -> list[str]:
    """``PipelineParallelLayerLayout.parse_str_to_list`` of Megatron-LM d98e8a6, letters left as they are."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda x: x.group(1) * int(x.group(2)), layout)
    stages = layout.split("|")
    assert set("".join(stages)) <= set("ELtm")
    return stages


@st.composite
def layouts(draw: st.DrawFn) -> tuple[str, ...]:
    """Stages of a layout, any chunks, with layers of prediction or without."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=24))
    predict = draw(st.integers(0, 2))
    words = ["t" * count for count in counts]
    words[-1] += "m" * predict
    words[0] = "E" + words[0]
    if draw(st.booleans()):
        return *words, "L"
    return *words[:-1], words[-1] + "L"


@given(layouts())
def test_a_layout_is_read_as_megatron_reads_it_and_written_so_that_it_does(stages: tuple[str, ...]) -> None:
    text = layout_text(stages)
    assert layout_by_its_source(text) == list(stages) == list(stages_of_layout(text))


@pytest.mark.parametrize("text", [LLAMA_70B, "Ett|(tt|)*29,m|L", "Et*3|(tt|)*29,m|L", "Et*4|(t*4|)*14tmL"])
def test_published_layouts_are_read_as_megatron_reads_them(text: str) -> None:
    found = layout_by_its_source(text)
    assert found == list(stages_of_layout(text)) == layout_by_its_source(layout_text(stages_of_layout(text)))


@pytest.mark.parametrize("text", [LLAMA_70B, "Ett|(tt|)*29,m|L", "Et*4|(t*4|)*14tmL"])
def test_megatrons_own_parser_reads_the_same(text: str) -> None:
    """Where it is installed (megatron-core 0.16.1 reads them so)."""
    parser = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    for own in (text, layout_text(stages_of_layout(text))):
        found = parser.PipelineParallelLayerLayout.parse_str_to_list(own)
        assert ["".join(letters[layer.name] for layer in stage) for stage in found] == list(stages_of_layout(text))


some = st.one_of(st.none(), st.integers(1, 999))


@given(st.builds(MegatronArguments, tensor=st.integers(1, 64), pipeline=st.integers(1, 64), context=st.integers(1, 9),
                 expert=st.integers(1, 9), micro_batch=some, batch=some, sequence=some, layers=some,
                 predict=st.one_of(st.none(), st.integers(0, 3)), virtual=some,
                 layout=st.one_of(st.just(()), layouts()),
                 recompute=st.sampled_from(["none", "selective", "light", "full"]), sequence_parallel=st.booleans(),
                 zero=st.one_of(st.none(), st.integers(0, 3)), group=some,
                 context_keys=st.sampled_from(["ring", "gather"]), overlap_experts=st.booleans()))
def test_what_is_written_is_read_again(arguments: MegatronArguments) -> None:
    text = arguments.text()
    assert read_megatron(text) == arguments
    assert read_megatron(" ".join(text.split("\n"))) == arguments
    settings = re.sub(r"^--([a-z-]+)(?: (.*))?$", lambda found: (
        f"model.{found[1].replace('-', '_')}={found[2] or 'true'}"), text, flags=re.MULTILINE)
    assert read_megatron(settings) == arguments


def test_what_says_nothing_of_the_plan_is_passed_over() -> None:
    found = read_megatron("torchrun pretrain_gpt.py --lr 0.0001 --tensor-model-parallel-size 4 --bf16 "
                          f"--pipeline-model-parallel-size 8 --pipeline-model-parallel-layout '{LLAMA_70B}' "
                          "--sequence-parallel --micro-batch-size 1 --recompute-granularity=selective "
                          "--tokenizer-model a=b # the end")
    assert found == MegatronArguments(tensor=4, pipeline=8, layout=stages_of_layout(LLAMA_70B), sequence_parallel=True,
                                      micro_batch=1, recompute="selective")
    assert len(found.stages(80)) == 40


@pytest.mark.parametrize(("text", "layers", "predict", "stages"), [
    ("--pipeline-model-parallel-size 2", 4, 0, ("Ett", "ttL")),
    ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", 4, 0, ("Et", "t", "t", "tL")),
    ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", 8, 1, ("Ett", "tt", "tt", "ttmL")),
    ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1", 7, 0, ("Et", "tt", "tt", "ttL")),
    ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 2",
     9, 0, ("Et", "ttt", "ttt", "ttL")),
    ("--pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split "
     "--account-for-loss-in-pipeline-split", 6, 0, ("Et", "tt", "tt", "tL")),
])
def test_what_stages_hold_where_no_layout_says_it(text: str, layers: int, predict: int,
                                                  stages: tuple[str, ...]) -> None:
    assert read_megatron(text).stages(layers, predict) == stages


@pytest.mark.parametrize(("text", "layers", "said"), [
    ("--pipeline-model-parallel-size 3", 4, "4 layers do not go evenly onto 3 ranks; give a layout"),
    ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", 8, "no multiple of 2 ranks x 3"),
    ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", 6, "rank 0 has 3 layers, which are "
                                                                                     "no multiple of its 2 chunks"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|L", 2, "3 stages, which are no multiple"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tL", 3, "has 2 layers (t), but the model "
                                                                                   "has 3"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tmL", 2, "has 1 layers of multi-token "
                                                                                    "prediction (m), but the model"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout t|tL", 2, "does not begin with E"),
    ("--pipeline-model-parallel-size 1 --pipeline-model-parallel-layout Et|tL "
     "--num-virtual-stages-per-pipeline-rank 4", 2, "2 stages on 1 ranks, 2 on each, not 4"),
])
def test_stages_that_cannot_be(text: str, layers: int, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_megatron(text).stages(layers)


@pytest.mark.parametrize(("text", "said"), [
    ("--tensor-model-parallel-size", "--tensor-model-parallel-size is missing, it must be a whole number"),
    ("--tensor-model-parallel-size four", "is four, it must be a whole number"),
    ("--pipeline-model-parallel-size 0", "is 0, it must be at least 1"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-size 4", "is 4, but 2 was said before"),
    ("--pipeline-model-parallel-layout 'Et|(tL'", "a parenthesis is not closed"),
    ("--pipeline-model-parallel-layout", "is without a value"),
    ("--recompute-granularity half", "must be one of full, selective"),
    ("--recompute-modules mlp", "--recompute-modules is 'mlp', it must have one of core_attn, layernorm, moe_act"),
    ("--cp-comm-type a2a", "--cp-comm-type is 'a2a', it must be one of p2p, all_gather"),
    ("--data-parallel-sharding-strategy all", "must be one of no_shard, optim, optim_grads, optim_grads_params"),
    ("--pipeline-model-parallel-layout Et|L --decoder-last-pipeline-num-layers 3", "layout and last both say"),
    ("--pipeline-model-parallel-layout 'Et|", "the arguments cannot be read: No closing quotation"),
])
def test_what_is_no_argument_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_megatron(text)
