"""The processes of a pipeline, its data-parallel copies and tensor-parallel peers, from ``mesh=``, ``group=`` and
``data=``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch import nn

from weft.runtime.captured.captured import CaptureError
from weft.runtime.ranks.words import some

if TYPE_CHECKING:
    from weft.app.pipeline.lib.options import PipelineOptions

#: Names of mesh dimensions: for copies of the model, for shards of parameters, and for stages. Processes are numbered
#: in this order, the last dimension fastest.
DATA = ("data", "dp", "dp_replicate", "replicate")
TENSOR = ("tensor", "tp")
PIPELINE = ("pipeline", "pp", "pipe", "stage")
#: Wrappers that reduce gradients themselves, by class, with the name users know.
WRAPPERS = {"DistributedDataParallel": "DistributedDataParallel", "FullyShardedDataParallel": "FSDP",
            "FSDPModule": "fully_shard"}


class Places(NamedTuple):
    """The processes by their global ranks in ``torch.distributed``, copy after copy; ``None``: all, before the process
    group exists. ``peers``: number of ranks that share the parameters of a stage."""

    numbers: tuple[int, ...] | None
    copies: int
    peers: int = 1


def places_of(options: PipelineOptions) -> Places:
    """The processes of a pipeline with ``options``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a mesh or a group that does not fit.
    """
    mesh, group, data, divided = options.mesh, options.group, options.data, options.tensor_parallel is not None
    if data is not None and (type(data) is not int or data < 1):
        raise CaptureError(f"data is {data!r:.60}, it must be a whole number of copies, at least 1")
    if mesh is not None and group is not None:
        raise CaptureError("mesh and group are both given, and both select the pipeline's ranks: give one")
    if not dist.is_initialized():
        if mesh is not None or group is not None:
            raise CaptureError("mesh and group need a process group: call torch.distributed.init_process_group before")
        if not divided:
            return Places(None, data or 1)
    if divided and not tensor_dimension(mesh):
        raise CaptureError("tensor_parallel divides parameters along a dimension of the mesh that is named tensor or "
                           f"tp: mesh has {', '.join(getattr(mesh, 'mesh_dim_names', None) or ()) or 'none'}")
    numbers, copies, peers = (_of_mesh(mesh, data) if mesh is not None else (
        dist.get_process_group_ranks(dist.group.WORLD if group is None else group), data or 1, 1))
    if peers > 1 and not divided:
        raise CaptureError(f"the mesh has {peers} ranks along {tensor_dimension(mesh)}, but nothing says what they "
                           "divide: give tensor_parallel={'layers.*.up': ColwiseParallel(), ...}, or mesh without it")
    if len(set(numbers)) != len(numbers) or any(not 0 <= number < dist.get_world_size() for number in numbers):
        raise CaptureError(f"the mesh has the ranks {some(numbers)}, but the process group has "
                           f"{dist.get_world_size()}, from 0: each is one of these, and stands there once")
    if dist.get_rank() not in numbers:
        raise CaptureError(f"rank {dist.get_rank()} is not of the mesh or group, whose ranks are {some(numbers)}: "
                           "call weft.pipeline on these alone")
    if len(numbers) % copies:
        raise CaptureError(f"data is {copies}, but {len(numbers)} ranks cannot be {copies} copies of equal size")
    return Places(tuple(numbers), copies, peers)


def tensor_dimension(mesh: Any) -> str | None:
    """The name of the dimension of ``mesh`` along which parameters are sharded, if any."""
    return next((name for name in getattr(mesh, "mesh_dim_names", None) or () if name in TENSOR), None)


def require_unwrapped(module: nn.Module) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` for a model that is already parallelised."""
    for name, part in module.named_modules():
        kinds = {kind.__name__ for kind in type(part).__mro__ if kind.__module__.startswith("torch.")}
        if found := next((what for kind, what in WRAPPERS.items() if kind in kinds), None):
            where = f"{name} is" if name else "the model is"
            raise CaptureError(f"{where} wrapped in {found} already, which would reduce gradients twice: give the "
                               "plain model, and mesh= or data= for the copies")
    for name, parameter in module.named_parameters():
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            raise CaptureError(f"the parameter {name} is a DTensor, sharded over ranks: give the model before "
                               "parallelize_module or distribute_tensor, and their plan as tensor_parallel=, "
                               "styles by submodule or a function of the model and the mesh")


def _of_mesh(mesh: Any, data: int | None) -> tuple[list[int], int, int]:
    table = getattr(mesh, "mesh", None)
    if table is None or not hasattr(table, "dim"):
        raise CaptureError(f"mesh is {type(mesh).__name__}, it must be a torch.distributed.device_mesh.DeviceMesh")
    names = tuple(getattr(mesh, "mesh_dim_names", None) or ())
    if table.dim() == 1 and not tensor_dimension(mesh):
        return table.tolist(), data or 1, 1
    kinds = [next((i for i, known in enumerate((DATA, TENSOR, PIPELINE)) if name in known), None) for name in names]
    if len(set(kinds) - {None}) != table.dim() or 2 not in kinds:
        raise CaptureError(f"the mesh has {table.dim()} dimensions, named {', '.join(names) or 'nothing'}: it must "
                           "have one, or one that is named pipeline beside others named data and tensor "
                           "(mesh['data', 'pipeline'] is such a part of a larger one)")
    copies, peers = (int(table.shape[kinds.index(kind)]) if kind in kinds else 1 for kind in (0, 1))
    if data not in (None, copies):
        raise CaptureError(f"data is {data}, but the mesh has {copies} copies: leave data out")
    order = sorted(range(table.dim()), key=lambda i: kinds[i] or 0)
    return table.permute(order).reshape(-1).tolist(), copies, peers
