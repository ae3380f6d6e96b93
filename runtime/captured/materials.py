"""Materialisation of a model on the meta device: data for the requested tensors.

The data come from a state (:mod:`weft.runtime.checkpoint.weights`), or from the modules themselves, one at a time: a
module's own parameters and buffers get memory, and its ``reset_parameters`` is called. The random seed is derived from
torch's seed and the module's path, so a parameter does not depend on the number of ranks or on their modules. A module
initialises only its own tensors; the one exception is ``nn.MultiheadAttention``, which resets its output projection
too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weft.runtime.captured.captured import CaptureError
from weft.runtime.checkpoint.weights import NamedTensor, State, Weights, WeightsError, fitted, named_tensors, weights_of

SHOWN = 3  # names in a sentence
#: A user's function that initialises a module: it is called with the module, whose own tensors have memory.
Fill = Callable[[nn.Module], object]


def stand_in(like: Tensor, value: Tensor) -> Tensor:
    """``value`` as a replacement of ``like``: for a parameter, a parameter with the same attributes."""
    if not isinstance(like, nn.Parameter):
        return value.detach()
    parameter = nn.Parameter(value.detach(), requires_grad=like.requires_grad)
    parameter.__dict__.update(like.__dict__)
    return parameter


class Materials:
    """Real tensors on ``device`` for those of ``model`` on the meta device.

    ``state`` has the parameters and buffers of the state dict. ``fill`` initialises the modules of other tensors in
    place of ``reset_parameters``, which is called where ``fill`` leaves a module unchanged. ``precise``: by name, the
    dtypes of tensors that differ from the model's.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a state of another model.
    """

    def __init__(self, model: nn.Module, device: torch.device, state: State | None = None, fill: Fill | None = None,
                 precise: Mapping[str, torch.dtype] | None = None) -> None:
        self.model, self.device, self.fill, self.precise = model, device, fill, dict(precise or {})
        self.seed = torch.initial_seed()
        self.modules = dict(model.named_modules())
        self.units = _units(self.modules)
        self.tensors = {item.name: item for item in named_tensors(model)}
        self.weights: Weights | None = None
        self.found: Mapping[str, str] = {}
        self.unknown: tuple[str, ...] = ()
        if state is not None:
            try:
                self.weights = weights_of(state)
                self.found = fitted(self.weights, [item for item in self.tensors.values() if item.is_saved or any(
                    name in self.weights.tensors for name in item.names)], type(model).__name__, strict=False,
                    whole=fill is None)
            except WeightsError as error:
                raise CaptureError(str(error)) from None
            known = {name for item in self.tensors.values() for name in item.names}
            self.unknown = tuple(name for name in self.weights.tensors if name not in known)

    @property
    def facts(self) -> object:
        """A hash that must be equal on all ranks: of the seed, if it is used, and of the state's tensors."""
        listed = None if self.weights is None else sorted(map(str, self.weights.tensors.items()))
        return hashlib.sha256(repr((self.seed if len(self.found) < len(self.tensors) else None, listed)).encode()
                              ).hexdigest()

    @property
    def notes(self) -> list[str]:
        """Messages to the user: tensors of the state that the model does not have."""
        if not self.unknown or self.weights is None:
            return []
        shown = ", ".join(self.unknown[:SHOWN]) + (f" and {len(self.unknown) - SHOWN} more"
                                                   if len(self.unknown) > SHOWN else "")
        return [f"{self.weights.where} also has {shown}, which the model does not have: they are left out"]

    def of(self, wanted: Iterable[Tensor]) -> dict[int, Tensor]:
        """Data for the meta tensors among ``wanted``, tensors of the model, by ``id``: plain tensors, not parameters.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` for a tensor that is neither in the state nor
        initialised by its module.
        """
        ids = {id(tensor) for tensor in wanted if tensor.is_meta}
        items = [item for item in self.tensors.values() if id(item.tensor) in ids]
        values: dict[int, Tensor] = {}
        by_unit: dict[str, list[NamedTensor]] = {}
        for item in items:
            if item.name in self.found:
                values[id(item.tensor)] = self._read(item)
            else:
                by_unit.setdefault(self._unit(item), []).append(item)
        for path, own in by_unit.items():
            made = self._made(path)
            for item in own:
                values[id(item.tensor)] = self._require_made(item, made)
        return values

    def _read(self, item: NamedTensor) -> Tensor:
        assert self.weights is not None
        try:
            found = self.weights.read(self.found[item.name])
        except WeightsError as error:
            raise CaptureError(str(error)) from None
        return found.to(self.device, self._type(item), copy=True)

    def _type(self, item: NamedTensor) -> torch.dtype:
        return self.precise.get(item.name, item.tensor.dtype)

    def _unit(self, item: NamedTensor) -> str:
        """The path of the module that initialises ``item``."""
        return self.units[item.name.rpartition(".")[0]]

    def _made(self, path: str) -> dict[str, Tensor]:
        """The tensors that the module at ``path`` initialises, by their full names."""
        unit = self.modules[path]
        with self._given_memory(path) as given, torch.no_grad(), self._seeded(path):
            versions = {name: (tensor, tensor._version) for name, tensor in given.items()}

            def uninitialised() -> list[str]:
                now = self._now(given)
                return [name for name, (tensor, version) in versions.items()
                        if now[name] is tensor and tensor._version == version and _is_empty(tensor)]

            if self.fill is not None:
                self.fill(unit)
            if self.fill is None or len(uninitialised()) == len(versions):
                _reset(unit)
            missing = set(uninitialised())
            return {name: value for name, value in self._now(given).items() if name not in missing}

    def _now(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The modules' current tensors under these names."""
        tensors = {}
        for name in given:
            path, _, leaf = name.rpartition(".")
            tensors[name] = getattr(self.modules[path], leaf)
        return tensors

    @contextmanager
    def _given_memory(self, path: str) -> Iterator[dict[str, Tensor]]:
        """Inside, the meta tensors that the module at ``path`` initialises have memory; yields them by full name."""
        unit, replaced, given = self.modules[path], [], dict[str, Tensor]()
        own = unit.named_modules() if isinstance(unit, nn.MultiheadAttention) else [("", unit)]
        for inner, module in own:
            whole = ".".join(step for step in (path, inner) if step)
            for table in (module._parameters, module._buffers):
                for leaf, tensor in list(table.items()):
                    if tensor is None:
                        continue
                    replaced.append((table, leaf, tensor))
                    if not tensor.is_meta:  # a copy protects its data
                        table[leaf] = stand_in(tensor, tensor.detach().clone())
                    else:
                        name = f"{whole}.{leaf}" if whole else leaf
                        dtype = self.precise.get(name, tensor.dtype)
                        empty = torch.empty(tensor.shape, dtype=dtype, device=self.device)
                        given[name] = stand_in(tensor, empty.fill_(_placeholder(dtype)))
                        table[leaf] = given[name]
        try:
            yield given
        finally:
            for table, leaf, tensor in replaced:
                table[leaf] = tensor

    @contextmanager
    def _seeded(self, path: str) -> Iterator[None]:
        digest = hashlib.sha256(f"{self.seed} {path}".encode()).digest()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int.from_bytes(digest[:7], "little"))
            yield

    def _require_made(self, item: NamedTensor, made: Mapping[str, Tensor]) -> Tensor:
        name, module = item.name, type(self.modules[item.name.rpartition(".")[0]]).__name__
        found = made.get(name)
        if found is None or found.is_meta:
            what = "parameter" if isinstance(item.tensor, nn.Parameter) else "buffer"
            where = "" if self.weights is None else f", {self.weights.where} does not have it"
            raise CaptureError(f"the {what} {name} is on the meta device{where}, and {module} has no reset_parameters "
                               "that gives it numbers: give a state= that has it, or materialise=FUNCTION(module) that "
                               f"fills it, or build this {module} off the meta device")
        if found.shape != item.tensor.shape:
            raise CaptureError(f"{name} has the shape {tuple(item.tensor.shape)}, but {module} gives it numbers of "
                               f"{tuple(found.shape)}: let reset_parameters fill it as it is")
        if _has_placeholders(found):
            raise CaptureError(f"a part of {name} has no numbers after {module} has been initialised: let "
                               "reset_parameters, or materialise=, fill all of it")
        return found.detach().to(self.device, self._type(item))


def _reset(unit: nn.Module) -> None:
    if isinstance(unit, nn.MultiheadAttention):
        unit.out_proj.reset_parameters()
        unit._reset_parameters()
    elif callable(reset := getattr(unit, "reset_parameters", None)):
        reset()


def _units(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """For each module, by path, the path of the module that initialises its tensors."""
    units = {path: path for path in modules}
    for path, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            inside = f"{path}." if path else ""
            units.update((other, path) for other in modules if other.startswith(inside))
    return units


def _placeholder(dtype: torch.dtype) -> float:
    """The value of an element that is not yet initialised."""
    return float("nan") if dtype.is_floating_point or dtype.is_complex else 0


def _is_empty(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or (
        tensor.numel() > 0 and bool(torch.isnan(tensor).all()))


def _has_placeholders(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and bool(torch.isnan(tensor).any())
