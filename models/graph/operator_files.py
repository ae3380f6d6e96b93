"""The file of an operator graph, ``weft.operators/1``: one JSON object.

======================  ===============================================================================================
field                   meaning
======================  ===============================================================================================
``format``              ``"weft.operators/1"``
``name``                the model's name
``inputs``              tensors that come from outside, each ``{name, bytes, shape, dtype, base}``: ``bytes`` of its own
                        elements, ``shape`` in elements, ``base`` the tensor whose storage it is a view of; all but
                        ``name`` and ``bytes`` may be left out
``outputs``             names of the tensors that leave the model
``parameters``          trained tensors, each ``{name, count, bytes, shape}``; once, however many operators hold it
``constants``           the same for what is held and not trained; may be left out
``notes``               sentences on what the numbers assume; may be left out
``operators``           the operators, each as below; all but ``name``, ``kind`` and ``forward`` may be left out
======================  ===============================================================================================

======================  ===============================================================================================
of an operator          meaning
======================  ===============================================================================================
``name``, ``kind``      its name, and what it does ("linear")
``forward``             ``[flops, bytes read, bytes written]`` of its forward
``input_grad``          the same for the gradient of its inputs; left out where there is none
``weight_grad``         the same for the gradient of its parameters
``inputs``              names of the tensors it reads
``outputs``             the tensors it produces, as in the graph's ``inputs``
``internal``            tensors that only its own backward reads
``parameters``          names of the parameters it holds; ``constants`` likewise
``keeps``               names of its tensors that are held from its forward to its backward
``deferred``            of those, what a weight gradient needs that runs later; left out where it never does
``workspace``           bytes needed only while it runs
``layer``               the layer it belongs to; ``colocate``: operators of the same word share a device
``devices``             kinds of device it can run on; left out: all
``splits``              ways to divide it, each ``{dimension, size, inputs, outputs, parameters}``; the layout of a
                        tensor is ``"whole"``, ``"partial"`` or the number of the axis it is cut along
======================  ===============================================================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, TypeVar

from weft.models.files.limits import MAX_FLOPS, MAX_OPERATORS, bad_name
from weft.models.graph.operators import Layout, Operator, OperatorError, OperatorGraph, Parameter, Split, Tensor, Work
from weft.models.spec.quantities import LARGEST
from weft.solver.io.entries import Entry, FormatError, read_json, require_format, show
from weft.solver.io.writing import write_atomically

OPERATORS_FORMAT = "weft.operators/1"
_T = TypeVar("_T")


def load_graph(path: str | os.PathLike[str]) -> OperatorGraph:
    """Read a ``weft.operators/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return graph_from_json(read_json(path), os.fspath(path))


def save_graph(graph: OperatorGraph, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.operators/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(graph_to_json(graph), indent=1, allow_nan=False) + "\n")


# -- writing -----------------------------------------------------------------------------------------------------


def graph_to_json(graph: OperatorGraph) -> dict[str, Any]:
    """The ``weft.operators/1`` object of ``graph``."""
    operators = [_written(operator) for operator in graph.operators]
    for held in ("parameters", "constants"):
        for operator in operators:
            operator.update({held: [entry["name"] for entry in operator[held]]} if held in operator else {})
    told = {"constants": _written(tuple(graph.constants.values())), "notes": list(graph.notes)}
    return {"format": OPERATORS_FORMAT, "name": graph.name, "inputs": _written(graph.inputs),
            "outputs": list(graph.outputs), "parameters": _written(tuple(graph.parameters.values())),
            **{name: value for name, value in told.items() if value}, "operators": operators}


def _written(value: Any) -> Any:
    """``value`` as plain data; of an object those fields that do not have their default."""
    if isinstance(value, Work):
        return [value.flops, value.bytes_read, value.bytes_written]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | frozenset):
        return [_written(entry) for entry in (value if isinstance(value, tuple) else sorted(value))]
    if type(value) not in _FIELDS:
        return value
    default = {field.name: field.default_factory() if field.default_factory is not MISSING else field.default
               for field in fields(value)}
    found = {name: getattr(value, name) for name in _FIELDS[type(value)]}
    return {name: _written(entry) for name, entry in found.items() if entry != default[name]}


# -- reading -----------------------------------------------------------------------------------------------------


def graph_from_json(value: Any, where: str = "operators") -> OperatorGraph:
    """The graph of a ``weft.operators/1`` object; ``where`` (a file name) leads every error message.

    Raises :class:`~weft.solver.io.entries.FormatError`, also where the fields make no graph.
    """
    entry = Entry(value, where)
    require_format(entry, OPERATORS_FORMAT)
    for field in ("operators", "parameters", "constants", "inputs"):
        listed = entry.get(field, [])
        if isinstance(listed, list) and len(listed) > MAX_OPERATORS:
            raise FormatError(f"{where}: {field} has {len(listed)} entries, at most {MAX_OPERATORS} are supported")
    entry.allow("format", "name", "inputs", "outputs", "parameters", "constants", "notes", "operators")
    try:
        held = {field: partial(_named, known=_parameters(entry, field)) for field in ("parameters", "constants")}
        return OperatorGraph(
            _text(entry, "name"), tuple(_read(Operator, item, held) for item in entry.list("operators")),
            _tensors(entry, "inputs"), _texts(entry, "outputs"), _texts(entry, "notes"))
    except OperatorError as error:
        raise FormatError(f"{where}: {error}") from None


