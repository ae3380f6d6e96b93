"""Trained parameters divided among the copies of a plan, by torch's own ``fully_shard`` (FSDP2).

Modules keep the parameter objects that they have. Between steps these hold nothing: each copy has its share of every
parameter, a ``DTensor``, which an optimizer updates. Before a step the copies gather all shares; the memory that
``fully_shard`` gathers them in is also the modules' parameters'. Gradients gather whole there, over all micro-batches;
the plan's REDUCE scatters their sums to the shares, which gives the memory of both back.
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

#: By the process group that there is and the processes: the mesh of these.
_MESHES: dict[tuple[object, tuple[int, ...]], Any] = {}


def is_divided(tensor: object) -> bool:
    """Whether it is a ``DTensor``, of which each rank may have a share only."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def own_share(tensor: Tensor) -> Tensor:
    """What of ``tensor`` counts for this rank, so that each number counts once on all ranks together: all of a plain
    one, the share of a divided one; of what several ranks have, nothing but on the first of them."""
    if not is_divided(tensor):
        return tensor
    divided: Any = tensor
    where = divided.device_mesh.get_coordinate()
    first = all(place == 0 for place, how in zip(where, divided.placements, strict=True) if how.is_replicate())
    local = local_of(tensor)
    return local if first else local.new_empty(0)


def local_of(tensor: Tensor) -> Tensor:
    """What this rank has of ``tensor``."""
    divided: Any = tensor
    return divided.to_local() if is_divided(tensor) else tensor


def lying_in(memory: Tensor, like: Tensor) -> Tensor:
    """``memory``, which has as many numbers as this rank has of ``like``, as a tensor that is divided as that."""
    local = memory.view_as(local_of(like))
    if not is_divided(like):
        return local
    divided: Any = like
    return type(like).from_local(local, divided.device_mesh, divided.placements, run_check=False)  # type: ignore[attr-defined,no-any-return]


def settled(gradient: Tensor, like: Tensor) -> Tensor:
    """``gradient`` divided as ``like``: of a sum, each rank has a part of every number until here."""
    divided: Any = gradient
    return (divided.redistribute(placements=like.placements)  # type: ignore[attr-defined]
            if is_divided(gradient) and is_divided(like) else gradient)


class Sharding:
    """``members``, this rank's trained parameters by the stages that hold them, divided among the processes
    ``copies``, by their numbers in ``torch.distributed``.

    All of these make theirs together. The parameters are whole afterwards, until :meth:`release`. Raises
    :class:`~weft.runtime.ranks.session.SessionError` for what ``fully_shard`` cannot divide.
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
        """The share of ``parameter``, which gathers the gradients."""
        return self._shares.get(parameter, parameter)

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer updates."""
        return list(self._shares.values())

    def write_back(self) -> None:
        """Gather the shares: parameters are whole from here on."""
        for shell in self._every:
            shell.gather()

    def take(self) -> None:
        """Let the shares be those of what the whole parameters are now."""
        with torch.no_grad():
            for whole, share in self._shares.items():
                share.copy_(shared_as(share, whole))

    def release(self) -> None:
        """Keep the shares only."""
        for shell in self._every:
            shell.release()

    def scatter(self, stages: tuple[int, ...]) -> None:
        """Add to each share's gradient the sum, over the copies, of what the whole parameters' are; these go. The
        parameters that ``stages`` hold are given back too."""
        for shell in self._shells[stages]:
            shell.scatter()

    @property
    def _every(self) -> list[_Shell]:
        return [shell for shells in self._shells.values() for shell in shells]


def _mesh_of(copies: tuple[int, ...], device: torch.device) -> Any:
    """The mesh of these processes. It stays as long as the process group that there is, and one that is made later has
    a group of the same name: torch keeps what it knows of the tensors of a mesh, with the group's name."""
    from torch.distributed.device_mesh import DeviceMesh

    key = dist.group.WORLD, copies
    if key not in _MESHES:
        with called(f"weft copies {'-'.join(map(str, copies))}"):
            group: Any = dist.new_group(list(copies), use_local_synchronization=True)
        _MESHES[key] = DeviceMesh.from_group(group, device.type)
    return _MESHES[key]


def shared_as(like: Tensor, whole: Tensor) -> Tensor:
    """``whole``, divided as ``like`` is where that is divided. All ranks that have shares ask together."""
    if not is_divided(like) or like.shape != whole.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    divided: Any = like
    return distribute_tensor(whole.detach(), divided.device_mesh, divided.placements)


def whole_of(tensor: Tensor) -> Tensor:
    """All of a divided tensor. All ranks that have shares ask together."""
    if not is_divided(tensor):
        return tensor
    divided: Any = tensor
    found: Tensor = divided.full_tensor()
    return found


class _Shell(nn.Module):
    """Parameters of one type that are gathered and summed at once: the module that ``fully_shard`` divides. It computes
    nothing but a number whose gradients are those that the whole parameters have."""

    whole: list[nn.Parameter]
    shares: list[nn.Parameter]

    def __init__(self, parameters: Sequence[nn.Parameter], mesh: Any) -> None:
        super().__init__()
        from torch.distributed.fsdp import fully_shard

        self.__dict__["whole"] = list(parameters)
        for i, parameter in enumerate(parameters):
            self.register_parameter(str(i), parameter)
        torchs: Any = fully_shard(self, mesh=mesh, reshard_after_forward=False)
        torchs.set_gradient_divide_factor(1.0)  # losses have their share in the mean
        torchs.set_force_sum_reduction_for_comms(True)
        self.__dict__["shares"] = list(self.parameters())
        torchs.unshard()
        for parameter, gathered in zip(parameters, self.parameters(), strict=True):
            parameter.data = gathered.detach()  # one memory, which comes and goes

    def gather(self) -> None:
        """Make the parameters whole, unless they are."""
        torchs: Any = self
        torchs.unshard()

    def release(self) -> None:
        """Give the whole parameters' memory back."""
        torchs: Any = self
        torchs.reshard()

    def scatter(self) -> None:
        """See :meth:`Sharding.scatter`."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.whole]
        for parameter in self.whole:
            parameter.grad = None
        self(gradients).backward()

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
