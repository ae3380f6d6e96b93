"""Hanayo: stages in waves down the devices and back, so that a ramp's idle times are those of a short stage.

Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training Efficiency", SC 2023,
section 3. With w waves each device has 2w stages and m = p micro-batches pass as one wave front; the bubble is at most
the share (2p - 2) / (3pw + p - 1) of the step with B = 2F, and no device stores more than all p micro-batches, as in
1F1B's first. The order is that of the wave front in slots of F = 1 and B = 2, the older micro-batch first; with more
micro-batches than devices the next enter as the first leave.

Half a wave runs too: stages may end at a turn, with an odd number of stages a device. Younger micro-batches may be more
urgent than in the wave front, which is better for long runs. If backwards are split, weight gradients run after them,
as in the paper, or fill idle time: slots of 1 each. If p micro-batches exceed the devices' memory, fewer are in flight.
The shortest that fits is taken.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate

from weft.solver.baselines.lib.base import NotApplicable, Row, require_training
from weft.solver.baselines.lib.building_block import BuildingBlock, StepChain
from weft.solver.baselines.lib.choosing import best_of
from weft.solver.baselines.lib.extend import extended
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem

#: Slots between micro-batches for each stage of a device: the wave front's, and shorter ones for more micro-batches
#: than devices (on uniform stages, 3 to 8 devices, 3 to 6 ways, idle times fall by 10 to 40 %).
_SLOTS = (2.0, 1.5, 1.0)
#: The same if no micro-batch may overlap the memory of the ones before it: all of a micro-batch's slots.
_APART = 3.0


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline whose stages run down the devices and back, twice or more in all.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    pipeline = require_training(problem)
    p, devices = len(problem.devices), [stage.device for stage in pipeline.stages]
    alone = p == 1 and len(devices) > 1  # every way along one device is a wave
    if pipeline.shape not in ("v", "wave") and not alone:
        raise NotApplicable("it needs the stages in waves, down the devices and back, with the first device first")
    manners = (True, False) if pipeline.is_split else (True,)
    fewer = sorted({max(1, p * quarters // 4) for quarters in (3, 2, 1)} - {p}, reverse=True)
    usual = [(p, slots, whole) for slots in _SLOTS for whole in manners]
    less = [(held, slots * p / held, whole) for held in fewer for slots in (_SLOTS[0], _APART) for whole in manners]
    makers = [partial(extended, problem, make=partial(_rows, pipeline, held=held, slots=slots, whole=whole))
              for held, slots, whole in (*usual, *less)]
    return best_of(problem, micro_batches, makers[:len(usual)], makers[len(usual):])


def _rows(pipeline: Pipeline, micro_batches: int, *, held: int, slots: float, whole: bool) -> list[Row] | None:
    """At most ``held`` micro-batches in flight, ``slots`` for each of a device's stages from one micro-batch to the
    next in the order of preference; ``whole``: both parts of a split backward back to back."""
    p = len(pipeline.problem.devices)
    ways = len(pipeline.stages) // p
    chain = StepChain.uniform(pipeline, whole=whole)
    block = BuildingBlock((0.0, *accumulate(chain.duration[:-1])), slots * ways)
    made = chain.run(block, micro_batches, [ways * held] * p)
    if made is None or not whole:
        return None if made is None else made.rows
    weights = {stage.gradient[0]: stage.weights for stage in pipeline.stages if stage.gradient}
    return [[(part, m) for block, m in row for part in (block, *weights.get(block, ()))] for row in made.rows]
