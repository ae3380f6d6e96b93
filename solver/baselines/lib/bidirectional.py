"""Recognising two pipelines that share their devices, one running down them and one up.

DualPipe, Chimera and BitPipe keep two copies of the model, one in either direction. As a block problem one
"micro-batch" is then a pair: two chains that do not wait for each other, with each stage of the second on device p - 1
- d if that of the first is on device d. With one stage a device that is a chain down the devices and one up; with
several, two loops, Vs or waves that begin at opposite ends. The second copy of every weight is static memory, not part
of the block problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.solver.baselines.lib.base import NotApplicable, Row, require_training
from weft.solver.pipeline import Stage, shape_of
from weft.solver.problem import Problem
from weft.solver.relations.graph import joined


def both_ways(problem: Problem, *, split: bool, several: bool = False) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """The stages of the pipeline that begins on the first device and of the one that begins on the last, each in the
    order of its forwards.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` with the reason if ``problem`` is not two training
    pipelines in opposite directions over an even number of devices (``split``: with split backwards), each with one
    stage a device, or with ``several``.
    """
    p = len(problem.devices)
    alone = ({i} for i in range(len(problem.blocks)))
    parts = [sorted(part) for part in joined([*alone, *({i, j} for i, j, _ in problem.dependencies())])]
    if len(parts) != 2:
        raise NotApplicable("it needs two replicas of the model, one down the devices and one up, as two chains of "
                            f"blocks that do not wait for each other; this problem has {len(parts)}")
    if p % 2:
        raise NotApplicable(f"it needs an even number of devices, not {p}")
    down, up = sorted((_stages(problem, part, split) for part in parts), key=lambda stages: stages[0].device)
    if [p - 1 - stage.device for stage in up] != [stage.device for stage in down]:
        raise NotApplicable("it needs each stage of one chain on the device opposite to that of the other chain's, "
                            f"such as gpu{p - 1} for gpu0")
    shape = shape_of([stage.device for stage in down], p)
    if not several and shape != "chain":
        raise NotApplicable("it needs one chain with a stage on each device in device order, and one in reverse order")
    if several and shape not in ("loop", "v", "wave"):
        raise NotApplicable("it needs two stages or more of each chain on each device, in a loop or back and forth")
    return down, up


def _stages(problem: Problem, part: list[int], split: bool) -> tuple[Stage, ...]:
    pipeline = require_training(replace(problem, blocks=tuple(problem.blocks[i] for i in part)), split=split)

    def there(block: int | None) -> int | None:
        return None if block is None else part[block]

    return tuple(Stage(part[stage.forward], there(stage.backward), there(stage.input_grad), there(stage.weight_grad),
                       stage.device) for stage in pipeline.stages)


def in_slots(down: Sequence[Stage], up: Sequence[Stage], p: int, micro_batches: int) -> list[Row]:
    """Per-device orders of both directions, merged in slots of equal length, in units of p / 2 micro-batches.

    A micro-batch runs its 2 S forwards and backwards in as many slots, in both directions at once, and the next one of
    its unit follows two slots later. Each way along the devices, p slots long, uses every other slot of a device; it
    meets its mirror image, which begins p - 1 - d slots from its end, on the others as p is even; and it begins at the
    end of the one before, two slots after the last micro-batch's. So no two collide, and the next unit begins at the
    end of this one, 2 S slots later.
    """
    slots: list[list[tuple[int, tuple[int, ...], int]]] = [[] for _ in range(p)]  # slot, blocks, micro-batch
    for stages in (down, up):
        for s, stage in enumerate(stages):
            for m in range(micro_batches):
                unit, place = divmod(m, p // 2)
                begin = 2 * (unit * len(stages) + place)
                slots[stage.device].append((begin + s, (stage.forward,), m))
                slots[stage.device].append((begin + 2 * len(stages) - 1 - s, stage.blocks[1:], m))
    return [[(block, m) for _, blocks, m in sorted(row) for block in blocks] for row in slots]
