"""A cache of captures on disk, so that a model is not exported at each start.

An entry's key describes the model: the classes of its modules and their files, its parameters and buffers, the example,
and the versions of torch and weft. The key alone is not sufficient, as a forward may call code and read settings from
anywhere. So the model is run once (:mod:`~weft.runtime.captured.run_trace`), and an entry is used only if this run and
the one at the time of writing have the same trace, operator by operator. Entries are written only for models whose
export and run call the same functions, and for graphs that can be serialised completely; other models are exported each
time. An unreadable or damaged entry counts as missing.
"""

from __future__ import annotations

import hashlib
import operator
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_flatten

from weft.runtime.captured.captured import Captured, CaptureError, autocasts, names_of, needs_fake_tensors
from weft.runtime.captured.cut import register
from weft.runtime.captured.marks import mark_of, put_mark
from weft.runtime.captured.regions import UnderAutocast, under_autocast
from weft.runtime.captured.run_trace import ForwardCalls, RunTrace, changed_attributes, metadata_of, restored, trace_run
from weft.runtime.ranks.words import some
from weft.solver.io.kept import keep, read_kept, sources_digest

CAPTURE_FORMAT = "weft.capture-cache/1"
#: The most bytes of a constant tensor in an entry: a capture with a larger one is not cached.
LARGE = 1 << 20
#: Types of operators' arguments that are written by name.
_TORCH = (torch.dtype, torch.layout, torch.memory_format)


class _NotCacheable(Exception):
    """The graph cannot be serialised completely."""


class _Metadata(Tensor):
    """A tensor with metadata alone. (Importing torch's fake tensors takes longer than reading an entry.)"""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a tensor without data")


def cached_capture(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device,
                   folder: Path | None) -> Captured:
    """The result of :meth:`~weft.runtime.captured.captured.Captured.of`, read from the cache ``folder/captures`` or
    written to it (``None``: no cache).

    Raises the same errors.
    """
    if folder is None or needs_fake_tensors(model) or (key := _key(model, args, kwargs)) is None:
        return _captured(model, args, kwargs, device, ForwardCalls(model))
    path = folder / "captures" / f"{key}.json"
    entry = read_kept(path, CAPTURE_FORMAT, key, "capture")
    run = None if entry is None else trace_run(model, args, kwargs)
    if entry is not None and run is not None and entry["digest"] == run.digest and (
            cached := _capture_of(entry, model, args, kwargs, run)) is not None:
        return cached
    captured = _captured(model, args, kwargs, device, calls := ForwardCalls(model))
    run = run or trace_run(model, args, kwargs)
    if run is not None and (run.calls, run.checkpoints) == (tuple(calls.lines), captured.checkpoints):
        _write(path, key, captured, args, kwargs, run)
    return captured


def _captured(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device,
              calls: ForwardCalls) -> Captured:
    """A new capture, whose calls are recorded in ``calls``, with the notes on what it has made constant."""
    random_state = random.getstate()
    with restored(model), calls.watching():
        captured = Captured.of(model, args, kwargs, device)
    kind, fixed = type(model).__name__, list[str]()
    if random.getstate() != random_state:
        fixed.append(f"the forward of {kind} draws from Python's random, of which the capture keeps what was drawn "
                     "once: draw by torch's operators, or switch it off (layerdrop=0)")
    if calls.changes and not needs_fake_tensors(model):
        names, matters = changed_attributes(model, args, kwargs)
        if names and matters:
            raise CaptureError(f"{kind} computes with {some(names, 3)}, which its forward changes, while a capture "
                               "keeps what it is in one run: make it a buffer, and change that in place")
        fixed += [f"the forward of {kind} changes {some(names, 3)} in each run, which the pipeline does not: nothing "
                  "that it computes depends on that now"] if names else []
    return replace(captured, fixed=tuple(fixed))


