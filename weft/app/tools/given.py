"""Somebody's plan as what can be searched beside others: a spec whose layers lie where the plan has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.solver.io.megatron_layout import LayoutTextError, layout_text, stages_of_layout

if TYPE_CHECKING:
    from weft.models.spec.spec import Spec
    from weft.runtime.export.tools.megatron_arguments import MegatronArguments

__all__ = ["GivenPlan", "given_by_layout", "given_by_megatron", "model_letters", "spec_of_cut"]


@dataclass(frozen=True)
class GivenPlan:
    """``spec``: the model on its GPUs with the plan's degrees and sizes, its cut open; ``stages``: the letters of each
    stage. ``shape``: how they lie, ``tool``: who runs them. ``title``: what it is called."""

    spec: Spec
    stages: tuple[str, ...]
    shape: str
    tool: str
    title: str

    @property
    def cut_spec(self) -> Spec:
        """The spec with the plan's cut alone."""
        return spec_of_cut(self.spec, tuple(map(len, self.stages)), self.shape)


def model_letters(spec: Spec) -> str:
    """A letter for each layer of the model, as Megatron-LM has them. Raises ``ValueError`` for a model that is no
    embedding, equal layers and a head."""
    from weft.models.candidates.gpu_costs import gpu_costs
    from weft.runtime.export.tools.layers import letters_of_names

    names = [layer.name for layer in gpu_costs(spec).layers[0]]
    letters = letters_of_names(names)
    if "" in letters or letters[-1] != "L" or "embed" not in names[0].lower():
        raise ValueError(f"{spec.where}: layers {names[0]!r} to {names[-1]!r} are no embedding, equal layers and a head, "
                         "which a layout is of; name the layers of each stage (placement.cut)")
    return "".join(letters)


def given_by_layout(spec: Spec, text: str) -> GivenPlan:
    """The plan of a layout of Megatron-LM, on the pipeline of ``spec``. Raises ``ValueError`` where layers do not add
    up, or stages do not fit the pipeline."""
    try:
        stages = stages_of_layout(text)
    except LayoutTextError as error:
        raise ValueError(f"layout is {text!r:.80}: {error}") from None
    pipeline = _pipeline_of(spec)
    if len(stages) % pipeline:
        raise ValueError(f"layout has {len(stages)} stages, which are no multiple of the {pipeline} ranks of the pipeline "
                         f"of {spec.where}; give a layout of {len(stages) // pipeline * pipeline or pipeline} stages, or "
                         "the degrees (parallel, --megatron)")
    _require_model(spec, stages)
    return GivenPlan(spec, stages, "chain" if len(stages) == pipeline else "loop", "megatron", layout_text(stages))


def given_by_megatron(spec: Spec, arguments: MegatronArguments, *, layout: str | None = None) -> GivenPlan:
    """The plan of Megatron-LM's arguments, and of a ``layout`` given beside them. Raises ``ValueError`` for degrees
    that do not fit the GPUs of ``spec``, and what :func:`given_by_layout` does."""
    found = spec_of_arguments(spec, arguments)
    if layout is not None:
        if arguments.layout:
            raise ValueError("the layout is given twice, alone and in the arguments of Megatron-LM: leave one out")
        return given_by_layout(found, layout)
    letters = model_letters(found)
    try:
        stages = arguments.stages(letters.count("t"), letters.count("m"))
    except ValueError as error:
        raise ValueError(f"Megatron-LM's arguments: {error}") from None
    return given_by_layout(found, layout_text(stages))


def spec_of_cut(spec: Spec, cut: tuple[int, ...], shape: str) -> Spec:
    """``spec`` with one cut of its layers alone, in one shape."""
    chunks = max(1, len(cut) // _pipeline_of(spec))
    placement = spec.placement.model_copy(update={
        "cut": cut, "shapes": (shape,), "chunks": max(chunks, spec.placement.chunks)})
    return spec.model_copy(update={"placement": placement})


def spec_of_arguments(spec: Spec, arguments: MegatronArguments) -> Spec:
    """``spec`` with the degrees, sizes and recomputation of ``arguments``."""
    if spec.training is None:
        raise ValueError(f"{spec.where}: Megatron-LM's arguments are of training, and this is inference")
    run: dict[str, Any] = {}
    sequences = arguments.batch or spec.micro_batches * spec.training.micro_batch_size
    size = arguments.micro_batch or spec.training.micro_batch_size
    if sequences % size:
        raise ValueError(f"a batch of {sequences} sequences is no whole number of micro-batches of {size} "
                         "(--micro-batch-size)")
    run |= {"micro_batch_size": size, "micro_batches": sequences // size}
    degrees = arguments.tensor * arguments.pipeline * arguments.context
    if degrees == spec.cluster.gpus and arguments.tensor == arguments.context == arguments.expert == 1 and (
            arguments.recompute != "selective"):
        run["recompute"] = arguments.recompute == "full"
        return spec.model_copy(update={"training": spec.training.model_copy(update=run)})
    raise ValueError(f"{spec.where}: {degrees} GPUs (tensor {arguments.tensor} x pipeline {arguments.pipeline} x context "
                     f"{arguments.context}) are not the {spec.cluster.gpus} of the cluster")


def _pipeline_of(spec: Spec) -> int:
    """Ranks of the pipeline."""
    return spec.cluster.gpus


def _require_model(spec: Spec, stages: tuple[str, ...]) -> None:
    """Refuse stages of another model, with what is missing or too much."""
    letters, own = "".join(stages), model_letters(spec)
    if letters == own:
        return
    faults = [f"{letters.count(letter)} {what} ({letter}), but the model has {own.count(letter)}"
              for letter, what in (("E", "embeddings"), ("t", "layers"), ("m", "layers of multi-token prediction"),
                                   ("L", "heads")) if letters.count(letter) != own.count(letter)]
    raise ValueError(f"layout has {'; '.join(faults) or 'its layers in another order than the model'}")


def read_arguments(text: str | os.PathLike[str]) -> MegatronArguments:
    """Megatron-LM's arguments, or those in the file that ``text`` names."""
    from weft.runtime.export.tools.megatron_arguments import read_megatron

    words = os.fspath(text)
    if "=" not in words and "--" not in words:
        try:
            words = Path(words).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"{words}: is neither arguments of Megatron-LM (--pipeline-model-parallel-size 8 ...) nor a "
                             f"file with them: {error}") from None
    return read_megatron(words)
