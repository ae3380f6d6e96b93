"""Which processes a pipeline runs on, and in how many copies: as ``mesh=``, ``group=`` and ``data=`` say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch import nn

from weft.runtime.captured.captured import CaptureError

if TYPE_CHECKING:
    from weft.app.pipeline.lib.options import PipelineOptions

__all__ = ["Places", "places_of", "require_unwrapped"]

#: What the dimensions of a mesh may be called: along which the model is cut, and along which its copies lie.
PIPELINE = ("pipeline", "pp", "pipe", "stage")
DATA = ("data", "dp", "dp_replicate", "replicate")
#: Wrappers that sum gradients themselves, by class, and where they are made.
WRAPPERS = {"DistributedDataParallel": "DistributedDataParallel", "FullyShardedDataParallel": "FSDP",
            "FSDPModule": "fully_shard"}


class Places(NamedTuple):
    """The processes by their numbers in ``torch.distributed``, copy after copy; ``None``: all that there will be, once
    they have joined."""

    numbers: tuple[int, ...] | None
    copies: int


def places_of(options: PipelineOptions) -> Places:
    """The processes of a pipeline with ``options``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a mesh or a group that does not fit.
    """
    mesh, group, data = options.mesh, options.group, options.data
    if data is not None and (type(data) is not int or data < 1):
        raise CaptureError(f"data is {data!r:.60}, it must be a whole number of copies, at least 1")
    if mesh is not None and group is not None:
        raise CaptureError("mesh and group are given, which both say on which ranks the pipeline runs: give one")
    if not dist.is_initialized():
        if mesh is not None or group is not None:
            raise CaptureError("mesh and group need the process group that they are of: call "
                               "torch.distributed.init_process_group before")
        return Places(None, data or 1)
    numbers, copies = (_of_mesh(mesh, data) if mesh is not None else
                       (dist.get_process_group_ranks(dist.group.WORLD if group is None else group), data or 1))
    if len(set(numbers)) != len(numbers) or any(not 0 <= number < dist.get_world_size() for number in numbers):
        raise CaptureError(f"the mesh has the ranks {_shown(numbers)}, but the process group has {_ranks()}: each is "
                           "one of these, and stands there once")
    if dist.get_rank() not in numbers:
        raise CaptureError(f"rank {dist.get_rank()} is not of the mesh or group, whose ranks are {_shown(numbers)}: "
                           "call weft.pipeline on these alone")
    if len(numbers) % copies:
        raise CaptureError(f"data is {copies}, but {len(numbers)} ranks cannot be {copies} copies of equal size")
    return Places(tuple(numbers), copies)


def require_unwrapped(module: nn.Module) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` for a model that something else trains on several
    ranks."""
    for name, part in module.named_modules():
        kinds = {kind.__name__ for kind in type(part).__mro__ if kind.__module__.startswith("torch.")}
        if found := next((what for kind, what in WRAPPERS.items() if kind in kinds), None):
            where = f"{name} is" if name else "the model is"
            raise CaptureError(f"{where} wrapped in {found} already, which would sum gradients a second time: give the "
                               "plain model, and mesh= or data= for the copies")
    for name, parameter in module.named_parameters():
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            raise CaptureError(f"the parameter {name} is a DTensor, a share of which each rank has: stages are plain "
                               "modules, so give the model before parallelize_module or distribute_tensor")


def _of_mesh(mesh: Any, data: int | None) -> tuple[list[int], int]:
    table = getattr(mesh, "mesh", None)
    if table is None or not hasattr(table, "dim"):
        raise CaptureError(f"mesh is {type(mesh).__name__}, it must be a torch.distributed.device_mesh.DeviceMesh")
    names = tuple(getattr(mesh, "mesh_dim_names", None) or ())
    if table.dim() == 1:
        return table.tolist(), data or 1
    along = [i for i, name in enumerate(names) if name in PIPELINE]
    copies = [i for i, name in enumerate(names) if name in DATA]
    if table.dim() != 2 or len(along) != 1 or len(copies) != 1:
        raise CaptureError(f"the mesh has {table.dim()} dimensions, named {', '.join(names) or 'nothing'}: it must "
                           "have one, or two, of which one is named data and one pipeline (mesh['data', 'pipeline'] is "
                           "such a part of a larger one)")
    size = int(table.shape[copies[0]])
    if data not in (None, size):
        raise CaptureError(f"data is {data}, but the mesh has {size} along {names[copies[0]]}: leave data out")
    return table.permute(copies[0], along[0]).reshape(-1).tolist(), size


def _ranks() -> str:
    return f"{dist.get_world_size()}, from 0"


def _shown(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
