"""Reading the user's file: YAML to a checked :class:`Spec`, with errors that name file, line and field.

The contents of a spec are defined in :mod:`weft.models.spec.sections` and :mod:`weft.models.spec.model_sections`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from weft.models.files.limits import MAX_NAME, MAX_SPEC_BYTES, PRINTABLE
from weft.models.spec.cluster import Cluster
from weft.models.spec.families import FAMILIES, GptModel
from weft.models.spec.fields import lengths_text
from weft.models.spec.model_sections import (
    CONFIG,
    DRAWN,
    EXPLICIT,
    FAMILY,
    FILE,
    GRAPH,
    GRAPH_NETWORK,
    ConfigModel,
    DrawnGraph,
    ExplicitModel,
    GraphModel,
    GraphNetworkModel,
    LayerSpec,
    NetworkLayer,
    kind_of_model,
)
from weft.models.spec.phases import BY_STEPS, CURVES, DtsDensity, Phases, Temperature
from weft.models.spec.placement import Parallel, PlacementSection
from weft.models.spec.sections import Inference, Spec, TrainingRun
from weft.models.spec.transformers import EncoderModel, LatentAttention
from weft.models.spec.yaml_lines import LinedYaml, YamlError, show_path
from weft.solver.io.reading import read_text
from weft.solver.spelling import near

__all__ = ["Spec", "SpecError", "checked", "demo_spec", "load_spec", "named_file", "parse_spec", "path_in",
           "spec_schema", "with_lengths", "with_values"]

#: The sections of a file, by path.
Sections: TypeAlias = Mapping[tuple[str, ...], type[BaseModel]]
Found = TypeVar("Found", bound=BaseModel)

_SECTIONS: Sections = {
    ("cluster",): Cluster, ("training",): TrainingRun, ("inference",): Inference, ("placement",): PlacementSection,
    ("model", "layers"): LayerSpec, ("model", "graph"): DrawnGraph, ("model", "latent"): LatentAttention,
    ("model", "text"): EncoderModel, ("model", "image"): EncoderModel, ("parallel",): Parallel, ("phases",): Phases}
_TYPES = {
    "bool_type": "true or false", "dict_type": "a mapping", "int_from_float": "a whole number", "int_type":
    "a whole number", "list_type": "a list", "model_type": "a mapping", "string_type": "text", "tuple_type": "a list",
}


class SpecError(ValueError):
    """A spec that cannot be used: one sentence with the file, the line and the field at fault."""


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """Read a spec file. Raises :class:`SpecError`."""
    text = read_text(path, MAX_SPEC_BYTES, "a spec", SpecError)
    return parse_spec(text, os.fspath(path), Path(path).parent)


def parse_spec(text: str, where: str = "spec", folder: Path | None = None) -> Spec:
    """The spec in ``text`` (YAML). ``where`` is the prefix of every message; relative paths start from ``folder``.

    Raises :class:`SpecError`.
    """
    spec, value = checked(Spec, text, where, _SECTIONS, folder=folder)
    if "name" not in value and re.fullmatch(PRINTABLE, Path(where).stem):
        spec = spec.model_copy(update={"name": Path(where).stem[:MAX_NAME]})
    spec._where, spec._folder = where, folder
    training = value.get("training")
    return with_lengths(spec, counted=isinstance(training, dict) and "micro_batches" in training)


def with_values(spec: Spec, values: Mapping[str, Any], reason: str) -> Spec:
    """``spec`` with other ``values``, by their path in the file, and without phases. ``reason`` begins every message
    after the file's name. Raises :class:`SpecError` for invalid values."""
    data = spec.model_dump(mode="json", exclude_unset=True, exclude={"phases"})
    for path, value in values.items():
        *sections, name = path.split(".")
        section = data
        for step in sections:
            section = section.setdefault(step, {})
            if not isinstance(section, dict):
                raise SpecError(f"{spec.where}: {reason}: {path} is no entry of a spec")
        section[name] = value
    found, _ = checked(Spec, json.dumps(data), f"{spec.where}: {reason}", _SECTIONS, lines=False,
                       folder=spec.folder)
    found = found.model_copy(update={"name": spec.name})
    found._where, found._folder = spec.where, spec.folder
    return found


