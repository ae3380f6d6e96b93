"""DeepSpeed's partition, written and read, and its own order, by the rules of its source."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.builders import chain, loop, pipeline
from weft.runtime.export.forms import ExportError
from weft.runtime.export.tools.deepspeed import DEEPSPEED, deepspeed_module, read_deepspeed
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError


def steps_of_its_source(stages: int, micro_batches: int, stage: int) -> list[tuple[str, int]]:
    """``TrainSchedule.steps`` of ``runtime/pipe/schedule.py``, its computation written down from there."""
    found = []
    for step in range(2 * (micro_batches + stages - 1)):
        if step % 2 == stage % 2:
            number = (step - step % 2) // 2 - stage // 2
            kind = "F"
        elif step % 2 == 0:
            number, kind = step // 2 - stages + (stage + 1) // 2, "B"
        else:
            number, kind = (step - 1) // 2 - stages + 1 + stage // 2, "B"
        if 0 <= number < micro_batches:
            found.append((kind, number))
    return found


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (4, 2), (4, 9), (5, 7)])
def test_its_order_is_that_of_its_source(stages: int, micro_batches: int) -> None:
    layers = [[f"layer{s}"] for s in range(stages)]
    schedule = baseline("gpipe", pipeline(chain(stages)), micro_batches).with_solver(layers_of_stage=layers)
    run = DEEPSPEED.run(schedule)
    assert run.order == "1F1B"
    for stage, row in enumerate(run.schedule.orders):
        assert [(run.schedule.problem.blocks[block].kind.letter, m) for block, m in row] == steps_of_its_source(
            stages, micro_batches, stage)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 2), (4, 9)])
def test_its_source_is_written_down_right(stages: int, micro_batches: int) -> None:
    """Where DeepSpeed is installed (0.19.8 has these steps)."""
    own = pytest.importorskip("deepspeed.runtime.pipe.schedule")
    for stage in range(stages):
        passes = [type(one).__name__[0] for step in own.TrainSchedule(micro_batches, stages, stage) for one in step
                  if type(one).__name__ in ("ForwardPass", "BackwardPass")]
        assert passes == [kind for kind, _ in steps_of_its_source(stages, micro_batches, stage)]


def test_the_module_gives_each_stage_its_layers() -> None:
    """The module is run with a ``PipelineModule`` that only has what DeepSpeed's has where it partitions."""
    layers = [["embedding", "layer0"], ["layer1"], ["layer2", "head"]]
    text = deepspeed_module(DEEPSPEED.run(baseline("1f1b", pipeline(chain(3)), 4).with_solver(layers_of_stage=layers)))
    found = []

    class Coordinates:
        pipe = 0

    class Topology:
        def get_dim(self, axis: str) -> int:
            return 3

        def get_coord(self, rank: int) -> Coordinates:
            coordinates = Coordinates()
            coordinates.pipe = rank
            return coordinates

    class PipelineModule:
        parts: list[int]

        def __init__(self, rank: int) -> None:
            self._topo, self.global_rank, self._layer_specs = Topology(), rank, list(range(5))

        def _set_bounds(self, start: int, stop: int) -> None:
            found.append((start, stop))

    names: dict[str, object] = {"PipelineModule": PipelineModule}
    exec(text.replace("from deepspeed.pipe import PipelineModule", ""), names)  # what was just written
    made: type[PipelineModule] = names["PartitionedModule"]  # type: ignore[assignment]
    for rank in range(3):
        module = made(rank)
        module._partition_layers()  # type: ignore[attr-defined]
        assert module.parts == [0, 2, 3, 5]
    assert found == [*pairwise([0, 2, 3, 5])]
    short = made(0)
    short._layer_specs = [0]
    with pytest.raises(ValueError, match="these parts are of 5 layers on 3 stages, not of 1 on 3"):
        short._partition_layers()  # type: ignore[attr-defined]


def test_several_stages_a_rank_are_refused() -> None:
    with pytest.raises(ExportError, match="DeepSpeed cannot express 'uniform': its stages are on gpu0, gpu1, gpu0, gpu1"
                                          ", and it has one stage a rank only"):
        DEEPSPEED.run(baseline("interleaved", pipeline(loop(2)), 4))


@pytest.mark.parametrize(("text", "said"), [
    ("PARTS = [0]", "must be a list of whole numbers"), ("PARTS = [0, 2, 2]", "must begin with 0 and rise"),
    ("[1, 2]", "must begin with 0"), ("PARTS = [0, 'a']", "must be a list of whole numbers"),
    ("PARTS = f()", "is neither a module"), ("x = [", "is neither a module"), ("", "PARTS is None"),
    ("PARTS = [0, 1]\nMICRO_BATCHES = 0", "MICRO_BATCHES is 0"),
])
def test_what_is_no_partition_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(FormatError, match=said):
        read_deepspeed(tmp_path / "p.py")