def _read(kind: type[_T], entry: Entry, readers: Mapping[str, Callable[[Entry, str], Any]] | None = None) -> _T:
    """An object of ``kind``; what has a default may be left out."""
    known = {**_FIELDS[kind], **(readers or {})}
    needed = {field.name for field in fields(kind)  # type: ignore[arg-type]
              if field.default is field.default_factory is MISSING}
    entry.allow(*known)
    return kind(**{name: read(entry, name) for name, read in known.items() if name in needed or entry.has(name)})


def _parameters(entry: Entry, field: str) -> Mapping[str, Parameter]:
    found: dict[str, Parameter] = {}
    for item in entry.list(field, required=False):
        parameter = _read(Parameter, item)
        if parameter.name in found:
            raise FormatError(f"{item.where}: the name {parameter.name!r} is used twice")
        found[parameter.name] = parameter
    return found


def _named(entry: Entry, field: str, known: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    names = _texts(entry, field)
    for name in names:
        if name not in known:
            raise FormatError(f"{entry.where}: {field}: {name!r} is not listed in the file's {field}")
    return tuple(known[name] for name in names)


def _tensors(entry: Entry, field: str) -> tuple[Tensor, ...]:
    return tuple(_read(Tensor, item) for item in entry.list(field, required=False))


def _work(entry: Entry, field: str) -> Work:
    value = entry.get(field)
    if not isinstance(value, list) or len(value) != 3:
        raise FormatError(f"{entry.where}: {field} must be a list of flops, bytes read and bytes written")
    parts = Entry(dict(zip(("flops", "bytes_read", "bytes_written"), value, strict=True)), f"{entry.where}: {field}")
    flops = parts.number("flops")
    if not 0 <= flops <= MAX_FLOPS:
        raise FormatError(f"{parts.where}: flops is {show(flops)}, it must be from 0 to {MAX_FLOPS:g}")
    return Work(flops, _amount(parts, "bytes_read"), _amount(parts, "bytes_written"))


def _layouts(entry: Entry, field: str) -> Mapping[str, Layout]:
    layouts = entry.child(field)
    for name, layout in layouts.value.items():
        if layout not in ("whole", "partial") and (not isinstance(layout, int) or isinstance(layout, bool)):
            raise FormatError(f"{layouts.where}: {name}: is neither 'whole', 'partial' nor the number of an axis")
    return layouts.value


def _text(entry: Entry, field: str) -> str:
    text = entry.text(field)
    wrong = bad_name(text)
    if wrong is not None:
        raise FormatError(f"{entry.where}: {field} {wrong}")
    return text


def _amount(entry: Entry, field: str) -> int:
    amount = entry.count(field)
    if amount > LARGEST:
        raise FormatError(f"{entry.where}: {field} is {show(amount)}, it must be at most {LARGEST}")
    return amount


def _texts(entry: Entry, field: str) -> tuple[str, ...]:
    texts = tuple(_all(entry, field, str, "texts"))
    for i, text in enumerate(texts):
        wrong = bad_name(text)
        if wrong is not None:
            raise FormatError(f"{entry.where}: {field}[{i}] {wrong}")
    return texts


def _counts(entry: Entry, field: str) -> tuple[int, ...]:
    counts = tuple(_all(entry, field, int, "whole numbers"))
    if any(not 0 <= count <= LARGEST for count in counts):
        raise FormatError(f"{entry.where}: {field} must be a list of whole numbers from 0 to {LARGEST}")
    return counts


def _all(entry: Entry, field: str, kind: type, what: str) -> Iterable[Any]:
    value = entry.get(field, [])
    if not isinstance(value, list) or not all(isinstance(item, kind) and not isinstance(item, bool) for item in value):
        raise FormatError(f"{entry.where}: {field} must be a list of {what}")
    return value


#: The fields of each object, in the order in which they are written, and what reads them.
_FIELDS: Mapping[type, Mapping[str, Callable[[Entry, str], Any]]] = {
    Tensor: {"name": _text, "bytes": _amount, "shape": _counts, "dtype": _text, "base": _text},
    Parameter: {"name": _text, "count": _amount, "bytes": _amount, "shape": _counts},
    Split: {"dimension": _text, "size": _amount, "inputs": _layouts, "outputs": _layouts,
            "parameters": lambda entry, field: frozenset(_texts(entry, field))},
    Operator: {
        "name": _text, "kind": _text, "forward": _work, "input_grad": _work, "weight_grad": _work, "inputs": _texts,
        "outputs": _tensors, "internal": _tensors, "parameters": _texts, "constants": _texts, "keeps": _texts,
        "deferred": _texts, "workspace": _amount, "layer": _text, "colocate": _text,
        "devices": lambda entry, field: frozenset(_texts(entry, field)),
        "splits": lambda entry, field: tuple(_read(Split, item) for item in entry.list(field, required=False))},
}
