"""What layers are called in Megatron-LM's layouts and torchtitan's settings."""

from __future__ import annotations

import itertools
import tomllib
from typing import Any

import pytest

from tests.support.builders import chain, loop, pipeline, v
from weft.runtime.export.forms import ExportError
from weft.runtime.export.tools.megatron import MEGATRON, arguments_of
from weft.runtime.export.tools.torchtitan import torchtitan_settings
from weft.solver import Schedule, baseline
from weft.solver.io.megatron_layout import layout_text

LAYERS = ["embedding", *(f"layer{i}" for i in range(6)), "head"]


def megatron_layout(schedule: Schedule) -> str:
    return layout_text(arguments_of(MEGATRON.run(schedule)).layout)


def cut(*ends: int) -> list[list[str]]:
    return [LAYERS[a:b] for a, b in itertools.pairwise((0, *ends))]


def with_layers(schedule: Schedule, *ends: int) -> Schedule:
    return schedule.with_solver(layers_of_stage=cut(*ends))


def test_megatrons_layout_holds_every_layer_in_its_stage() -> None:
    schedule = with_layers(baseline("1f1b", pipeline(chain(4)), 4), 3, 5, 6, 8)
    assert megatron_layout(schedule) == "Et*2|t*2|t|tL"
    looped = with_layers(baseline("interleaved", pipeline(loop(2)), 4), 1, 4, 7, 8)
    assert megatron_layout(looped) == "E|(t*3|)*2L"
    assert arguments_of(MEGATRON.run(looped)).text() == ('--pipeline-model-parallel-size 2\n'
                                                         '--pipeline-model-parallel-layout "E|(t*3|)*2L"\n')


def test_torchtitans_own_names_stay() -> None:
    names = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
    schedule = baseline("1f1b", pipeline(chain(2)), 2).with_solver(layers_of_stage=names)
    assert tomllib.loads(torchtitan_settings(schedule, "o.csv"))["parallelism"]["module_fqns_per_model_part"] == names
    assert megatron_layout(schedule) == "Et|tL"


@pytest.mark.parametrize(("layers", "message"), [
    (None, "the schedule does not say which layers its stages hold; solve a model spec"),
    ([["a"]], "the schedule does not say which layers"),
    ([["conv1", "layer0"], ["head"]], "layer 'conv1' is not called as an embedding is"),
    ([["embed", "layer0"], ["layer1"]], "layer 'layer1' is not called as an output head is"),
    ([["embed", "norm"], ["head"]], "its head is layers 'norm', 'head', which are not all on the last stage"),
    ([["embed", "norm", "layer1"], ["head"]], "layer 'norm' is in the middle"),
])
def test_layers_they_have_no_word_for_are_refused(layers: Any, message: str) -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 2).with_solver(layers_of_stage=layers)
    for tool, export in (("Megatron-LM", megatron_layout),
                         ("torchtitan", lambda schedule: torchtitan_settings(schedule, "o.csv"))):
        with pytest.raises(ExportError, match=f"{tool} cannot express 'uniform': {message}"):
            export(schedule)


def test_placements_they_have_no_rule_for_are_refused() -> None:
    folded = with_layers(baseline("gpipe", pipeline(v(2)), 2), 2, 4, 6, 8)
    with pytest.raises(ExportError, match="its stages are on gpu0, gpu1, gpu1, gpu0, and it has one stage a rank or "
                                          "stages round and round only"):
        megatron_layout(folded)
    uneven = with_layers(baseline("gpipe", pipeline([0, 1, 0]), 2), 2, 4, 8)
    for export in (megatron_layout, lambda schedule: torchtitan_settings(schedule, "o.csv")):
        with pytest.raises(ExportError, match="its stages are on gpu0, gpu1, gpu0, and it has one stage a rank or"):
            export(uneven)
