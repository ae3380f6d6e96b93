"""The pipeline of a grid as a spec of its own, and how it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest

from weft.models import Spec, SpecError, parse_spec
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.grid.degrees import Degrees
from weft.models.grid.pipeline import (
    balanced_cut,
    even_cut,
    given_cut,
    grid_space,
    pipeline_candidate,
    pipeline_spec,
)
from weft.models.grid.step_end import static_of

SPEC = """\
model: {{family: gpt, layers: 8, hidden: 1024, heads: 16, vocabulary: 32000, sequence: 2048}}
cluster: {{gpus: {gpus}, device: a100, gpus_per_machine: 8}}
training: {{global_batch_size: 64}}
parallel: {parallel}
{more}
"""


def spec_of(parallel: str = "auto", *, gpus: int = 32, more: str = "") -> Spec:
    return parse_spec(SPEC.format(parallel=parallel, gpus=gpus, more=more))


def sizes(cut: tuple[int, ...]) -> list[int]:
    return [last - first for first, last in pairwise(cut)]


def test_layers_are_dealt_out_evenly_with_the_ends_on_the_first_and_the_last_stage() -> None:
    assert sizes(even_cut(98, 8)) == [13, 12, 12, 12, 12, 12, 12, 13]
    assert sizes(even_cut(63, 4)) == [16, 16, 15, 16]
    assert sizes(even_cut(10, 10)) == [1] * 10
    assert sizes(even_cut(10, 1)) == [10]


def test_a_heavy_end_gives_layers_away() -> None:
    loads = [0.0, *[1.0] * 16, 3.0]
    found = balanced_cut(even_cut(18, 4), loads, 4)
    assert sizes(found) == [6, 5, 5, 2] or max(
        sum(loads[first:last]) for first, last in pairwise(found)) == 5.0
    even = even_cut(18, 4)
    assert balanced_cut(even, [0.0, *[1.0] * 16, 0.0], 4) == even


def test_a_heavy_end_gives_its_own_stages_layers_away() -> None:
    """Of a GPU's chunks the longest one keeps all behind it waiting."""
    loads = [0.0, *[1.0] * 80, 1.5]
    found = sizes(balanced_cut(even_cut(82, 40), loads, 8))
    assert found[0] == 3 and found[-1] == 2 and sorted(found[1:-1]) == [2] * 37 + [3]


def test_a_stage_is_what_one_of_its_gpus_has() -> None:
    spec = spec_of()
    space, degrees = grid_space(spec), Degrees(tensor=2, pipeline=4, data=4, zero=1)
    own = pipeline_spec(spec, space, degrees)
    assert (own.cluster.gpus, own.micro_batches) == (4, 16)
    assert own.cluster.bandwidth == 25e9  # 8 GPUs of a stage fill a machine
    found = pipeline_candidate(own, even_cut(10, 4), "full")
    assert found is not None
    ranks = space.ranks.of(degrees)
    by_name = {layer.cost.name: layer for layer in ranks}
    stages = [[by_name[name] for name in names] for names in found.layers_of_stage]
    assert list(found.static_memory) == [sum(static_of(layer, degrees, space.size) for layer in stage)
                                         for stage in stages]
    assert [layer.name for layer in gpu_costs(own).layers[0]] == [layer.cost.name for layer in ranks]


def test_stages_of_one_machine_send_within_it() -> None:
    spec = spec_of()
    own = pipeline_spec(spec, grid_space(spec), Degrees(tensor=2, pipeline=16))
    assert own.cluster.gpus_per_machine == 4
    assert (own.cluster.bandwidth, own.cluster.machine_bandwidth) == (300e9, 25e9)


def test_a_layout_is_that_of_the_pipeline() -> None:
    spec = spec_of("{tensor: 2, pipeline: 4, virtual: 2, data: 4, expert: 1, context: 1, zero: 1, recompute: none, "
                   "micro_batch: 1}", more='placement: {layout: "Et|(t|)*5,t|t,L", chunks: 2}')
    space = grid_space(spec)
    fixed = space.fixed()
    assert fixed is not None
    own = pipeline_spec(spec, space, fixed)
    assert sizes(given_cut(spec, own) or ()) == [2, 1, 1, 1, 1, 1, 1, 2]


def test_what_no_grid_is_for() -> None:
    with pytest.raises(SpecError, match=r"give parallel\.pipeline and virtual, whose product is that"):
        grid_space(spec_of(more="placement: {cut: [5, 5]}"))
    with pytest.raises(SpecError, match="computes in 16 bits"):
        grid_space(parse_spec(SPEC.format(parallel="auto", gpus=8, more="").replace(
            "global_batch_size: 64", "global_batch_size: 64, parameter_bytes: 4")))
    with pytest.raises(SpecError, match=r"for decoders \(families gpt and moe\), not for encoder"):
        grid_space(parse_spec(SPEC.format(parallel="auto", gpus=8, more="").replace("family: gpt", "family: encoder")))


def test_what_does_not_fit_is_no_candidate() -> None:
    spec = spec_of(more="")
    tight = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"memory": (2 * 1024**3,)})})
    own = pipeline_spec(tight, grid_space(tight), Degrees(pipeline=2, data=16))
    assert pipeline_candidate(own, even_cut(10, 2), "full") is None
