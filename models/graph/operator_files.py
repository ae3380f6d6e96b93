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
from collections.abc import Iterable, Mapping
from typing import Any

from weft.models.files.limits import MAX_FLOPS, MAX_OPERATORS
from weft.models.files.reading import bad_name
from weft.models.graph.operators import Layout, Operator, OperatorError, OperatorGraph, Parameter, Split, Tensor, Work
from weft.models.spec.quantities import LARGEST
from weft.solver.io.entries import Entry, FormatError, read_json, require_format, show
from weft.solver.io.writing import write_atomically

__all__ = ["OPERATORS_FORMAT", "graph_from_json", "graph_to_json", "load_graph", "save_graph"]

OPERATORS_FORMAT = "weft.operators/1"


def load_graph(path: str | os.PathLike[str]) -> OperatorGraph:
    """Read a ``weft.operators/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return graph_from_json(read_json(path), os.fspath(path))


def save_graph(graph: OperatorGraph, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.operators/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(graph_to_json(graph), indent=1, allow_nan=False) + "\n")


# -- writing -----------------------------------------------------------------------------------------------------


def graph_to_json(graph: OperatorGraph) -> dict[str, Any]:
    """The ``weft.operators/1`` object of ``graph``."""
    return {
        "format": OPERATORS_FORMAT,
        "name": graph.name,
        "inputs": [_tensor_to_json(tensor) for tensor in graph.inputs],
        "outputs": list(graph.outputs),
        "parameters": [_parameter_to_json(parameter) for parameter in graph.parameters.values()],
        **_present(constants=[_parameter_to_json(constant) for constant in graph.constants.values()],
                   notes=list(graph.notes)),
        "operators": [_operator_to_json(operator) for operator in graph.operators],
    }


def _operator_to_json(operator: Operator) -> dict[str, Any]:
    return {
        "name": operator.name,
        "kind": operator.kind,
        "forward": _work_to_json(operator.forward),
        **{part: _work_to_json(work) for part, work in (("input_grad", operator.input_grad),
                                                        ("weight_grad", operator.weight_grad)) if work is not None},
        **_present(
            inputs=list(operator.inputs),
            outputs=[_tensor_to_json(tensor) for tensor in operator.outputs],
            internal=[_tensor_to_json(tensor) for tensor in operator.internal],
            parameters=[parameter.name for parameter in operator.parameters],
            constants=[constant.name for constant in operator.constants],
            keeps=list(operator.keeps)),
        **({} if operator.deferred is None else {"deferred": list(operator.deferred)}),
        **_present(workspace=operator.workspace, layer=operator.layer),
        **({} if operator.colocate is None else {"colocate": operator.colocate}),
        **({} if operator.devices is None else {"devices": sorted(operator.devices)}),
        **_present(splits=[_split_to_json(split) for split in operator.splits]),
    }


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "bytes": tensor.bytes,
            **_present(shape=list(tensor.shape), dtype=tensor.dtype),
            **({} if tensor.base is None else {"base": tensor.base})}


def _parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    return {"name": parameter.name, "count": parameter.count, "bytes": parameter.bytes,
            **_present(shape=list(parameter.shape))}


def _work_to_json(work: Work) -> list[float]:
    return [work.flops, work.bytes_read, work.bytes_written]


def _split_to_json(split: Split) -> dict[str, Any]:
    return {"dimension": split.dimension, "size": split.size,
            **_present(inputs=dict(split.inputs), outputs=dict(split.outputs), parameters=sorted(split.parameters))}


def _present(**fields: Any) -> dict[str, Any]:
    """Those fields that say something."""
    return {name: value for name, value in fields.items() if value}


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
        parameters, constants = _parameters(entry, "parameters"), _parameters(entry, "constants")
        return OperatorGraph(
            _text(entry, "name"),
            tuple(_operator(item, parameters, constants) for item in entry.list("operators")),
            tuple(_tensor(item) for item in entry.list("inputs", required=False)),
            _texts(entry, "outputs"),
            _texts(entry, "notes"),
        )
    except OperatorError as error:
        raise FormatError(f"{where}: {error}") from None


def _parameters(entry: Entry, field: str) -> Mapping[str, Parameter]:
    found: dict[str, Parameter] = {}
    for item in entry.list(field, required=False):
        item.allow("name", "count", "bytes", "shape")
        name = _text(item, "name")
        if name in found:
            raise FormatError(f"{item.where}: the name {name!r} is used twice")
        found[name] = Parameter(name, _amount(item, "count"), _amount(item, "bytes"), _counts(item, "shape"))
    return found


def _operator(entry: Entry, parameters: Mapping[str, Parameter], constants: Mapping[str, Parameter]) -> Operator:
    entry.allow("name", "kind", "forward", "input_grad", "weight_grad", "inputs", "outputs", "internal", "parameters",
                "constants", "keeps", "deferred", "workspace", "layer", "colocate", "devices", "splits")
    return Operator(
        name=_text(entry, "name"),
        kind=_text(entry, "kind"),
        forward=_work(entry, "forward"),
        inputs=_texts(entry, "inputs"),
        outputs=tuple(_tensor(item) for item in entry.list("outputs", required=False)),
        input_grad=_work(entry, "input_grad") if entry.has("input_grad") else None,
        weight_grad=_work(entry, "weight_grad") if entry.has("weight_grad") else None,
        parameters=_named(entry, "parameters", parameters),
        internal=tuple(_tensor(item) for item in entry.list("internal", required=False)),
        keeps=_texts(entry, "keeps"),
        deferred=_texts(entry, "deferred") if entry.has("deferred") else None,
        workspace=_amount(entry, "workspace") if entry.has("workspace") else 0,
        splits=tuple(_split(item) for item in entry.list("splits", required=False)),
        layer=_text(entry, "layer") if entry.has("layer") else "",
        colocate=_text(entry, "colocate") if entry.has("colocate") else None,
        devices=frozenset(_texts(entry, "devices")) if entry.has("devices") else None,
        constants=_named(entry, "constants", constants),
    )


def _named(entry: Entry, field: str, known: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    names = _texts(entry, field)
    for name in names:
        if name not in known:
            raise FormatError(f"{entry.where}: {field}: {name!r} is not listed in the file's {field}")
    return tuple(known[name] for name in names)


def _tensor(entry: Entry) -> Tensor:
    entry.allow("name", "bytes", "shape", "dtype", "base")
    return Tensor(_text(entry, "name"), _amount(entry, "bytes"), _counts(entry, "shape"),
                  _text(entry, "dtype") if entry.has("dtype") else "",
                  _text(entry, "base") if entry.has("base") else None)


def _work(entry: Entry, field: str) -> Work:
    value = entry.get(field)
    if not isinstance(value, list) or len(value) != 3:
        raise FormatError(f"{entry.where}: {field} must be a list of flops, bytes read and bytes written")
    parts = Entry(dict(zip(("flops", "bytes_read", "bytes_written"), value, strict=True)), f"{entry.where}: {field}")
    flops = parts.number("flops")
    if not 0 <= flops <= MAX_FLOPS:
        raise FormatError(f"{parts.where}: flops is {show(flops)}, it must be from 0 to {MAX_FLOPS:g}")
    return Work(flops, _amount(parts, "bytes_read"), _amount(parts, "bytes_written"))


def _split(entry: Entry) -> Split:
    entry.allow("dimension", "size", "inputs", "outputs", "parameters")
    return Split(_text(entry, "dimension"), _amount(entry, "size"), _layouts(entry, "inputs"),
                 _layouts(entry, "outputs"), frozenset(_texts(entry, "parameters")))


def _layouts(entry: Entry, field: str) -> Mapping[str, Layout]:
    if not entry.has(field):
        return {}
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
