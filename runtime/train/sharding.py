"""Trained parameters divided among the copies of a plan, by torch's own ``fully_shard`` (FSDP2).

Modules keep their parameter objects. Between steps these hold nothing: each copy has its share of every parameter, a
``DTensor``, which an optimizer updates. Before a step the copies gather all shares; the memory in which ``fully_shard``
gathers them is also that of the modules' parameters. Gradients accumulate whole there, over all micro-batches; the
plan's REDUCE scatters their sums to the shares, which releases the memory of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.runtime.ranks.session import SessionError
from weft.runtime.ranks.within import called

#: Meshes by the default process group and the processes.
_MESHES: dict[tuple[object, tuple[int, ...]], Any] = {}


def is_divided(tensor: object) -> bool:
    """Whether it is a ``DTensor``, of which each rank may have a share only."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def own_share(tensor: Tensor) -> Tensor:
    """The part of ``tensor`` that counts for this rank, so that each number counts once on all ranks together: all of a
    plain one, the share of a divided one; of a replicated one, nothing except on the first of its ranks."""
    if not is_divided(tensor):
        return tensor
    divided: Any = tensor
    where = divided.device_mesh.get_coordinate()
    first = all(place == 0 for place, how in zip(where, divided.placements, strict=True) if how.is_replicate())
    local = local_of(tensor)
    return local if first else local.new_empty(0)


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of ``tensor``."""
    divided: Any = tensor
    return divided.to_local() if is_divided(tensor) else tensor


def lying_in(memory: Tensor, like: Tensor) -> Tensor:
    """``memory``, with as many numbers as this rank's part of ``like``, as a tensor divided in the same way."""
    local = memory.view_as(local_of(like))
    if not is_divided(like):
        return local
    divided: Any = like
    return type(like).from_local(local, divided.device_mesh, divided.placements, run_check=False)  # type: ignore[attr-defined,no-any-return]


def settled(gradient: Tensor, like: Tensor) -> Tensor:
    """``gradient`` divided like ``like``: before, each rank may have a partial sum of every number."""
    divided: Any = gradient
    return (divided.redistribute(placements=like.placements)  # type: ignore[attr-defined]
            if is_divided(gradient) and is_divided(like) else gradient)


class Sharding:
    """``members``, this rank's trained parameters by their stages, divided among the processes ``copies``, by their
    numbers in ``torch.distributed``.

    All of these make theirs together. The parameters are whole afterwards, until :meth:`release`. Raises
    :class:`~weft.runtime.ranks.session.SessionError` for parameters that ``fully_shard`` cannot divide.
    """

    def __init__(self, members: Mapping[tuple[int, ...], Sequence[nn.Parameter]], copies: Sequence[int],
                 device: torch.device, name_of: Callable[[nn.Parameter], str]) -> None:
        from torch.distributed.fsdp import FSDPModule

        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise SessionError(f"fully_shard needs a later torch than {torch.__version__}: leave it out, and use "
                               "ZeroRedundancyOptimizer for the optimizer's states")
        for parameter in (p for own in members.values() for p in own):
            _require_divisible(parameter, name_of)
        mesh = _mesh_of(tuple(copies), device)
        self._shares: dict[nn.Parameter, nn.Parameter] = {}
        self._shells: dict[tuple[int, ...], list[_Shell]] = {}
        for stages, parameters in members.items():
            kinds: defaultdict[torch.dtype, list[nn.Parameter]] = defaultdict(list)  # one sum is of one type
            for parameter in parameters:
                kinds[parameter.dtype].append(parameter)
            self._shells[stages] = [_Shell(own, mesh) for own in kinds.values()]
            for shell in self._shells[stages]:
                self._shares.update(zip(shell.whole, shell.shares, strict=True))

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The share of ``parameter``, which accumulates the gradients."""
        return self._shares.get(parameter, parameter)

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the optimizer updates."""
        return list(self._shares.values())

    def write_back(self) -> None:
        """Gather the shares: parameters are whole from now on."""
        for shell in self._every:
            shell.gather()

    def take(self) -> None:
        """Set the shares to the current values of the whole parameters."""
        with torch.no_grad():
            for whole, share in self._shares.items():
                share.copy_(shared_as(share, whole))

    def release(self) -> None:
        """Keep the shares only."""
        for shell in self._every:
            shell.release()

    def scatter(self, stages: tuple[int, ...]) -> None:
        """Add to each share's gradient the sum, over the copies, of the whole parameters' gradients, which are dropped.
        The parameters of ``stages`` are released too."""
        for shell in self._shells.get(stages, ()):  # none of a last stage that trains nothing
            shell.scatter()

    @property
    def _every(self) -> list[_Shell]:
        return [shell for shells in self._shells.values() for shell in shells]


