"""torchtitan: its ``[parallelism]`` table, with the order as PyTorch's CSV of computation.

torchtitan loads the CSV (:mod:`weft.runtime.export.torch_csv`), but the rank of a stage follows from the *name* of the
schedule in the table: one stage per rank, a loop, or a V. Replicas use FSDP (ZeRO-3, or 2 with ``never``) or full
copies.
Read from its ``distributed/pipeline_parallel.py``.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.runtime.export.forms import ExportError, pipeline_for
from weft.runtime.export.tools.tool import Tool, layers_of, letters_of
from weft.runtime.export.torch_csv import require_outputs_in_order, torch_csv
from weft.solver.io.entries import FormatError, read_input
from weft.solver.io.writing import write_atomically
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

_TITLE = "torchtitan"
_FQN = re.compile(r"tok_embeddings|layers\.\d+|norm|output|lm_head", re.ASCII)
#: torchtitan's schedule with the same placement of stages; the CSV replaces its order.
_SCHEDULES = {"chain": "1F1B", "loop": "Interleaved1F1B", "v": "ZBVZeroBubble"}
#: The placement of stages in each of its schedules.
_SHAPES = {"1f1b": "chain", "gpipe": "chain", "interleaved1f1b": "loop", "interleavedzerobubble": "loop",
           "loopedbfs": "loop", "pipelineschedulemulti": "loop", "pipelineschedulesingle": "chain",
           "zbvzerobubble": "v", "dualpipev": "v"}


def _require(schedule: Schedule, pipeline: Pipeline) -> None:
    require_outputs_in_order(schedule, pipeline)
    _fqns(schedule, pipeline)


TORCHTITAN = Tool("torchtitan", _TITLE, "settings and the order, as CSV", shapes=("chain", "loop", "v"), splits=True,
                  require=_require, alike=True, zero=(0, 2, 3))


def torchtitan_settings(schedule: Schedule, csv: str) -> str:
    """The ``[parallelism]`` table, TOML; ``csv`` is the path of the order
    (:func:`weft.runtime.export.torch_csv.torch_csv`).

    Layers with torchtitan's names keep them; otherwise the embedding becomes ``tok_embeddings``, the layers
    ``layers.0`` and on, the head ``norm`` and ``output``. Raises :class:`~weft.runtime.export.forms.ExportError` for
    stages that are neither one a rank nor in a loop nor in a V, and for layers without a name there.
    """
    run = TORCHTITAN.run(schedule)
    ranks, gpus = run.schedule, run.gpus
    pipeline = pipeline_for(ranks, _TITLE)
    parts = "".join(f"    {json.dumps(names)},\n" for names in _fqns(ranks, pipeline))
    return ("# A torchtitan without num_pp_microbatches needs "
            f"{schedule.micro_batches} times\n"
            "# pipeline_parallel_microbatch_size as its local_batch_size instead.\n"
            "[parallelism]\n"
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in _grid_settings(schedule, gpus).items()) +
            f"pipeline_parallel_degree = {len(ranks.problem.devices)}\n"
            f"pipeline_parallel_schedule = {json.dumps(_SCHEDULES[pipeline.shape])}\n"
            f"pipeline_parallel_schedule_csv = {json.dumps(csv, ensure_ascii=False)}\n"
            f"num_pp_microbatches = {schedule.micro_batches}\n"
            f"module_fqns_per_model_part = [\n{parts}]\n")


def _grid_settings(schedule: Schedule, gpus: int) -> dict[str, Any]:
    """The settings of the schedule's grid beside its pipeline; without one, those of ranks of ``gpus`` GPUs."""
    grid = schedule.solver.get("grid")
    if grid is None:
        return {"tensor_parallel_degree": gpus} if gpus > 1 else {}
    whole = grid["zero"] == 0
    found = {"data_parallel_replicate_degree": grid["data"] if whole else 1,
             "data_parallel_shard_degree": 1 if whole else grid["data"], "tensor_parallel_degree": grid["tensor"],
             "context_parallel_degree": grid["context"], "expert_parallel_degree": grid["expert"],
             "pipeline_parallel_microbatch_size": grid["micro_batch"]}
    reshard = {} if whole else {"fsdp_reshard_after_forward": "always" if grid["zero"] == 3 else "never"}
    return {**{key: value for key, value in found.items() if value != 1 or "shard" in key}, **reshard}


def save_torchtitan(schedule: Schedule, path: str | os.PathLike[str], *, torch: str = "2.13") -> Path:
    """Write :func:`torchtitan_settings` to ``path`` and the CSV beside it; returns the CSV's path.

    Raises the errors of :func:`torchtitan_settings` and :func:`weft.runtime.export.torch_csv.torch_csv`, and
    ``OSError``.
    """
    order = Path(path).with_suffix(".csv")
    if order == Path(path):
        raise ValueError(f"{os.fspath(path)}: torchtitan's settings are TOML, and a CSV is written beside them; name "
                         "the settings .toml")
    settings, text = torchtitan_settings(schedule, os.fspath(order)), torch_csv(schedule, torch=torch)
    write_atomically(order, text)
    write_atomically(path, settings)
    return order


