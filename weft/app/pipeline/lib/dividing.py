"""Tensor parallelism: the shards of parameters on each rank, by torch's own styles in ``tensor_parallel=``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

from weft.app.pipeline.lib.mesh import tensor_dimension
from weft.runtime.captured.captured import Captured, CaptureError, replace_tensors
from weft.runtime.captured.loss import learning
from weft.runtime.train.sharding import is_divided

if TYPE_CHECKING:
    from weft.app.pipeline.lib.options import PipelineOptions

#: Styles of ``torch.distributed.tensor.parallel`` by submodule, or a function that calls ``parallelize_module``.
TensorPlan: TypeAlias = Mapping[str, Any] | Callable[[nn.Module, Any], object]


def peers_of(options: PipelineOptions) -> Any:
    """The mesh of the ranks that share a stage's parameters; ``None`` without tensor parallelism."""
    mesh: Any = options.mesh
    return None if options.tensor_parallel is None else mesh[tensor_dimension(mesh)]


def require_plan_of_shares(module: nn.Module, options: PipelineOptions) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` for a ``tensor_parallel`` that does not apply to
    ``module``."""
    plan = options.tensor_parallel
    if plan is None:
        return
    if not isinstance(plan, Mapping):
        if not callable(plan):
            raise CaptureError(f"tensor_parallel is {type(plan).__name__}, it must be styles by submodule, "
                               "or a function of the model and a mesh")
        return
    from torch.distributed.tensor.parallel import ParallelStyle

    names = [name.split(".") for name, _ in module.named_modules()]
    for pattern, style in plan.items():
        if not isinstance(style, ParallelStyle):
            raise CaptureError(f"tensor_parallel[{pattern!r}] is {type(style).__name__}, it must be a ParallelStyle of "
                               "torch.distributed.tensor.parallel, such as ColwiseParallel()")
        tokens = str(pattern).split(".")
        if not any(len(name) == len(tokens) and all(map(fnmatch, name, tokens)) for name in names):
            raise CaptureError(f"tensor_parallel names {pattern!r}, which is no submodule of {type(module).__name__}: "
                               f"it has {', '.join('.'.join(name) for name in names[1:4])} and others")


def in_shares(captured: Captured, options: PipelineOptions) -> Captured:
    """``captured`` with this rank's shards as parameters; undivided parameters and those of a trained loss are
    replicated.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a plan that cannot be applied.
    """
    from torch.distributed.tensor import DTensor, Replicate

    mesh, loss = peers_of(options), learning(options.loss)
    shares: dict[int, Tensor] = {}
    placed = _placed(captured.model, options.tensor_parallel, mesh)
    placed.update((id(p), (name, p, Replicate())) for name, p in (() if loss is None else loss.named_parameters()))
    for own, (name, parameter, how) in placed.items():
        local = parameter.detach()
        if how.is_shard():
            if how.dim >= local.dim() or local.shape[how.dim] % mesh.size():
                raise CaptureError(f"tensor_parallel divides {name}, of {tuple(local.shape)}, along dimension "
                                   f"{how.dim} among {mesh.size()} ranks: it must be a multiple of that; leave it out, "
                                   "or give another mesh")
            local = local.chunk(mesh.size(), how.dim)[mesh.get_local_rank()].clone()
        share = DTensor.from_local(local, mesh, [how], run_check=False)
        shares[own] = nn.Parameter(share, requires_grad=parameter.requires_grad)
    if loss is not None:
        replace_tensors(loss, shares)
    return captured.with_tensors(shares)


def _placed(model: nn.Module, plan: TensorPlan | None, mesh: Any) -> dict[int, tuple[str, nn.Parameter, Any]]:
    """The materialised parameters by ``id``, each with its name and the placement that torch gives it on a copy without
    storage."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import parallelize_module

    shell = _shell(model, {})
    try:
        if isinstance(plan, Mapping):
            parallelize_module(shell, mesh, dict(plan))
        elif plan is not None:
            plan(shell, mesh)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise CaptureError(f"tensor_parallel cannot be applied: {str(error).splitlines()[0]}") from error
    there = dict(shell.named_parameters(remove_duplicate=False))
    found: dict[int, tuple[str, nn.Parameter, Any]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta:
            continue
        placed: Any = there.get(name)
        how = placed.placements[0] if is_divided(placed) else Replicate()
        if how.is_partial() or len({how, found.get(id(parameter), (name, parameter, how))[2], Replicate()}) > 2:
            raise CaptureError(f"tensor_parallel places {name} as {how!r}, which conflicts with another placement "
                               "of it or is not supported: give one of Shard and Replicate for each parameter")
        if how.is_shard() or id(parameter) not in found:
            found[id(parameter)] = name, parameter, how
    return found


def _shell(module: nn.Module, known: dict[int, Any]) -> nn.Module:
    """A copy of the modules with parameters on the meta device."""
    if id(module) in known:
        return known[id(module)]  # type: ignore[no-any-return]
    shell = known[id(module)] = copy.copy(module)
    attributes: Any = shell.__dict__
    for key, value in vars(module).items():
        if isinstance(value, dict):
            attributes[key] = value.copy()  # registrations on the copy do not change the original
    for name, parameter in module._parameters.items():
        if parameter is not None:
            attributes["_parameters"][name] = known.setdefault(id(parameter), nn.Parameter(
                parameter.detach().to("meta"), requires_grad=parameter.requires_grad))
    for name, child in module._modules.items():
        if child is not None:
            attributes["_modules"][name] = _shell(child, known)
    return shell
