"""The state of a pipeline's model by its own names: gathered, loaded, saved and resumed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.division import ModelDivision
from weft.runtime.captured.loss import learning
from weft.runtime.checkpoint import model_checkpoint
from weft.runtime.checkpoint.files import Marker, place_of_run
from weft.runtime.checkpoint.optimizer_state import Extra
from weft.runtime.checkpoint.weights import NamedTensor, State, WeightsError, fitted, named_tensors, weights_of
from weft.runtime.interface.precision import MasterWeights
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.train.sharding import Sharding, shared_as, whole_of


class PipelineState:
    """This rank's part of the state of ``cut``, whose stages are on ``stage_ranks``. A trained ``loss`` belongs to the
    last stage.

    With ``masters`` (:meth:`train`), trained parameters have the values of these, with shards gathered. A tensor of
    several ranks is owned by the first of them; one that no stage reads, by rank 0.
    """

    def __init__(self, session: Session, cut: ModelDivision, stage_ranks: Sequence[int], loss: object = None) -> None:
        self.session, self.model, self.loss = session, cut.captured.model, learning(loss)
        self.masters: MasterWeights | Sharding | None = None
        self.kind = type(self.model).__name__
        self._places: dict[Path, Path] = {}  # where this run saves, by the requested folder
        self._begun: Path | None = None  # the checkpoint that it resumed
        self.of_loss = [] if self.loss is None else [*self.loss.parameters(), *self.loss.buffers()]
        self.holders: dict[int, set[int]] = {}  # by id of a tensor: the ranks that have it
        for stage, rank in enumerate(stage_ranks):
            for tensor in cut.tensors(stage):
                self.holders.setdefault(id(tensor), set()).add(rank)
        self.holders.update((id(tensor), {stage_ranks[-1]}) for tensor in self.of_loss)
        self.owner = {own: min(ranks) for own, ranks in self.holders.items()}
        self.local = {own for own, ranks in self.holders.items() if session.rank in ranks}

    @cached_property
    def tensors(self) -> list[NamedTensor]:
        """All tensors of the model and of the loss."""
        return named_tensors(self.model, self.loss)

    def train(self, masters: MasterWeights | Sharding) -> None:
        """Train ``masters`` in place of the model's parameters."""
        self.masters = masters

    def round(self) -> None:
        """Write the updated masters back to the modules."""
        if self.masters is not None:
            self.masters.write_back()

    def rest(self) -> None:
        """Free gathered parameters: between calls each copy keeps its shards only."""
        if isinstance(self.masters, Sharding):
            self.masters.release()

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that this rank trains, by name, as the optimizer has them."""
        return {item.name: self._master(item.tensor) for item in self.tensors if isinstance(item.tensor, nn.Parameter)
                and item.tensor.requires_grad and id(item.tensor) in self.local}

    @property
    def idle(self) -> list[nn.Parameter]:
        """The model's parameters that this rank trains by masters or shards."""
        return [item.tensor for item in self.tensors if isinstance(item.tensor, nn.Parameter)
                and id(item.tensor) in self.local and self._master(item.tensor) is not item.tensor]

    def gather(self, whole: bool) -> dict[str, Tensor]:
        """The state dict, with all names of tied tensors; with ``whole=False`` this rank's part of it."""
        self._gather_shares()
        mine = {name: self._kept(item) for item in self.tensors if item.is_saved and self._is_mine(item)
                for name in item.names}
        if not whole:
            return {name: value for name, value in mine.items() if self._is_local(name)}
        found: dict[str, Tensor] = {}
        for each in reversed(self.session.exchange({n: v.cpu() for n, v in mine.items()}, "gathering the state")):
            found.update(each)
        return {name: found[name] for name in (*self.model.state_dict(keep_vars=True), *found) if name in found}

    def load(self, state: State, strict: bool = True) -> None:
        """Load this rank's part of ``state``.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` if it is not a state of this model.
        """
        try:
            weights = weights_of(state)
            own = set(map(id, self.of_loss)).difference(*(
                [id(item.tensor)] for item in self.tensors if item.name in weights.tensors))
            saved = [item for item in self.tensors if item.is_saved and id(item.tensor) not in own]
            there = fitted(weights, saved, self.kind, strict)
            self._gather_shares()
            with torch.no_grad():
                for item in saved:
                    if self._is_mine(item):
                        value = self._value(item)
                        value.copy_(shared_as(value, weights.read(there[item.name])))
            if isinstance(self.masters, Sharding):
                self.masters.take()
        except WeightsError as error:
            raise CaptureError(str(error)) from None
        self.round()

    def save(self, folder: Path, step: int, optimizer: Optimizer | None, keep: int | None,
             seed: int, extra: Extra | None = None) -> Path:
        """See :meth:`~weft.app.pipeline.run.pipe.PipelineEngine.save`."""
        self._gather_shares()
        own = {item.name: self._kept(item) for item in self.tensors if item.is_saved
               and self.owner.get(id(item.tensor), 0) == self.session.rank}
        place = self.session.everywhere(self._place(folder), f"saving in {folder}")[0]
        trained = model_checkpoint.Trained(optimizer, self._names(), extra or {})
        return model_checkpoint.save(self.session, place, step, own, trained, keep,
                                     {"seed": seed, "dtype": self._types})

    def _place(self, folder: Path) -> Path:
        """The place in ``folder`` where this run saves, apart from other runs; rank 0's view counts."""
        if folder not in self._places:
            self._places[folder] = place = place_of_run(folder, self._begun)
            if self._begun is None and place != folder and self.session.process(self.session.rank) == 0:
                warnings.warn(f"{folder} holds checkpoints of an earlier run, from which this one does not go on: it "
                              f"saves in {place}", stacklevel=2)
        return self._places[folder]

    @property
    def _types(self) -> str:
        """The dtypes of the modules' parameters, as text."""
        return " and ".join(sorted({str(item.tensor.dtype).removeprefix("torch.") for item in self.tensors
                                    if isinstance(item.tensor, nn.Parameter)}))

    def resume(self, folder: Path, optimizer: Optimizer | None,
               extra: Extra | None = None) -> Marker | None:
        """See :meth:`~weft.app.pipeline.run.pipe.PipelineEngine.resume`."""
        found = model_checkpoint.find(self.session, folder)
        if found is None:
            return None
        if found.dtype not in (None, self._types):
            raise SessionError(f"{found.path}: was saved by a pipeline with parameters of {found.dtype}, this one has "
                               f"{self._types}: make it with the same dtype, or load the weights alone, by "
                               "load_state_dict")
        self._begun = found.path
        self._places.clear()
        self.load(found.path)
        model_checkpoint.restore_training(self.session, found, model_checkpoint.Trained(
            optimizer, self._names(), extra or {}))
        self.session.barrier("to have read the checkpoint")
        return found

    def _names(self) -> Mapping[int, str]:
        return {id(parameter): name for name, parameter in self.trained.items()}

    def _is_mine(self, item: NamedTensor) -> bool:
        """Whether this rank has the tensor: one of its stages reads it, or no stage does and it is materialised."""
        own = id(item.tensor)
        return own in self.local or (own not in self.owner and not item.tensor.is_meta)

    def _is_local(self, name: str) -> bool:
        return any(name in item.names and id(item.tensor) in self.local for item in self.tensors)

    def _value(self, item: NamedTensor) -> Tensor:
        if isinstance(self.masters, Sharding) or not isinstance(item.tensor, nn.Parameter):
            return item.tensor
        return self._master(item.tensor)

    def _kept(self, item: NamedTensor) -> Tensor:
        """Its value for saving; gathered shards are copied, as their memory is freed."""
        value = whole_of(self._value(item).detach())
        return value.clone() if isinstance(self.masters, Sharding) else value

    def _gather_shares(self) -> None:
        if isinstance(self.masters, Sharding):
            self.masters.write_back()

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        return parameter if self.masters is None else self.masters.of(parameter)
