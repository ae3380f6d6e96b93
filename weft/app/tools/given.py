"""A user's plan in searchable form: a pipeline with the plan's placement of layers."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from weft.app.lib.case import Case
from weft.app.lib.grid_pipeline import is_open
from weft.app.lib.options import SearchOptions
from weft.models.candidates.gpu_costs import family_model, gpu_costs
from weft.models.grid.degrees import Degrees
from weft.models.grid.grids import GridSpace
from weft.models.grid.pipeline import grid_space, pipeline_spec
from weft.models.spec.model_sections import ExplicitModel, GraphModel
from weft.models.spec.placement import Parallel
from weft.models.spec.spec import Spec, SpecError
from weft.runtime.export.tools import TOOLS
from weft.runtime.export.tools.deepspeed import read_deepspeed
from weft.runtime.export.tools.megatron import MegatronArguments, read_megatron
from weft.runtime.export.tools.tool import letters_of_names
from weft.runtime.export.tools.torchtitan import read_torchtitan
from weft.runtime.export.torch_import import read_table, schedule_of_table
from weft.solver.baselines import baseline
from weft.solver.control.clock import unwatched
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.io.megatron_layout import LayoutTextError, layout_text, stages_of_layout
from weft.solver.schedule import Schedule

#: torchtitan's names of schedules, in lower case, that are among the baselines.
_NAMED = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "interleavedzerobubble": "interleaved-zb",
          "zbvzerobubble": "zb-v"}
#: Deterministic seconds for each possible pipeline depth of a layout, for an open grid.
_SETTLING = 2.0
#: The same without time: for a known order only.
_FIRST = 1e-6


@dataclass(frozen=True)
class Piped:
    """``pipeline``: a spec in which one GPU represents all that run a stage together; with ``degrees``, if the model is
    on a uniform grid of ``space``."""

    pipeline: Spec
    degrees: Degrees | None = None
    space: GridSpace | None = None

    def end(self, schedule: Schedule) -> float:
        """Seconds that gradients, optimizer and parameters add after ``schedule``, if modelled."""
        if self.degrees is None or self.space is None:
            return 0.0
        return self.space.end(self.degrees, schedule).seconds

    @property
    def gpus(self) -> int:
        """The number of GPUs that run the same stages, including replicas."""
        return 1 if self.degrees is None else self.degrees.of_stage

    @property
    def title(self) -> str:
        """Such as "TP4 PP8 micro-batch 1"."""
        return f"PP{self.pipeline.cluster.gpus}" if self.degrees is None else self.degrees.title

    def cut(self, stages: tuple[str, ...], shape: str = "") -> Spec:
        """The pipeline with only the cut of ``stages``, in ``shape``: by default a chain or a loop."""
        chunks = len(stages) // self.pipeline.cluster.gpus
        return self.pipeline.model_copy(update={"placement": self.pipeline.placement.model_copy(update={
            "cut": tuple(map(len, stages)), "shapes": (shape or ("chain" if chunks == 1 else "loop"),),
            "chunks": chunks})})


@dataclass(frozen=True)
class GivenPlan:
    """``stages``: the letters of each, in the pipeline of ``piped``. ``tool``: the plan's tool. ``shape``: the layout
    of stages, "" as in Megatron-LM. ``order``: a file with the order (.csv), or a baseline's name; "": the tool's own.
    """

    piped: Piped
    stages: tuple[str, ...]
    tool: str = "megatron"
    shape: str = ""
    order: str = ""

    @property
    def text(self) -> str:
        """The plan in Megatron-LM's notation."""
        return layout_text(self.stages)

    @property
    def spec(self) -> Spec:
        """The pipeline with only the plan's cut."""
        return self.piped.cut(self.stages, self.shape)


