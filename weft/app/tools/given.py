"""Somebody's plan as what can be searched beside others: a pipeline whose layers lie where the plan has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.solver.io.megatron_layout import LayoutTextError, layout_text, stages_of_layout

if TYPE_CHECKING:
    from weft.models.grid.degrees import Degrees
    from weft.models.grid.grids import GridSpace
    from weft.models.spec.spec import Spec
    from weft.runtime.export.tools.megatron_arguments import MegatronArguments
    from weft.solver.schedule import Schedule

__all__ = ["GivenPlan", "Piped", "given_plan", "piped", "read_arguments"]


@dataclass(frozen=True)
class Piped:
    """``pipeline``: a spec of which one GPU stands for all that run a stage together; of ``degrees``, where the model
    is on a uniform grid of ``space``."""

    pipeline: Spec
    degrees: Degrees | None = None
    space: GridSpace | None = None

    def end(self, schedule: Schedule) -> float:
        """Seconds that gradients, optimizer and parameters add behind ``schedule``, where that is modelled."""
        if self.degrees is None or self.space is None:
            return 0.0
        from weft.models.grid.pipeline import stage_layers
        from weft.models.grid.step_end import step_end

        stages = stage_layers(schedule.solver["layers_of_stage"], self.space.ranks.of(self.degrees))
        return step_end(stages, self.degrees, self.space.links, self.space.size).seconds

    @property
    def gpus(self) -> int:
        """That run the same stages, replicas counted too."""
        return 1 if self.degrees is None else self.degrees.of_stage

    @property
    def title(self) -> str:
        """Such as "TP4 PP8 micro-batch 1"."""
        return f"PP{self.pipeline.cluster.gpus}" if self.degrees is None else self.degrees.title

    def cut(self, stages: tuple[str, ...]) -> Spec:
        """The pipeline with the cut of ``stages`` alone: a chain, or round and round."""
        chunks = len(stages) // self.pipeline.cluster.gpus
        return self.pipeline.model_copy(update={"placement": self.pipeline.placement.model_copy(update={
            "cut": tuple(map(len, stages)), "shapes": ("chain" if chunks == 1 else "loop",),
            "chunks": max(chunks, self.pipeline.placement.chunks)})})


@dataclass(frozen=True)
class GivenPlan:
    """``stages``: the letters of each, in the pipeline of ``piped``."""

    piped: Piped
    stages: tuple[str, ...]

    @property
    def text(self) -> str:
        """As Megatron-LM writes it."""
        return layout_text(self.stages)

    @property
    def spec(self) -> Spec:
        """The pipeline with the plan's cut alone."""
        return self.piped.cut(self.stages)


def piped(spec: Spec, chunks: int | None = None) -> Piped:
    """The pipeline of ``spec``, whose degrees are all given (``parallel``), in ``chunks`` where it leaves them open; or
    ``spec`` itself, where every GPU runs stages of its own.

    Raises ``ValueError`` for degrees that are open.
    """
    if spec.parallel is None:
        return Piped(spec)
    from weft.models.grid.pipeline import grid_space, pipeline_spec

    if chunks is not None and spec.parallel.virtual is None:
        spec = spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"virtual": chunks})})
    space = grid_space(spec)
    degrees = space.fixed()
    if degrees is None:
        assert spec.parallel is not None
        left = [name for name in ("tensor", "pipeline", "virtual", "expert", "context", "micro_batch", "zero",
                                  "recompute") if getattr(spec.parallel, name) is None]
        raise ValueError(f"{spec.where}: parallel leaves {', '.join(left)} open (auto), and a plan is of one grid: "
                         "give them, or the arguments of Megatron-LM (--megatron)")
    return Piped(pipeline_spec(spec, space, degrees), degrees, space)