def _key(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """A key for a model and its example; ``None`` if a class has no file, as in a notebook."""
    files = set[str]()
    for kind in {type(module) for module in model.modules()}:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is None or not os.path.isfile(file):
            return None
        files.add(file)
    sources = {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(files)}
    leaves, spec = tree_flatten((args, kwargs))
    modules = [(name, f"{type(module).__module__}.{type(module).__qualname__}", module.training)
               for name, module in model.named_modules()]
    tensors = [(name, metadata_of(tensor), tensor.requires_grad, type(tensor).__name__) for name, tensor in (
        *model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))]
    given = [metadata_of(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    text = repr((CAPTURE_FORMAT, torch.__version__, sys.version, _makers(), sources, modules, tensors, str(spec), given,
                 autocasts(), torch.get_default_dtype(), sorted(names_of(model).values())))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _makers() -> str:
    """A digest of the sources of this folder: they may change without a change of the version."""
    return sources_digest(sorted(Path(__file__).parent.glob("*.py")))


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(path: Path, key: str, captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any],
           run: RunTrace) -> None:
    if (captured.in_spec, captured.out_spec) != (tree_flatten((tuple(args), dict(kwargs)))[1],
                                                 tree_flatten(run.result)[1]):
        return
    try:
        entry = {"digest": run.digest, "checkpoints": list(captured.checkpoints), "fixed": list(captured.fixed),
                 "nodes": [_written(captured, node) for node in captured.graph_module.graph.nodes]}
    except _NotCacheable:
        return
    keep(path, CAPTURE_FORMAT, key, "capture", entry)


def _written(captured: Captured, node: Node) -> dict[str, Any]:
    """A node as JSON values."""
    val = node.meta.get("val")
    record: dict[str, Any] = {
        "op": node.op, "name": node.name, "args": _value(tuple(node.args)), "kwargs": _value(dict(node.kwargs)),
        "looks": [_metadata(each) for each in val] if isinstance(val, tuple | list) else _metadata(val)}
    if isinstance(val, tuple | list):
        record["kind"] = type(val).__name__
    if (stack := node.meta.get("nn_module_stack")) is not None:
        record["stack"] = [[name, entry[0], entry[1] if isinstance(entry[1], str) else
                            f"{entry[1].__module__}.{entry[1].__qualname__}"] for name, entry in stack.items()]
    if (mark := mark_of(node)) is not None:
        record["mark"] = list(mark)
    if node.op == "get_attr":
        return {**record, "target": str(node.target), "holds": _attribute(captured, node)}
    if node.op in ("placeholder", "output"):
        return {**record, "target": str(node.target)}
    target: Any = node.target
    if isinstance(target, UnderAutocast):
        record["autocast"], target = _value(tuple(target.setting)), target.operator
    if isinstance(target, torch._ops.OpOverload):
        return {**record, "target": str(target)}
    if target is operator.getitem:
        return {**record, "target": "getitem"}
    raise _NotCacheable


def _attribute(captured: Captured, node: Node) -> Any:
    """The tensor of a ``get_attr`` node: the model's by name, one without data by its metadata, and a constant of the
    graph by its data."""
    value = captured.attribute(node)
    if not isinstance(value, Tensor):
        raise _NotCacheable
    if (own := captured.name_of(value)) is not None:
        return {"own": own}
    if str(node.target).startswith("looks_of_"):
        return {"look": _metadata(value)}
    lifted = all("lift_fresh" in str(user.target) for user in node.users)  # otherwise other code may change it
    if not lifted or value.requires_grad or value.nbytes > LARGE or value.device.type != "cpu":
        raise _NotCacheable
    flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return {"numbers": flat.numpy().tobytes().hex(), "look": _metadata(value)}


def _metadata(value: Any) -> Any:
    """The metadata of a tensor, and any other value, as JSON values."""
    if not isinstance(value, Tensor):
        return None if value is None else {"plain": _value(value)}
    if not all(type(n) is int for n in (*value.shape, *value.stride())):
        raise _NotCacheable
    return {"shape": list(value.shape), "stride": list(value.stride()), "dtype": _value(value.dtype),
            "device": str(value.device)}


def _value(value: Any) -> Any:
    """``value`` as JSON values: a type that JSON lacks is an object with the name of the type."""
    if isinstance(value, Node):
        return {"node": value.name}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [_value(each) for each in value]}
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[key, _value(each)] for key, each in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_value(value.start), _value(value.stop), _value(value.step)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    raise _NotCacheable


