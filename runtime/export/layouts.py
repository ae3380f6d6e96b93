"""Where layers go, in the words of Megatron-LM and torchtitan.

Both build the model themselves, from names of their own, and both derive a stage's rank from its number. So they take
only placements that follow their rule, and schedules that say which layers each stage holds (those of model specs do).

Megatron-LM (``--pipeline-model-parallel-layout``, read from its ``pipeline_parallel_layer_layout.py``): a stage is a
word of ``E`` (embedding), ``t`` (transformer layer), ``L`` (output layer and loss), stages are apart by ``|``, ``t*3``
is ``ttt``; stage s is on rank s modulo p. It takes the layout and runs 1F1B, interleaved where there are more stages
than ranks, in whatever order ours is.

torchtitan (``[parallelism]`` of its configuration, read from its ``distributed/pipeline_parallel.py``) runs our order:
it loads a compute-only CSV. The rank of a stage follows from the *name* of the schedule set beside it.
"""

from __future__ import annotations

import json
import os
import re
from itertools import groupby
from pathlib import Path

from weft.runtime.export.refusal import ExportError, pipeline_for
from weft.runtime.export.torch_csv import torch_csv
from weft.solver.io.writing import write_atomically
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

__all__ = ["megatron_flags", "megatron_layout", "save_megatron", "save_torchtitan", "torchtitan_settings"]

_EMBEDDING = re.compile("embed", re.IGNORECASE)
_HEAD = re.compile("head|output|logits|loss|norm", re.IGNORECASE)
_FQN = re.compile(r"tok_embeddings|layers\.\d+|norm|output|lm_head", re.ASCII)
#: torchtitan's schedule whose stages lie as ours do; the CSV replaces its order.
_SCHEDULES = {"chain": "1F1B", "loop": "Interleaved1F1B", "v": "ZBVZeroBubble"}


def megatron_layout(schedule: Schedule) -> str:
    """The layout string, as ``Et*3|t*4|t*4|t*3L``.

    Raises :class:`~weft.runtime.export.refusal.ExportError` where stages do not lie round and round on the ranks, or
    their layers are not known or no embedding, transformer layers and head.
    """
    pipeline = pipeline_for(schedule, "Megatron-LM's layout")
    name = schedule.problem.name
    p = len(schedule.problem.devices)
    for s, stage in enumerate(pipeline.stages):
        if len(pipeline.stages) % p or stage.device != s % p:
            raise ExportError(f"Megatron-LM's layout cannot express {name!r}: stage {s} of {len(pipeline.stages)} is "
                              f"on device {schedule.problem.devices[stage.device].name!r}, and Megatron lays stages "
                              f"round and round, equally many on each of {p} ranks")
    words = []
    for letters in _letters(schedule, pipeline, "Megatron-LM's layout"):
        counts = ((letter, len(list(run))) for letter, run in groupby(letters))
        words.append("".join(letter if letter == "L" or n == 1 else f"{letter}*{n}" for letter, n in counts))
    return "|".join(words)


def megatron_flags(schedule: Schedule) -> str:
    """The flags for Megatron-LM's command line, one a line, quoted as a shell and ``xargs`` read them.

    Raises what :func:`megatron_layout` does.
    """
    return (f"--pipeline-model-parallel-size {len(schedule.problem.devices)}\n"
            f"--pipeline-model-parallel-layout \"{megatron_layout(schedule)}\"\n")