def piped(spec: Spec, chunks: int | None = None) -> Piped:
    """The pipeline of ``spec``, whose degrees are all given (``parallel``), in ``chunks`` if it leaves them open; or
    ``spec`` itself, if every GPU runs its own stages.

    Raises ``ValueError`` for open degrees.
    """
    if spec.parallel is None:
        return Piped(spec)
    if chunks is not None and spec.parallel.virtual is None:
        spec = spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"virtual": chunks})})
    space = grid_space(spec)
    degrees = space.fixed()
    if degrees is None:
        raise ValueError(f"{spec.where}: parallel leaves {', '.join(space.open)} open (auto), and a plan is of one "
                         "grid: give them, or the arguments of Megatron-LM (--megatron)")
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
        letters = model_letters(spec)
        _require_same(spec, arguments, letters)
        if not stages:
            try:
                stages = arguments.stages(letters.count("t"), letters.count("m"))
            except ValueError as error:
                raise ValueError(f"Megatron-LM's arguments: {error}") from None
        spec = _spec_of(spec, arguments, max(1, len(stages) // arguments.pipeline))
    _require_model(spec, stages)
    spec = _settled(spec, stages)
    p = spec.cluster.gpus if spec.parallel is None else spec.parallel.pipeline or spec.cluster.gpus
    if len(stages) % p:
        least = len(stages) // p * p
        near = " or ".join(str(number) for number in (least, least + p) if number)
        raise ValueError(f"layout has {len(stages)} stages, which are no multiple of the {p} ranks of the pipeline; "
                         f"give one of {near} stages, or the degrees (parallel in the spec, or --megatron)")
    return GivenPlan(piped(spec, len(stages) // p), stages)


def _settled(spec: Spec, stages: tuple[str, ...]) -> Spec:
    """``spec`` with its open degrees set such that Megatron-LM runs ``stages`` in the least time; unchanged if no
    degrees allow them, or only chunks are open."""
    from weft.app.grid import solve_grid
    from weft.app.tools.solve_for import solve_in

    tool, parallel = TOOLS["megatron"], spec.parallel
    best: dict[str, Any] | None = None
    is_late = False
    if not is_open(spec) or parallel is None:
        return spec
    depths = [p for p in ([parallel.pipeline] if parallel.pipeline else range(1, len(stages) + 1))
              if not (len(stages) % p or spec.cluster.gpus % p or (p == 1 < len(stages)))]

    def on(p: int, effort: float) -> None:
        nonlocal best, is_late
        asked = parallel.model_copy(update={"pipeline": p, "virtual": len(stages) // p})
        try:
            found = solve_grid(spec.model_copy(update={"parallel": asked, "placement": spec.placement.model_copy(
                update={"cut": tuple(map(len, stages))})}), SearchOptions(effort=effort), tool=tool,
                solve=partial(solve_in, tool)).solver["grid"]
        except (Infeasible, SpecError) as refusal:
            is_late |= isinstance(refusal, NoneFound)
        else:
            best = found if best is None or found["step"] < best["step"] else best

    for p in depths:
        on(p, _SETTLING)
    with unwatched():  # there was no time for any: the first ones
        while best is None and depths:
            on(depths.pop(0), _FIRST)
    if best is None and is_late:
        raise NoneFound(f"{spec.where}: there was no time to see which degrees serve the layout best; give more, or "
                        "the degrees (parallel)")
    return spec if best is None else spec.model_copy(update={"parallel": parallel.model_copy(update={
        name: best[name] for name in ("tensor", "pipeline", "virtual", "data", "expert", "context", "zero", "recompute",
                                      "micro_batch")})})


def read_plan(spec: Spec, path: str | os.PathLike[str]) -> GivenPlan:
    """The plan for the model of ``spec`` in a file: torchtitan's settings (.toml), DeepSpeed's partition (.py), or
    Megatron-LM's arguments (any other). Raises ``ValueError`` for any other file, or a plan of another model."""
    ending = Path(path).suffix.lower()
    if ending == ".toml":
        found = read_torchtitan(path)
        samples = found.data * found.micro_batch if found.data and found.micro_batch else _samples(spec)
        batch = None if found.micro_batches is None else found.micro_batches * samples
        order = _NAMED.get(found.schedule.lower(), "") if found.csv is None else os.path.join(
            Path(path).parent, Path(found.csv).name if not Path(found.csv).exists() else os.path.abspath(found.csv))
        if not order:
            raise ValueError(f"{os.fspath(path)}: weft has no schedule called {found.schedule}; it has "
                             f"{', '.join(_NAMED)}, and reads the order of pipeline_parallel_schedule_csv")
        if found.csv is not None and not any("I" in letters for letters in read_table(order).letters_of_stages):
            spec = spec.model_copy(update={"placement": spec.placement.model_copy(update={"backward": ("full",)})})
        plan = given_plan(spec, arguments=MegatronArguments(
            tensor=found.tensor, pipeline=found.pipeline, context=found.context, expert=found.expert, zero=found.zero,
            micro_batch=found.micro_batch, layout=found.stages, batch=batch, sequence_parallel=True))
        return replace(plan, tool="torchtitan", shape="" if found.shape != "v" else "v", order=order)
    if ending == ".py":
        parts = read_deepspeed(path)
        letters = model_letters(spec)
        if sum(parts.cut) != len(letters):
            raise ValueError(f"{os.fspath(path)}: PARTS are of {sum(parts.cut)} layers, but the model has "
                             f"{len(letters)} with embedding and head")
        ends = [*accumulate(parts.cut)]
        stages = tuple(letters[end - size:end] for end, size in zip(ends, parts.cut, strict=True))
        if spec.parallel is not None:  # its other degrees are not in the file
            asked = spec.parallel.model_copy(update={"pipeline": len(stages), "virtual": 1})
            plan = given_plan(spec.model_copy(update={"parallel": asked}), layout=layout_text(stages))
        else:
            batch = None if parts.micro_batches is None else parts.micro_batches * _samples(spec)
            plan = given_plan(spec, arguments=MegatronArguments(pipeline=len(stages), layout=stages, batch=batch))
        return replace(plan, tool="deepspeed")
    return given_plan(spec, arguments=read_arguments(path))


def _samples(spec: Spec) -> int:
    """Samples in one micro-batch of all replicas of ``spec``, if stated."""
    data = 1 if spec.parallel is None else spec.parallel.data or 1
    size = spec.parallel.micro_batch if spec.parallel is not None else None
    return data * (size or (1 if spec.training is None else spec.training.micro_batch_size))


def given_schedule(plan: GivenPlan, case: Case) -> Schedule:
    """``plan`` as run by its tool, on the placements of ``case``, which have its cut; in the plan's own order if it has
    one. Raises ``ValueError`` for an order of other stages, and if nothing fits."""
    tool, found, refusal = TOOLS[plan.tool], [], None
    table = read_table(plan.order) if plan.order.endswith(".csv") else None
    for placement in case.placements:
        try:
            if table is not None:
                made = schedule_of_table(table, placement.problem)
            elif plan.order:
                made = baseline(plan.order, placement.problem, case.micro_batches)
            else:
                made = Schedule(placement.problem, case.micro_batches, (), 0.0, solver=placement.details)
                made = tool.run(made).schedule
        except ValueError as error:
            refusal = refusal or error
        else:
            found.append(replace(placement, problem=made.problem).label(made))
    if not found:
        raise refusal or ValueError(f"{case.name}: the plan fits no GPU")
    return min(found, key=lambda schedule: schedule.makespan)


def model_letters(spec: Spec) -> str:
    """A letter for each layer of the model, as in Megatron-LM. Raises ``ValueError`` for a model other than an
    embedding, equal layers and a head."""
    names = [layer.name for layer in gpu_costs(spec).layers[0]]
    letters = letters_of_names(names)
    if "" in letters or letters[-1] != "L" or "embed" not in names[0].lower():
        raise ValueError(f"{spec.where}: layers {names[0]!r} to {names[-1]!r} are no embedding, equal layers and a "
                         "head, which a layout is of; say how many layers each stage has (placement.cut)")
    return "".join(letters)


def _spec_of(spec: Spec, arguments: MegatronArguments, chunks: int) -> Spec:
    """``spec`` with the degrees, sizes and recomputation of ``arguments``."""
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
    training: dict[str, Any] = {"micro_batch_size": size, "micro_batches": sequences // size}
    if others == arguments.pipeline == spec.cluster.gpus and spec.parallel is None and (
            arguments.recompute in ("none", "full")):
        training["recompute"] = arguments.recompute == "full"
        return spec.model_copy(update={"training": run.model_copy(update=training)})
    training["recompute"] = False
    asked = Parallel(tensor=arguments.tensor, pipeline=arguments.pipeline, virtual=chunks, context=arguments.context,
                     expert=arguments.expert, data=spec.cluster.gpus // others, micro_batch=size,
                     zero=1 if arguments.zero is None else arguments.zero, recompute=arguments.recompute,
                     sequence_parallel=arguments.sequence_parallel or arguments.tensor == 1,
                     context_keys=arguments.context_keys, overlap_experts=arguments.overlap_experts,
                     **({} if spec.parallel is None else spec.parallel.model_dump(include={
                         "precision", "collective_bytes", "imbalance", "expert_machines"})))
    if not spec.cluster.is_plain or not isinstance(spec.cluster.device, str) or len(set(spec.cluster.memory)) > 1:
        raise ValueError(f"{spec.where}: degrees are for GPUs of one kind; name it (cluster.device, such as h100)")
    if run.optimizer != "adam" or run.lengths is not None:
        raise ValueError(f"{spec.where}: training.{'lengths' if run.lengths is not None else 'optimizer'} is not for a "
                         "uniform grid; leave it out")
    return spec.model_copy(update={"training": run.model_copy(update=training), "parallel": asked})


def _require_same(spec: Spec, arguments: MegatronArguments, letters: str) -> None:
    """Refuse arguments of another model: the costs are those of ``spec``, whose layers are ``letters``."""
    own = None if isinstance(spec.model, ExplicitModel | GraphModel) else getattr(family_model(spec), "sequence", None)
    for name, said, here in (("num-layers", arguments.layers, letters.count("t")),
                             ("mtp-num-layers", arguments.predict, letters.count("m")),
                             ("seq-length", arguments.sequence, own)):
        if said is not None and here is not None and said != here:
            raise ValueError(f"Megatron-LM's arguments: --{name} is {said}, but the model of {spec.where} has {here}")


def _require_model(spec: Spec, stages: tuple[str, ...]) -> None:
    """Refuse stages of another model, naming missing or superfluous layers."""
    letters, own = "".join(stages), model_letters(spec)
    if letters == own:
        return
    faults = [f"{letters.count(letter)} {what} ({letter}), but the model has {own.count(letter)}"
              for letter, what in (("E", "embeddings"), ("t", "layers"), ("m", "layers of multi-token prediction"),
                                   ("L", "heads")) if letters.count(letter) != own.count(letter)]
    raise ValueError(f"layout has {'; '.join(faults) or 'its layers in another order than the model'}")


def read_arguments(text: str | os.PathLike[str]) -> MegatronArguments:
    """Megatron-LM's arguments, or those in the file named by ``text``. Raises ``ValueError`` for neither."""
    words = os.fspath(text)
    if "=" in words or "--" in words:
        return read_megatron(words)
    try:
        return read_megatron(Path(words).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{words}: is neither arguments of Megatron-LM (--pipeline-model-parallel-size 8 ...) nor "
                         f"a file with them: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{words}: {error}") from None