def _mesh_of(copies: tuple[int, ...], device: torch.device) -> Any:
    """The mesh of these processes. It is kept as long as the default process group, and a later one has a group of the
    same name: torch caches facts on the tensors of a mesh under the group's name."""
    from torch.distributed.device_mesh import DeviceMesh

    key = dist.group.WORLD, copies
    if key not in _MESHES:
        with called(f"weft copies {'-'.join(map(str, copies))}"):
            group: Any = dist.new_group(list(copies), use_local_synchronization=True)
        _MESHES[key] = DeviceMesh.from_group(group, device.type)
    return _MESHES[key]


def shared_as(like: Tensor, whole: Tensor) -> Tensor:
    """``whole``, divided like ``like`` if that is divided. All ranks that have shares call it together."""
    if not is_divided(like) or like.shape != whole.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    divided: Any = like
    return distribute_tensor(whole.detach(), divided.device_mesh, divided.placements)


def whole_of(tensor: Tensor) -> Tensor:
    """All of a divided tensor. All ranks that have shares call it together."""
    if not is_divided(tensor):
        return tensor
    divided: Any = tensor
    found: Tensor = divided.full_tensor()
    return found


class _Shell(nn.Module):
    """Parameters of one type that are gathered and summed at once: the module that ``fully_shard`` divides. Its forward
    only makes a number whose gradients are those of the whole parameters."""

    whole: list[nn.Parameter]
    shares: list[nn.Parameter]
    summed: nn.Parameter  # how many copies used each parameter in a step, as this copy's share

    def __init__(self, parameters: Sequence[nn.Parameter], mesh: Any) -> None:
        super().__init__()
        from torch.distributed.fsdp import fully_shard

        self.__dict__["whole"] = list(parameters)
        for i, parameter in enumerate(parameters):
            self.register_parameter(str(i), parameter)
        self.uses = nn.Parameter(parameters[0].new_zeros(mesh.size(), len(parameters)))  # a row for each copy
        torchs: Any = fully_shard(self, mesh=mesh, reshard_after_forward=False)
        torchs.set_gradient_divide_factor(1.0)  # losses already have their share in the mean
        torchs.set_force_sum_reduction_for_comms(True)
        *shares, uses = self.parameters()
        self.__dict__.update(shares=shares, summed=uses)
        torchs.unshard()
        for parameter, gathered in zip((*parameters, uses), self.parameters(), strict=True):
            parameter.data = gathered.detach()  # one memory, which is allocated and released

    def gather(self) -> None:
        """Make the parameters whole, unless they are."""
        torchs: Any = self
        torchs.unshard()

    def release(self) -> None:
        """Release the whole parameters' memory."""
        torchs: Any = self
        torchs.reshard()

    def scatter(self) -> None:
        """See :meth:`Sharding.scatter`."""
        used = [float(parameter.grad is not None) for parameter in self.whole]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.whole]
        for parameter in self.whole:
            parameter.grad = None
        self([*gradients, gradients[0].new_tensor(used).expand_as(self.uses)]).backward()
        if not all(used):  # by none of the copies, it has none
            assert self.summed.grad is not None
            for share, count in zip(self.shares, local_of(self.summed.grad)[0].tolist(), strict=True):
                share.grad = share.grad if count else None
        self.summed.grad = None

    def forward(self, gradients: Sequence[Tensor]) -> Tensor:
        """A number that has ``gradients``."""
        found: Tensor = _Having.apply(gradients, *self._parameters.values())  # type: ignore[no-untyped-call]
        return found


class _Having(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return None, *ctx.gradients


def _require_divisible(parameter: nn.Parameter, name_of: Callable[[nn.Parameter], str]) -> None:
    why = ("is one number" if not parameter.dim() else
           "does not lie row by row in memory" if not parameter.is_contiguous() else
           "is complex" if parameter.is_complex() else None)
    if why is not None:
        raise SessionError(f"fully_shard cannot divide the parameter {name_of(parameter)}, which {why}: leave "
                           "fully_shard out, and use ZeroRedundancyOptimizer for the optimizer's states")