def checked(kind: type[Found], text: str, where: str, sections: Sections, *,
            lines: bool = True, folder: Path | None = None) -> tuple[Found, dict[str, Any]]:
    """The contents of ``text`` (YAML) as a ``kind`` with ``sections``, and as plain data. ``where`` is the prefix of
    every message; ``lines``: messages include the line, which is useful for text written by the user. ``folder``: the
    base of relative paths of device tables.

    Raises :class:`SpecError`.
    """
    if not text.strip():
        raise SpecError(f"{where}: is empty")
    try:
        source = LinedYaml(text)
    except YamlError as error:
        raise SpecError(f"{where}: {f'line {error.line}: ' if error.line and lines else ''}{error}") from None
    try:
        return kind.model_validate(source.value, context={"folder": folder}), source.value
    except ValidationError as error:
        raise SpecError(_sentence(error, source, where, {(): kind, **sections}, lines)) from None
    except RecursionError:
        raise SpecError(f"{where}: is nested too deeply") from None


def with_lengths(spec: Spec, *, counted: bool = False) -> Spec:
    """``spec`` with the lengths of its micro-batches if they are in a file (``training.lengths``).

    ``counted``: whether the number of micro-batches was given beside them. Raises :class:`SpecError` for a missing
    file, other contents, or another number of lengths.
    """
    run = spec.training
    if run is None or not isinstance(run.lengths, str):
        return spec
    path = named_file(spec, "training.lengths", run.lengths)
    text = read_text(path, MAX_SPEC_BYTES, "a list of lengths", SpecError)
    try:
        lengths = lengths_text(text)
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    if counted and run.micro_batches != len(lengths):
        raise SpecError(f"{spec.where}: training.micro_batches is {run.micro_batches}, but {path} holds {len(lengths)} "
                        "lengths; leave micro_batches out")
    filled = run.model_copy(update={"lengths": lengths, "micro_batches": len(lengths)})
    return spec.model_copy(update={"training": filled})


def path_in(spec: Spec, name: str) -> Path:
    """The path of ``name`` in ``spec``."""
    return Path(name) if spec.folder is None else spec.folder / name


def named_file(spec: Spec, entry: str, name: str) -> Path:
    """The file named by ``entry`` of ``spec``. Raises :class:`SpecError` if it does not exist."""
    path = path_in(spec, name)
    try:
        there = path.is_file()
    except OSError as error:  # such as a name that is too long
        raise SpecError(f"{spec.where}: {entry} is {name}: {error.strerror or error}") from None
    if not there:
        raise SpecError(f"{spec.where}: {entry} is {name}, but there is no file {path}; name "
                        "one from the spec's folder")
    return path


def demo_spec() -> Spec:
    """The spec of ``weft demo``, shipped with the package."""
    shipped = resources.files("weft.models") / "data" / "demo.yaml"
    return parse_spec(shipped.read_text(encoding="utf-8"), "demo.yaml")


def spec_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Spec.model_json_schema()}


# -- from pydantic's findings to one sentence --------------------------------------------------------------------


def _sentence(error: ValidationError, source: LinedYaml, where: str, sections: Sections, lines: bool) -> str:
    """One sentence for the first finding in the file; unknown keys come before errors that they may cause."""
    findings = [(_rank(entry["type"]), source.line(_entry_path(entry)), entry) for entry in error.errors()]
    _, line, entry = min(findings, key=lambda finding: finding[:2])
    path = _entry_path(entry)
    place = f"{where}: line {line}" if lines else where
    return f"{place}: {_finding(entry, path, source, sections)}"


def _rank(kind: str) -> int:
    return {"extra_forbidden": 0, "missing": 2, "too_short": 3}.get(kind, 1)


def _entry_path(entry: Mapping[str, Any]) -> tuple[str | int, ...]:
    path = _path(entry["loc"])
    return (*path, "family") if entry["type"].startswith("union_tag") else path