@dataclass(frozen=True, slots=True)
class TorchtitanSettings:
    """The settings of a ``[parallelism]`` table: ``stages``: the letters of each, ``shape``: their placement on ranks,
    ``csv``: the path of the order, ``None`` if it is that of ``schedule``."""

    pipeline: int
    stages: tuple[str, ...]
    shape: str
    schedule: str
    csv: str | None = None
    micro_batches: int | None = None
    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int | None = None
    zero: int | None = None
    micro_batch: int | None = None


def read_torchtitan(path: str | os.PathLike[str]) -> TorchtitanSettings:
    """The settings in the file ``path``. Raises ``FormatError`` for what is no such table, or leaves out which layers
    the stages hold."""
    where, text = os.fspath(path), read_input(path)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is no TOML: {error}") from None
    table = found.get("parallelism")
    if not isinstance(table, dict):
        raise FormatError(f"{where}: has no [parallelism] table")

    def number(key: str, default: int | None) -> int | None:
        value = table.get(key, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise FormatError(f"{where}: parallelism.{key} is {value!r:.60}, it must be a whole number of at least 1")
        return value

    degree = number("pipeline_parallel_degree", 1) or 1
    schedule = table.get("pipeline_parallel_schedule", "1F1B")
    shape = _SHAPES.get(str(schedule).lower())
    if shape is None:
        raise FormatError(f"{where}: parallelism.pipeline_parallel_schedule is {schedule!r:.60}, it must be one of "
                          "1F1B, GPipe, Interleaved1F1B, InterleavedZeroBubble, LoopedBFS, ZBVZeroBubble, DualPipeV")
    parts = table.get("module_fqns_per_model_part")
    if not isinstance(parts, list) or not parts or not all(
            isinstance(names, list) and names and all(isinstance(name, str) for name in names) for names in parts):
        raise FormatError(f"{where}: parallelism.module_fqns_per_model_part must list the names of the modules of each "
                          "stage")
    if len(parts) % degree:
        raise FormatError(f"{where}: parallelism.module_fqns_per_model_part has {len(parts)} stages, no multiple of "
                          f"pipeline_parallel_degree {degree}")
    csv = table.get("pipeline_parallel_schedule_csv") or None
    if csv is not None and not isinstance(csv, str):
        raise FormatError(f"{where}: parallelism.pipeline_parallel_schedule_csv is {csv!r:.60}, it must be a path")
    return TorchtitanSettings(degree, tuple(_letters(where, names) for names in parts), shape, str(schedule), csv,
                              number("num_pp_microbatches", None), number("tensor_parallel_degree", 1) or 1,
                              number("context_parallel_degree", 1) or 1, number("expert_parallel_degree", 1) or 1,
                              *_replicas(table, number), number("pipeline_parallel_microbatch_size", None))


def _replicas(table: dict[str, Any], number: Callable[[str, int | None], int | None]) -> tuple[int | None, int | None]:
    """The number of replicas, and the stage of ZeRO of those that share their state; ``None`` where not given."""
    shards = None if table.get("data_parallel_shard_degree") == -1 else number("data_parallel_shard_degree", None)
    copies = number("data_parallel_replicate_degree", 1) or 1
    stage = {"always": 3, "never": 2}.get(str(table.get("fsdp_reshard_after_forward")), 2)  # beside a pipeline
    if shards == 1 and copies > 1:
        return copies, 0
    return (None, None) if shards is None else (copies * shards, stage)


def _letters(where: str, names: list[str]) -> str:
    word = ""
    for name in names:
        if not _FQN.fullmatch(name):
            raise FormatError(f"{where}: parallelism.module_fqns_per_model_part names {name!r:.60}, which is none of "
                              "tok_embeddings, layers.N, norm, output, lm_head")
        word += "E" if name == "tok_embeddings" else "t" if name.startswith("layers.") else "L"
    return re.sub("L+", "L", word)


def _fqns(schedule: Schedule, pipeline: Pipeline) -> list[list[str]]:
    layers = layers_of(schedule, pipeline, _TITLE)
    if all(_FQN.fullmatch(name) for names in layers for name in names):
        return layers
    result, number = [], 0
    for word in letters_of(schedule, pipeline, _TITLE):
        names: list[str] = []
        for letter in word:
            if letter == "m":
                raise ExportError(f"{_TITLE} cannot express {schedule.problem.name!r}: it has no name for layers of "
                                  "multi-token prediction")
            names += {"E": ["tok_embeddings"], "t": [f"layers.{number}"], "L": ["norm", "output"]}[letter]
            number += letter == "t"
        result.append(names)
    return result