def save_megatron(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write :func:`megatron_flags` to ``path``, whole or not at all. Raises ``OSError`` too."""
    write_atomically(path, megatron_flags(schedule))


def torchtitan_settings(schedule: Schedule, csv: str) -> str:
    """The ``[parallelism]`` table, TOML; ``csv`` is where the order lies
    (:func:`weft.runtime.export.torch_csv.torch_csv`).

    Layers whose names are torchtitan's keep them; otherwise the embedding becomes ``tok_embeddings``, the layers
    ``layers.0`` and on, the head ``norm`` and ``output``. Raises :class:`~weft.runtime.export.refusal.ExportError` for
    stages that lie neither one a rank nor in a loop nor in a V, and for layers as :func:`megatron_layout` does.
    """
    pipeline = pipeline_for(schedule, "torchtitan")
    if pipeline.shape not in _SCHEDULES:
        places = ", ".join(schedule.problem.devices[stage.device].name for stage in pipeline.stages)
        raise ExportError(f"torchtitan cannot express {schedule.problem.name!r}: its stages are on {places}, and "
                          "torchtitan has one stage a rank, a loop, or a V only")
    parts = "".join(f"    {json.dumps(names)},\n" for names in _fqns(schedule, pipeline))
    return (f"# A torchtitan without num_pp_microbatches needs {schedule.micro_batches} times\n"
            "# pipeline_parallel_microbatch_size as its local_batch_size instead.\n"
            "[parallelism]\n"
            f"pipeline_parallel_degree = {len(schedule.problem.devices)}\n"
            f"pipeline_parallel_schedule = {json.dumps(_SCHEDULES[pipeline.shape])}\n"
            f"pipeline_parallel_schedule_csv = {json.dumps(csv, ensure_ascii=False)}\n"
            f"num_pp_microbatches = {schedule.micro_batches}\n"
            f"module_fqns_per_model_part = [\n{parts}]\n")


def save_torchtitan(schedule: Schedule, path: str | os.PathLike[str], *, torch: str = "2.13") -> Path:
    """Write :func:`torchtitan_settings` to ``path`` and the CSV beside it; returns the CSV's path.

    Raises what :func:`torchtitan_settings` and :func:`weft.runtime.export.torch_csv.torch_csv` do, and ``OSError``.
    """
    order = Path(path).with_suffix(".csv")
    if order == Path(path):
        raise ValueError(f"{os.fspath(path)}: torchtitan's settings are TOML, and a CSV is written beside them; name "
                         "the settings .toml")
    settings, text = torchtitan_settings(schedule, os.fspath(order)), torch_csv(schedule, torch=torch)
    write_atomically(order, text)
    write_atomically(path, settings)
    return order


# -- layers --------------------------------------------------------------------------------------------------------


def _layers(schedule: Schedule, pipeline: Pipeline, tool: str) -> list[list[str]]:
    """Per stage the names of its layers, as the search has written them down."""
    found = schedule.solver.get("layers_of_stage")
    if (not isinstance(found, list) or len(found) != len(pipeline.stages)
            or not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found)):
        raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: the schedule does not say which layers "
                          "its stages hold; solve a model spec, not a block problem")
    return found


def _letters(schedule: Schedule, pipeline: Pipeline, tool: str) -> list[str]:
    """Per stage, a letter for each layer: E, t or L. What stands at the end and is called norm, head, output or the
    like is together the head."""
    layers = _layers(schedule, pipeline, tool)
    names = [name for stage in layers for name in stage]
    head = len(names)
    while head > 1 and _HEAD.search(names[head - 1]):
        head -= 1
    if not names or not _EMBEDDING.search(names[0]) or head == len(names):
        odd = names[0] if not names or not _EMBEDDING.search(names[0]) else names[-1]
        raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: layer {odd!r} is not called as an "
                          f"{'embedding' if odd == names[0] else 'output head'} is, and a model of its kind is an "
                          "embedding, equal layers and a head")
    if head < len(names) - len(layers[-1]):
        raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: its head is layers "
                          f"{', '.join(map(repr, names[head:]))}, which are not all on the last stage")
    for name in names[1:head]:
        if _EMBEDDING.search(name) or _HEAD.search(name):
            raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: layer {name!r} is in the middle, "
                              "where only transformer layers may be")
    letters, place = [], 0
    for stage in layers:
        word = ""
        for _ in stage:
            word += "E" if place == 0 else "t" if place < head else "L" if place == head else ""
            place += 1
        letters.append(word)
    return letters


def _fqns(schedule: Schedule, pipeline: Pipeline) -> list[list[str]]:
    layers = _layers(schedule, pipeline, "torchtitan")
    if all(_FQN.fullmatch(name) for names in layers for name in names):
        return layers
    result, number = [], 0
    for word in _letters(schedule, pipeline, "torchtitan"):
        names: list[str] = []
        for letter in word:
            names += {"E": ["tok_embeddings"], "t": [f"layers.{number}"], "L": ["norm", "output"]}[letter]
            number += letter == "t"
        result.append(names)
    return result