# -- reading -----------------------------------------------------------------------------------------------------------


def _capture_of(entry: Mapping[str, Any], model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any],
                run: RunTrace) -> Captured | None:
    """The capture in ``entry``, with the tensors of ``model``; ``None`` for an invalid entry."""
    own = dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))
    graph, root, nodes = Graph(), nn.Module(), dict[str, Node]()
    try:
        for item in entry["nodes"]:
            if item["op"] == "get_attr":
                register(root, item["target"], _tensor(item["holds"], own))
            node = nodes[item["name"]] = graph.create_node(
                item["op"], _target(item), _read(item["args"], nodes), _read(item["kwargs"], nodes), item["name"])
            if node.name != item["name"]:
                return None
            _set_meta(node, item)
        graph_module = GraphModule(root, graph)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        return None
    return Captured(model, graph_module, names_of(model), tree_flatten((tuple(args), dict(kwargs)))[1],
                    tree_flatten(run.result)[1], under_autocast=autocasts(), checkpoints=tuple(entry["checkpoints"]),
                    fixed=tuple(entry["fixed"]))


def _set_meta(node: Node, record: Mapping[str, Any]) -> None:
    """Set the metadata of ``node``."""
    looks: Any = record["looks"]
    if node.op != "output":
        val = [_without_data(look) for look in looks] if isinstance(looks, list) else _without_data(looks)
        node.meta["val"] = tuple(val) if record.get("kind") == "tuple" else val
    if "stack" in record:
        node.meta["nn_module_stack"] = {name: (path, kind) for name, path, kind in record["stack"]}
    if "mark" in record:
        put_mark(node, *record["mark"])


def _target(record: Mapping[str, Any]) -> Any:
    name = record["target"]
    if record["op"] != "call_function":
        return name
    if name == "getitem":
        return operator.getitem
    namespace, packet, overload = name.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return under_autocast(target, _read(record["autocast"], {})) if "autocast" in record else target


def _tensor(record: Mapping[str, Any], own: Mapping[str, Tensor]) -> Tensor:
    if "own" in record:
        return own[record["own"]]
    look = record["look"]
    dtype, shape = getattr(torch, look["dtype"]["torch"]), look["shape"]
    if "numbers" not in record:
        return torch.empty((), dtype=dtype, device=look["device"]).expand(shape)
    flat = torch.frombuffer(bytearray.fromhex(record["numbers"]) or bytearray(1), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape).clone()


def _without_data(look: Mapping[str, Any] | None) -> Any:
    if look is None or "plain" in look:
        return None if look is None else _read(look["plain"], {})
    return Tensor._make_wrapper_subclass(
        _Metadata, look["shape"], look["stride"], dtype=getattr(torch, look["dtype"]["torch"]), device=look["device"])


def _read(value: Any, nodes: Mapping[str, Node]) -> Any:
    """The inverse of :func:`_value`."""
    if isinstance(value, list):
        return [_read(each, nodes) for each in value]
    if not isinstance(value, dict):
        return value
    (kind, content), = value.items()
    readers: Any = {"node": lambda: nodes[content], "float": lambda: float.fromhex(content),
                    "tuple": lambda: tuple(_read(each, nodes) for each in content),
                    "dict": lambda: {key: _read(each, nodes) for key, each in content},
                    "slice": lambda: slice(*(_read(each, nodes) for each in content)),
                    "device": lambda: torch.device(content), "torch": lambda: getattr(torch, content)}
    return readers[kind]()