def given_plan(spec: Spec, *, layout: str | None = None, arguments: MegatronArguments | None = None) -> GivenPlan:
    """The plan of Megatron-LM's ``layout``, of its ``arguments``, or of both, on the GPUs of ``spec``.

    Raises ``ValueError`` for degrees that do not fit the GPUs or the model, layers that do not add up, and stages that
    do not fit the pipeline.
    """
    stages: tuple[str, ...] = ()
    if layout is not None:
        if arguments is not None and arguments.layout:
            raise ValueError("the layout is given twice, alone and in the arguments of Megatron-LM: leave one out")
        try:
            stages = stages_of_layout(layout)
        except LayoutTextError as error:
            raise ValueError(f"layout is {layout!r:.80}: {error}") from None
    if spec.placement.cut is not None:
        spec = spec.model_copy(update={"placement": spec.placement.model_copy(update={"cut": None})})
    if arguments is not None:
        if not stages:
            try:
                letters = model_letters(spec)
                stages = arguments.stages(letters.count("t"), letters.count("m"))
            except ValueError as error:
                raise ValueError(f"Megatron-LM's arguments: {error}") from None
        spec = _spec_of(spec, arguments, max(1, len(stages) // arguments.pipeline))
    p = spec.cluster.gpus if spec.parallel is None else spec.parallel.pipeline or spec.cluster.gpus
    if len(stages) % p:
        least = len(stages) // p * p
        near = " or ".join(str(number) for number in (least, least + p) if number)
        raise ValueError(f"layout has {len(stages)} stages, which are no multiple of the {p} ranks of the pipeline; "
                         f"give one of {near} stages, or the degrees (parallel in the spec, or --megatron)")
    _require_model(spec, stages)
    return GivenPlan(piped(spec, len(stages) // p), stages)


def model_letters(spec: Spec) -> str:
    """A letter for each layer of the model, as Megatron-LM has them. Raises ``ValueError`` for a model that is no
    embedding, equal layers and a head."""
    from weft.models.candidates.gpu_costs import gpu_costs
    from weft.runtime.export.tools.layers import letters_of_names

    names = [layer.name for layer in gpu_costs(spec).layers[0]]
    letters = letters_of_names(names)
    if "" in letters or letters[-1] != "L" or "embed" not in names[0].lower():
        raise ValueError(f"{spec.where}: layers {names[0]!r} to {names[-1]!r} are no embedding, equal layers and a "
                         "head, which a layout is of; say how many layers each stage has (placement.cut)")
    return "".join(letters)


def _spec_of(spec: Spec, arguments: MegatronArguments, chunks: int) -> Spec:
    """``spec`` with the degrees, sizes and recomputation of ``arguments``."""
    from weft.models.spec.parallel import Parallel

    run = spec.training
    if run is None:
        raise ValueError(f"{spec.where}: Megatron-LM's arguments are of training, and this is inference")
    sequences = arguments.batch or run.micro_batches * run.micro_batch_size
    size = arguments.micro_batch or run.micro_batch_size
    others = arguments.tensor * arguments.pipeline * arguments.context
    if spec.cluster.gpus % others:
        raise ValueError(f"Megatron-LM's arguments: tensor {arguments.tensor} x pipeline {arguments.pipeline} x "
                         f"context {arguments.context} are {others} GPUs, which do not divide the "
                         f"{spec.cluster.gpus} of cluster.gpus")
    if sequences % (size * (spec.cluster.gpus // others)):
        raise ValueError(f"Megatron-LM's arguments: a batch of {sequences} sequences is no multiple of "
                         f"{spec.cluster.gpus // others} replicas x {size} sequences of a micro-batch "
                         "(--micro-batch-size)")
    told: dict[str, Any] = {"micro_batch_size": size, "micro_batches": sequences // size}
    if others == arguments.pipeline == spec.cluster.gpus and spec.parallel is None and (
            arguments.recompute != "selective"):
        told["recompute"] = arguments.recompute == "full"
        return spec.model_copy(update={"training": run.model_copy(update=told)})
    told["recompute"] = False
    asked = Parallel(tensor=arguments.tensor, pipeline=arguments.pipeline, virtual=chunks, context=arguments.context,
                     expert=arguments.expert, data=spec.cluster.gpus // others, micro_batch=size,
                     zero=1 if arguments.zero is None else arguments.zero, recompute=arguments.recompute,
                     sequence_parallel=arguments.sequence_parallel or arguments.tensor == 1,
                     **({} if spec.parallel is None else spec.parallel.model_dump(include={
                         "precision", "collective_bytes", "imbalance"})))
    if not spec.cluster.is_plain or not isinstance(spec.cluster.device, str) or len(set(spec.cluster.memory)) > 1:
        raise ValueError(f"{spec.where}: degrees are for GPUs of one kind; name it (cluster.device, such as h100)")
    if run.optimizer != "adam" or run.lengths is not None:
        raise ValueError(f"{spec.where}: training.{'lengths' if run.lengths is not None else 'optimizer'} is not for a "
                         "uniform grid; leave it out")
    return spec.model_copy(update={"training": run.model_copy(update=told), "parallel": asked})


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
    """Megatron-LM's arguments, or those in the file that ``text`` names. Raises ``ValueError`` for neither."""
    from weft.runtime.export.tools.megatron_arguments import read_megatron

    words = os.fspath(text)
    if "=" not in words and "--" not in words:
        try:
            words = Path(words).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"{words}: is neither arguments of Megatron-LM (--pipeline-model-parallel-size 8 ...) nor "
                             f"a file with them: {error}") from None
    return read_megatron(words)
