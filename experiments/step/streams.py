"""How near to their bounds are streams of chunks over a GPU's lanes, and to what a plain streamer takes?

    python -m experiments.step.streams [--grids 2..12] [--slots 2..8] [--draws 1] [--seconds 4] [--output streams.json]

A stream is a square grid of chunks, each loaded into a slot of the GPU's memory and computed; a column's result is
stored before its slot is free again (:mod:`tests.oracles.streams`). Durations are drawn, and the same for all counts of
slots. The clock of a search is this process's CPU time. Writes what was found of each, and the ratios to the bound.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from tests.oracles.streams import drawn_stream, plain_streamer
from weft.solver.baselines import baseline
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Search


def searched(case: Problem, seconds: float) -> Schedule:
    """What a search of so many CPU seconds finds."""
    search = Search(case, 1, Budget(seconds=seconds, now=time.process_time))
    for _ in search.steps():
        if search.done:  # what follows gains a steady state at most
            break
    return search.result()


def solved(grid: int, slots: int, seed: int, seconds: float) -> Row:
    """What a search of ``seconds`` of CPU time finds of one stream, what it starts from, and a plain streamer's."""
    case = drawn_stream(grid, slots, seed)
    began = time.process_time()
    best, took = searched(case, seconds), time.process_time() - began
    return {"grid": grid, "slots": slots, "seed": seed, "makespan": best.makespan, "bound": best.makespan_bound,
            "known": baseline("stream", case, 1).makespan, "plain": plain_streamer(case), "seconds": round(took, 2)}


def summary(rows: Sequence[Row]) -> Row:
    """Ratios to the bound, and how often more memory or the search makes an answer worse."""
    ratios = {way: [row[way] / row["bound"] for row in rows] for way in ("makespan", "known", "plain")}
    return {"summary": {
            "problems": len(rows), "proven": sum(row["makespan"] <= row["bound"] for row in rows),
            "over_plain": sum(row["makespan"] > row["plain"] for row in rows),
            "worse_with_more_memory": sum(
                more["makespan"] > less["makespan"] for less, more in pairwise(rows)
                if (less["grid"], less["seed"]) == (more["grid"], more["seed"])),
            **{way: {"mean": mean(values), "largest": max(values)} for way, values in ratios.items()}}}


@script("streams.json", grids=range(2, 13), slots=range(2, 9), draws=1, seconds=4.0)
def main(options: Namespace, record: Record) -> None:
    record.rows((solved(grid, slots, seed, options.seconds) for grid in options.grids for seed in range(options.draws)
                 for slots in sorted(options.slots)), summary, seconds=options.seconds)
