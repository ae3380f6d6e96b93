"""GPUs that compute together as one rank of a pipeline: tensor parallelism beside pipeline parallelism."""

from __future__ import annotations

from dataclasses import replace

from weft.runtime.export.refusal import ExportError, require_one_kind
from weft.solver.problem import Block, Device
from weft.solver.schedule import Schedule


def as_ranks(schedule: Schedule, tool: str, *, unequal: bool = False) -> tuple[Schedule, int]:
    """``schedule`` with GPUs that run the same blocks as one device, and the number of GPUs of each device (the least
    one, if they may be ``unequal``).

    Raises :class:`~weft.runtime.export.refusal.ExportError`, on behalf of ``tool``, for groups of unequal sizes and for
    blocks on several groups: tools have one degree of tensor parallelism for all stages.
    """
    require_one_kind(schedule, tool)
    problem = schedule.problem
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, blocks in enumerate(problem.blocks_on):
        groups.setdefault(blocks, []).append(device)
    if len(groups) == len(problem.devices):
        return schedule, 1
    members = [*groups.values()]
    rank_of = {device: rank for rank, group in enumerate(members) for device in group}
    for block in problem.blocks:
        if len({rank_of[device] for device in block.devices}) > 1:
            raise ExportError(f"{tool} cannot express {problem.name!r}: block {block.name!r} runs on "
                              f"{len(block.devices)} devices of which some run other blocks alone, and there every "
                              "stage is on a group of GPUs of its own")
    sizes = sorted({len(group) for group in members})
    if len(sizes) > 1 and not unequal:
        raise ExportError(f"{tool} cannot express {problem.name!r}: its stages are on groups of "
                          f"{' and '.join(map(str, sizes))} GPUs, and there all are on equally many (one degree of "
                          "tensor parallelism)")
    devices = tuple(Device("-".join(dict.fromkeys((problem.devices[group[0]].name, problem.devices[group[-1]].name))),
                           problem.devices[group[0]].memory, problem.devices[group[0]].static) for group in members)

    def on_rank(block: Block) -> Block:
        first = min(block.devices)
        return replace(block, devices=(rank_of[first],), memory=(block.memory_on(first),),
                       workspace=(block.workspace_on(first),))

    by_gpu = {key: schedule.solver[key] for key in ("static_memory", "gpu_memory", "gradients_freed")
              if key in schedule.solver}
    return replace(schedule, problem=replace(problem, devices=devices, blocks=tuple(map(on_rank, problem.blocks)))
                   ).with_solver(**{key: [value[group[0]] for group in members]
                                    for key, value in by_gpu.items()}), sizes[0]
