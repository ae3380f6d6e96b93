"""Stages measured by several ranks of this host concurrently, so that the figures include their contention.

Alone, a stage has all of the host's caches, memory bandwidth and power; in a run its neighbours work too, and it is
slower. So as many processes as the plan has ranks here measure all stages, starting together, and a process that has
finished continues to work until all have. Before each pass a rank reads as much memory as its share of the model's
weights and gradients, as in a run where other stages' passes come between two of one stage. Ranks measure the stages
several times and begin with different ones, so that each is measured beside different stages. The median of each figure
counts; memory is the same on all ranks.

Run as a program (``python -m weft.app.profile.ranks STAGES FOLDER DEVICE REPEATS``), this file is one of the ranks.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from weft.app.profile.targets import ProfileFault, device_name, load_stages
from weft.runtime.measure.measure import Sample
from weft.runtime.measure.measure_stages import measure_stages, measured_ties
from weft.runtime.measure.stage_costs import MeasuredStages, PassCost, load_stage_costs, save_stage_costs
from weft.runtime.ranks.launch import end_all_if_one_fails, launch_local

WEEK = 7 * 24 * 3600.0  # seconds: no measurement takes longer
MISTAKE = 2  # exit code of a rank that has reported a user error
ROUNDS = 4  # how often each rank measures all stages
LOOK = 0.02  # seconds between two checks of the others


def profile_together(stages: str, ranks: int, *, repeats: int, device: str) -> MeasuredStages:
    """The stages returned by ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``, measured by ``ranks`` processes concurrently.

    On GPUs rank r uses GPU r, modulo their number. Raises :class:`~weft.app.profile.targets.ProfileFault` if a rank
    fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        ended = launch_local(ranks, [sys.executable, "-m", __name__, stages, folder, device, str(repeats)],
                             timeout=WEEK, beside=end_all_if_one_fails)
        failed = {rank: end for rank, end in enumerate(ended) if end.code > 0}  # the others were killed because of it
        for rank, end in sorted(failed.items(), key=lambda item: item[1].code != MISTAKE):
            reason = end.errors.splitlines()[-1] if end.errors else f"it ended with code {end.code}"
            raise ProfileFault(reason if end.code == MISTAKE else f"rank {rank} failed while measuring: {reason}")
        if any(end.code for end in ended):
            raise ProfileFault("a rank was killed while measuring: perhaps for want of memory")
        found = [load_stage_costs(Path(folder) / f"{rank}.json") for rank in range(ranks)]
    together = _combined(found)
    return replace(together, device=f"{together.device}, {ranks} at once")


def _combined(found: Sequence[MeasuredStages]) -> MeasuredStages:
    """The median of every time, and the largest spread."""
    def sample(samples: Sequence[Sample]) -> Sample:
        return Sample(statistics.median(each.seconds for each in samples), max(each.spread for each in samples),
                      sum(each.repeats for each in samples))

    stages = []
    for costs in zip(*(each.stages for each in found), strict=True):
        first = next((cost for cost in costs if cost.skipped is not None), costs[0])
        passes: dict[str, Mapping[str, PassCost]] = {
            mode: {letter: replace(run, time=sample([cost.passes[mode][letter].time for cost in costs]))
                   for letter, run in letters.items()} for mode, letters in first.passes.items()}
        stages.append(replace(first, passes=passes))
    return replace(found[0], stages=tuple(stages))


def rank_main(stages: str, folder: Path, device: str, repeats: int) -> None:
    """Measure alongside the other ranks."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = torch.device("cuda", rank % torch.cuda.device_count()) if device == "cuda" else torch.device(device)
    training = load_stages(stages)
    (folder / f"{rank}.ready").touch()
    while not _all(folder, "ready", ranks):
        time.sleep(LOOK)
    held = 2 * sum(p.numel() * p.element_size() for s in training.stages for p in training.stages[s].parameters())
    count = len(training.stages)
    found = []
    for number in range(ROUNDS):  # a different stage from the neighbour's in every round
        begin = (count * rank // ranks + count * number // ROUNDS) % count
        costs = measure_stages(training, device=where, repeats=repeats, held=held // ranks, begin=begin)
        found.append(MeasuredStages(device_name(where), torch.__version__, tuple(costs), measured_ties(training)))
    save_stage_costs(_combined(found), folder / f"{rank}.json")
    while not _all(folder, "json", ranks):  # the others need a busy neighbour
        measure_stages(training, device=where, repeats=1, held=held // ranks)


def _all(folder: Path, suffix: str, ranks: int) -> bool:
    return all((folder / f"{rank}.{suffix}").exists() for rank in range(ranks))


if __name__ == "__main__":
    try:
        rank_main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(MISTAKE)
