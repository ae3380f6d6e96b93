"""Megatron-LM and Megatron-Bridge: the placement of layers; the order is Megatron's own.

A layout (``--pipeline-model-parallel-layout``, read from ``pipeline_parallel_layer_layout.py``) has a word of letters
for each stage, ``E`` embedding, ``t`` layer, ``m`` multi-token prediction, ``L`` head and loss; stage s is on rank s
modulo p (:mod:`weft.solver.io.megatron_layout` reads and writes it). Where a rank has one stage Megatron runs 1F1B,
else its interleaved form, in groups of N micro-batches (``--microbatch-group-size-per-virtual-pipeline-stage``, p by
default); backwards are whole. Read from ``pipeline_parallel/schedules.py`` of NVIDIA/Megatron-LM d98e8a6 (Aug 2026).

Arguments on a command line, or Megatron-Bridge's settings: ``--pipeline-model-parallel-size 8``,
``--pipeline_model_parallel_size=8`` and ``model.pipeline_model_parallel_size=8`` are the same. Of the hundreds of
arguments those about the placement of a model on GPUs are read; others are ignored.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weft.runtime.export.forms import ExportError
from weft.runtime.export.tools.tool import OwnOrder, Tool, ToolRun, letters_of
from weft.solver.baselines.lib.alternating import TurnRule
from weft.solver.io.megatron_layout import LayoutTextError, layout_text, stages_of_layout
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

#: What is recomputed: nothing, attention's scores, some cheap modules, or whole layers.
Recompute = Literal["none", "selective", "light", "full"]
#: The cheap modules; others (core_attn is selective recomputation) are not modelled.
_LIGHT = ("layernorm", "moe_act", "mla_up_proj")
_NUMBERS: Mapping[str, str] = {
    "tensor-model-parallel-size": "tensor", "pipeline-model-parallel-size": "pipeline",
    "context-parallel-size": "context", "expert-model-parallel-size": "expert", "micro-batch-size": "micro_batch",
    "global-batch-size": "batch", "num-layers": "layers", "num-virtual-stages-per-pipeline-rank": "virtual",
    "virtual-pipeline-model-parallel-size": "virtual",
    "num-layers-per-virtual-pipeline-stage": "per_virtual",
    "decoder-first-pipeline-num-layers": "first", "decoder-last-pipeline-num-layers": "last",
    "num-layers-in-first-pipeline-stage": "first", "num-layers-in-last-pipeline-stage": "last",
    "mtp-num-layers": "predict", "seq-length": "sequence", "microbatch-group-size-per-virtual-pipeline-stage": "group",
    "microbatch-group-size-per-vp-stage": "group",
}
_FLAGS: Mapping[str, str] = {
    "sequence-parallel": "sequence_parallel", "use-distributed-optimizer": "zero",
    "overlap-moe-expert-parallel-comm": "overlap_experts",
    "account-for-embedding-in-pipeline-split": "embedding_counts", "account-for-loss-in-pipeline-split": "loss_counts",
}
_TEXTS = ("pipeline-model-parallel-layout", "recompute-granularity", "recompute-modules",
          "data-parallel-sharding-strategy", "cp-comm-type")
#: How keys and values reach a GPU with context parallelism; other ways are not modelled.
_CONTEXT: Mapping[str, Literal["ring", "gather"]] = {"p2p": "ring", "all_gather": "gather"}
#: What is sharded over replicas, and the corresponding stage of ZeRO.
_SHARDING: Mapping[str, int] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FALSE = {"false", "0", "none", "null"}


@dataclass(frozen=True, slots=True)
class MegatronArguments:
    """The arguments about a plan. ``None``: not given. ``layout``: the letters of each stage, if given.

    ``virtual``: chunks a rank. ``per_virtual``: layers of each of them. ``first``, ``last``: layers of the first and
    the last rank. ``predict``: layers of multi-token prediction. ``group``: see
    :data:`weft.runtime.export.tools.megatron.GROUP`. ``zero``: the stage of ZeRO.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual: int | None = None
    context: int = 1
    expert: int = 1
    micro_batch: int | None = None
    batch: int | None = None
    sequence: int | None = None
    layers: int | None = None
    predict: int | None = None
    layout: tuple[str, ...] = ()
    per_virtual: int | None = None
    first: int | None = None
    last: int | None = None
    embedding_counts: bool = False
    loss_counts: bool = False
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    zero: int | None = None
    group: int | None = None
    context_keys: Literal["ring", "gather"] = "ring"
    overlap_experts: bool = False

    def text(self) -> str:
        """The arguments, one a line, quoted where a shell needs it."""
        lines = [f"--{name} {value}" for name, key in _NUMBERS.items() if name not in _OTHER_NAMES
                 for value in [getattr(self, key)] if value is not None
                 and (value != 1 or key not in ("tensor", "context", "expert"))]
        lines += [f'--pipeline-model-parallel-layout "{layout_text(self.layout)}"'] if self.layout else []
        lines += [f"--{name}" for name, key in _FLAGS.items() if getattr(self, key)]
        if self.zero is not None and self.zero > 1:
            lines.append("--use-megatron-fsdp")
        if self.zero is not None and self.zero != 1:
            lines.append(f"--data-parallel-sharding-strategy "
                         f"{next(word for word, stage in _SHARDING.items() if stage == self.zero)}")
        if self.context_keys != "ring":
            lines.append(f"--cp-comm-type {next(word for word, way in _CONTEXT.items() if way == self.context_keys)}")
        if self.recompute == "light":
            lines += ["--recompute-granularity selective", f"--recompute-modules {' '.join(_LIGHT)}"]
        elif self.recompute != "none":
            lines.append(f"--recompute-granularity {self.recompute}")
        if self.recompute == "full":
            lines += ["--recompute-method uniform", "--recompute-num-layers 1"]
        return "\n".join(lines) + "\n"

    def stages(self, layers: int, predict: int = 0) -> tuple[str, ...]:
        """The letters of each stage of a model of so many layers: the layout, or what Megatron derives without one.

        Raises ``ValueError`` for layers that the stages do not take, and for a layout of another model.
        """
        if self.layout:
            return self._checked(layers, predict)
        p, chunks = self.pipeline, self._chunks(layers)
        counts = self._even(layers, p, chunks)
        words = ["t" * counts[s % p][s // p] for s in range(p * chunks)]
        words[0], words[-1] = "E" + words[0], words[-1] + "m" * predict + "L"
        return tuple(words)

    def _checked(self, layers: int, predict: int) -> tuple[str, ...]:
        letters = "".join(self.layout)
        if len(self.layout) % self.pipeline:
            raise ValueError(f"the layout has {len(self.layout)} stages, which are no multiple of "
                             f"pipeline-model-parallel-size {self.pipeline}")
        chunks = len(self.layout) // self.pipeline
        if self.virtual not in (None, chunks):
            raise ValueError(f"the layout has {len(self.layout)} stages on {self.pipeline} ranks, {chunks} on each, "
                             f"not {self.virtual}")
        for letter, count, what in (("t", layers, "layers"), ("m", predict, "layers of multi-token prediction")):
            if letters.count(letter) != count:
                raise ValueError(f"the layout has {letters.count(letter)} {what} ({letter}), but the model has {count}")
        if not letters.startswith("E") or not letters.endswith("L"):
            raise ValueError("the layout does not begin with E, the embedding, and end with L, the head")
        return self.layout

    def _chunks(self, layers: int) -> int:
        if self.per_virtual is None:
            return self.virtual or 1
        chunks, rest = divmod(layers + self.embedding_counts + self.loss_counts, self.pipeline * self.per_virtual)
        if rest:
            raise ValueError(f"{layers} layers are no multiple of {self.pipeline} ranks x {self.per_virtual} layers a "
                             "virtual stage")
        return chunks

    def _even(self, layers: int, p: int, chunks: int) -> list[list[int]]:
        """By rank and chunk the number of layers, as ``get_num_layers_to_build`` has them."""
        ends = {0: self.first, p - 1: self.last}
        given = {rank: own for rank, own in ends.items() if own is not None}
        counted = layers + self.embedding_counts + self.loss_counts - sum(given.values())
        others = p - len(given)
        each, rest = divmod(counted, others) if others else (0, counted)
        if rest or each < 0:
            raise ValueError(f"{layers} layers do not go evenly onto {p} ranks"
                             + (f" beside {' and '.join(map(str, given.values()))}" if given else "")
                             + "; give a layout, or the layers of the first or last rank")
        found = []
        for rank in range(p):
            whole = given.get(rank, each)
            if whole % chunks:
                raise ValueError(f"rank {rank} has {whole} layers, which are no multiple of its {chunks} chunks")
            found.append([whole // chunks] * chunks)
        found[0][0] -= self.embedding_counts
        found[-1][-1] -= self.loss_counts
        if min(map(min, found)) < 0:
            raise ValueError("there are too few layers for an embedding and a loss that count as one each")
        return found


#: Further names of arguments that are written under another one, and arguments that a layout replaces.
_OTHER_NAMES = {"num-layers-in-first-pipeline-stage", "num-layers-in-last-pipeline-stage",
                "virtual-pipeline-model-parallel-size", "microbatch-group-size-per-vp-stage"}


def read_megatron(text: str) -> MegatronArguments:
    """The arguments in ``text``, a command line or settings, with or without the rest of the command.

    Raises ``ValueError`` for text without any, an argument without a value or with one that it cannot have, and for two
    that contradict each other.
    """
    found: dict[str, object] = {}

    def put(key: str, value: object, name: str) -> None:
        if key in found and found[key] != value:
            raise ValueError(f"--{name} is {value}, but {found[key]} was said before")
        found[key] = value

    pairs = list(_pairs(text))
    if not pairs:
        raise ValueError("there are no arguments of Megatron-LM, such as --pipeline-model-parallel-size 8")
    for name, value in pairs:
        if name in _NUMBERS:
            if value is None or (not value.isdigit() and value.lower() not in _FALSE) or len(value) > 9:
                raise ValueError(f"--{name} is {value or 'missing'}, it must be a whole number")
            if value.isdigit():
                if int(value) < (0 if name in ("decoder-first-pipeline-num-layers", "mtp-num-layers",
                                               "decoder-last-pipeline-num-layers") else 1):
                    raise ValueError(f"--{name} is {value}, it must be at least 1")
                put(_NUMBERS[name], int(value), name)
        elif name in _FLAGS:
            is_set = value is None or value.lower() not in _FALSE
            if _FLAGS[name] == "zero":
                found.setdefault("zero", 1 if is_set else 0)
            else:
                put(_FLAGS[name], is_set, name)
        elif name in _TEXTS:
            _put_text(name, value, put, found)
    for few, many in (("virtual", "per_virtual"), ("layout", "per_virtual"), ("layout", "first"), ("layout", "last")):
        if few in found and many in found:
            raise ValueError(f"{few} and {many.replace('_', ' ')} both say which layers stages hold; leave one out")
    return MegatronArguments(**found)  # type: ignore[arg-type]  # by name, each checked above


def _put_text(name: str, value: str | None, put: object, found: dict[str, object]) -> None:
    if value is None:
        raise ValueError(f"--{name} is without a value")
    if name == "pipeline-model-parallel-layout":
        try:
            found["layout"] = stages_of_layout(value)
        except LayoutTextError as error:
            raise ValueError(f"--{name} is {value!r:.60}: {error}") from None
    elif name == "recompute-granularity":
        if value.lower() not in ("full", "selective", *_FALSE):
            raise ValueError(f"--{name} is {value!r:.60}, it must be one of full, selective")
        found.setdefault("recompute", value.lower() if value.lower() not in _FALSE else "none")
    elif name == "recompute-modules":
        modules = value.strip("[]").replace(",", " ").replace("'", "").replace('"', "").split()
        if not {*modules} & {"core_attn", *_LIGHT}:
            raise ValueError(f"--{name} is {value!r:.60}, it must have one of core_attn, {', '.join(_LIGHT)}")
        if "core_attn" not in modules:
            found["recompute"] = "light"
    else:
        key, known = ("context_keys", _CONTEXT) if name == "cp-comm-type" else ("zero", _SHARDING)
        if value not in known:
            raise ValueError(f"--{name} is {value!r:.60}, it must be one of {', '.join(known)}")
        found[key] = known[value]


def _pairs(text: str) -> Iterator[tuple[str, str | None]]:
    """Names, dashes between their words, with their values; None where there is none."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ValueError(f"the arguments cannot be read: {error}") from None
    found: list[tuple[str, list[str]]] = []
    for word in words:
        is_setting = "=" in word and word.split("=", 1)[0].replace("_", "").replace(".", "").replace("-", "").isalnum()
        if word.startswith("--") or is_setting:
            name, equals, value = word.removeprefix("--").partition("=")
            found.append((name.rpartition(".")[2].replace("_", "-"), [value] * bool(equals)))
        elif found:
            found[-1][1].append(word)
    for name, values in found:
        yield name, " ".join(values if name == "recompute-modules" else values[:1]) if values else None


_TITLE = "Megatron-LM"
#: Megatron's name for the micro-batches that pass through a chunk before the next chunk's turn.
GROUP = "microbatch-group-size-per-virtual-pipeline-stage"


def megatron_orders(pipeline: Pipeline, micro_batches: int) -> Iterator[OwnOrder]:
    """1F1B if each rank has one stage; else interleaved 1F1B, for groups of p, which is its default, and of other sizes
    that it accepts."""
    p, chunks = len(pipeline.chunks), len(pipeline.stages) // len(pipeline.chunks)

    def rows(turns: TurnRule) -> list[list[tuple[int, int]]]:
        return [turns.row(rank, p, [(pipeline.stages[s],) for s in own], micro_batches)
                for rank, own in enumerate(pipeline.chunks)]

    if chunks == 1:
        yield OwnOrder("1F1B", rows(TurnRule((micro_batches,), 1)))
        return
    for size in dict.fromkeys((p, 2 * p, micro_batches)):
        whole, rest = divmod(micro_batches, size)
        if p <= size <= micro_batches and (not rest or rest >= p):
            groups = (size,) * whole + ((rest,) if rest else ())
            yield OwnOrder("interleaved 1F1B", rows(TurnRule(groups, 2)), {} if size == p else {GROUP: size})


def _require(schedule: Schedule, pipeline: Pipeline) -> None:
    """Refuse layers that no layout has, and numbers of micro-batches that its orders do not support."""
    p, chunks = len(pipeline.chunks), len(pipeline.stages) // len(pipeline.chunks)
    letters = letters_of(schedule, pipeline, _TITLE)
    if chunks > 1 and schedule.micro_batches < p:
        raise ExportError(f"{_TITLE} cannot run {schedule.problem.name!r}: {schedule.micro_batches} micro-batches are "
                          f"fewer than its {p} ranks, and interleaved 1F1B takes that many at least")
    with_m = [s for s, word in enumerate(letters) if "m" in word]
    if len(with_m) > 1:
        raise ExportError(f"{_TITLE} cannot express {schedule.problem.name!r}: layers of multi-token prediction are on "
                          f"stages {', '.join(map(str, with_m))}, and there all are on one")
    if with_m and (with_m[0] < len(letters) - p or (with_m[0] % p == 0 and p > 1)):
        raise ExportError(f"{_TITLE} cannot express {schedule.problem.name!r}: multi-token prediction is on stage "
                          f"{with_m[0]} of {len(letters)}, and there it is on the last chunk of a rank, but the first")


def arguments_of(run: ToolRun) -> MegatronArguments:
    """Megatron's arguments for ``run``, which is one of its own. Raises
    :class:`~weft.runtime.export.forms.ExportError` if its layers have no letters."""
    schedule = run.schedule
    pipeline = Pipeline.of(schedule.problem)
    layout = tuple(letters_of(schedule, pipeline, _TITLE))
    found = _grid_settings(schedule)
    return MegatronArguments(**{**found, "tensor": found.get("tensor", run.gpus)},  # a group's GPUs compute together
                             pipeline=len(pipeline.chunks), layout=layout, group=run.settings.get(GROUP))


def _grid_settings(schedule: Schedule) -> dict[str, Any]:
    """The settings of the schedule's grid beside its pipeline (``solver["grid"]``); empty without one."""
    grid = schedule.solver.get("grid")
    if grid is None:
        return {}
    same = ("tensor", "context", "expert", "micro_batch", "recompute", "zero", "context_keys", "overlap_experts")
    return {**{key: grid[key] for key in same if key in grid},
            "sequence_parallel": grid["sequence_parallel"] and grid["tensor"] > 1,
            "batch": grid["micro_batches"] * grid["micro_batch"] * grid["data"]}


MEGATRON = Tool("megatron", _TITLE, "arguments", shapes=("chain", "loop"), own=megatron_orders, require=_require,
                alike=True, text=lambda run: arguments_of(run).text())