def _path(location: tuple[int | str, ...]) -> tuple[str | int, ...]:
    steps = list(location)
    if FAMILY in steps:  # pydantic's tags: the kind of model section, followed by the family
        at = steps.index(FAMILY)
        del steps[at:at + 1 + (len(steps) > at + 1 and steps[at + 1] in FAMILIES)]
    if steps[:1] == ["phases"] and len(steps) > 2 and steps[2] in CURVES:
        del steps[2]
    return tuple(step for step in steps if step not in (
        EXPLICIT, CONFIG, GRAPH, GRAPH_NETWORK, BY_STEPS, FILE, DRAWN))


def _finding(entry: Mapping[str, Any], path: tuple[str | int, ...], source: LinedYaml, sections: Sections) -> str:
    kind, field, context = entry["type"], show_path(path), entry.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, source, sections)
    if kind == "missing":
        meaning = _allowed_keys(path[:-1], source, sections).get(str(path[-1]), "").rstrip(".")
        return f"{field} is missing" + (f": {meaning[0].lower()}{meaning[1:]}" if meaning else "")
    if kind.startswith("union_tag") and path[0] == "phases":
        return f"{show_path(path[:-1])}: kind is {context.get('tag')}, it must be {_either(list(CURVES))}"
    if kind.startswith("union_tag"):
        found = "missing" if kind == "union_tag_not_found" else source.text(path)
        return (f"{field} is {found}, it must be {_either([*FAMILIES, 'graph-network'])}"
                f"{near(str(context.get('tag', '')), [*FAMILIES, 'graph-network'])}")
    if kind == "section":
        return (f"{field}: " if field else "") + str(context["message"])
    found = f"{field} is {source.text(path)}"
    if kind == "value_error":
        return f"{found}, {context['error']}"
    if kind == "literal_error":
        choices = [choice.strip("' ") for choice in str(context["expected"]).replace(" or ", ",").split(",")]
        return f"{found}, it must be {_either(choices)}{near(str(entry['input']), choices)}"
    if kind == "greater_than_equal":
        return f"{found}, it must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"{found}, it must be at most {context['le']}"
    if kind in ("too_short", "string_too_short"):
        return f"{field} is empty" if context["min_length"] == 1 else (
            f"{field} has fewer than {context['min_length']} entries")
    if kind in ("string_pattern_mismatch", "string_unicode"):
        return f"{field} has characters that cannot be shown (control characters, halves of surrogate pairs)"
    if kind == "string_too_long":
        return f"{field} is longer than {context['max_length']} letters"
    return f"{found}, it must be {_TYPES[kind]}" if kind in _TYPES else f"{found}: {entry['msg']}"


def _unknown_key(path: tuple[str | int, ...], source: LinedYaml, sections: Sections) -> str:
    allowed, section = list(_allowed_keys(path[:-1], source, sections)), show_path(path[:-1])
    name = str(path[-1])
    return (f"{f'{section}: ' if section else ''}unknown key {name!r}{near(name, allowed)}"
            f"; the keys are {', '.join(allowed)}")


def _allowed_keys(path: tuple[str | int, ...], source: LinedYaml, sections: Sections) -> dict[str, str]:
    """The keys of the section at ``path`` and their meanings."""
    names = tuple(step for step in path if isinstance(step, str))
    if names == ("model",):
        model = source.value["model"]
        kinds: dict[str, type[BaseModel]] = {EXPLICIT: ExplicitModel, CONFIG: ConfigModel, GRAPH: GraphModel,
                                             GRAPH_NETWORK: GraphNetworkModel}
        section = kinds.get(kind_of_model(model)) or FAMILIES.get(str(model.get("family")), GptModel)
    elif names[:1] == ("phases",) and len(names) > 1:
        curve = source.value["phases"][names[1]]
        section = Temperature if len(names) > 2 else CURVES.get(str(curve.get("kind")), DtsDensity)
    elif names == ("model", "graph") and kind_of_model(source.value["model"]) == GRAPH_NETWORK:
        section = DrawnGraph
    elif names == ("model", "layers") and kind_of_model(source.value["model"]) == GRAPH_NETWORK:
        section = NetworkLayer
    else:
        section = sections[names]
    return {name: field.description or "" for name, field in section.model_fields.items()}


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + " or " + choices[-1]
