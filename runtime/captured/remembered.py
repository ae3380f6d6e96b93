"""Captures kept on disk, so that a model is exported once and not at each start.

An entry's key is a description of a model: the classes of its modules and their files, its parameters and buffers, the
example, the versions of torch and weft. That is not enough to trust it, as a forward may call code and read settings
from anywhere. So the model is run once (:mod:`~weft.runtime.captured.followed`), and the entry is used only if this run
equals the one when the entry was made, operator by operator. An entry is made only for a model whose export and whose
run call the same functions, and for a graph that can be written completely; any other is exported each time. An entry
that cannot be read, or differs from what was written, counts as missing.
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

from weft.runtime.captured.captured import Captured, CaptureError, autocasts, is_elsewhere, names_of
from weft.runtime.captured.cut import register
from weft.runtime.captured.followed import Followed, ForwardCalls, as_it_was, changed, followed, looks_of
from weft.runtime.captured.marks import mark_of, put_mark
from weft.runtime.captured.regions import UnderAutocast, under_autocast
from weft.runtime.ranks.words import some
from weft.solver.io.kept import keep, read_kept, sources_digest

CAPTURE_FORMAT = "weft.capture-cache/1"
#: Bytes of a graph's own tensor that is kept: with a larger one the capture is not kept.
LARGE = 1 << 20
#: Types of operators' arguments that JSON lacks, written by name.
_TORCH = (torch.dtype, torch.layout, torch.memory_format)


class _Unkept(Exception):
    """A graph that no entry can hold."""


class _Looks(Tensor):
    """A tensor's shape and type. (torch's own tensors without numbers import more than a capture takes.)"""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a tensor that only looks")


def captured_or_remembered(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device,
                           folder: Path | None) -> Captured:
    """:meth:`~weft.runtime.captured.captured.Captured.of`, or the same from ``captures`` in ``folder``, where it is
    kept from then on (``None``: nothing is kept).

    Raises the same errors.
    """
    if folder is None or is_elsewhere(model) or (key := _key(model, args, kwargs)) is None:
        return _captured(model, args, kwargs, device, ForwardCalls(model))
    path = folder / "captures" / f"{key}.json"
    entry = read_kept(path, CAPTURE_FORMAT, key, "capture")
    run = None if entry is None else followed(model, args, kwargs)
    if entry is not None and run is not None and entry["digest"] == run.digest and (
            found := _found(entry, model, args, kwargs, run)) is not None:
        return found
    captured = _captured(model, args, kwargs, device, calls := ForwardCalls(model))
    run = run or followed(model, args, kwargs)
    if run is not None and (run.calls, run.checkpoints) == (tuple(calls.lines), captured.checkpoints):
        _keep(path, key, captured, args, kwargs, run)
    return captured


def _captured(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device,
              calls: ForwardCalls) -> Captured:
    """A new capture, whose ``calls`` are seen, with what it has fixed."""
    drawn = random.getstate()
    with as_it_was(model), calls.watching():
        captured = Captured.of(model, args, kwargs, device)
    kind, fixed = type(model).__name__, list[str]()
    if random.getstate() != drawn:
        fixed.append(f"the forward of {kind} draws from Python's random, of which the capture keeps what was drawn "
                     "once: draw by torch's operators, or switch it off (layerdrop=0)")
    if calls.changes and not is_elsewhere(model):
        names, matters = changed(model, args, kwargs)
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
    tensors = [(name, looks_of(tensor), tensor.requires_grad, type(tensor).__name__) for name, tensor in (
        *model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))]
    given = [looks_of(leaf) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    text = repr((CAPTURE_FORMAT, torch.__version__, sys.version, _makers(), sources, modules, tensors, str(spec), given,
                 autocasts(), torch.get_default_dtype(), sorted(names_of(model).values())))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _makers() -> str:
    """The sources that make captures, which change between two releases, too."""
    return sources_digest(sorted(Path(__file__).parent.glob("*.py")))


# -- writing -----------------------------------------------------------------------------------------------------------


def _keep(path: Path, key: str, captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any],
          run: Followed) -> None:
    if (captured.in_spec, captured.out_spec) != (tree_flatten((tuple(args), dict(kwargs)))[1],
                                                 tree_flatten(run.result)[1]):
        return
    try:
        held = {"digest": run.digest, "checkpoints": list(captured.checkpoints), "fixed": list(captured.fixed),
                "nodes": [_written(captured, node) for node in captured.graph_module.graph.nodes]}
    except _Unkept:
        return  # it is captured anew next time
    keep(path, CAPTURE_FORMAT, key, "capture", held)


def _written(captured: Captured, node: Node) -> dict[str, Any]:
    looks = node.meta.get("val")
    found: dict[str, Any] = {
        "op": node.op, "name": node.name, "args": _value(tuple(node.args)), "kwargs": _value(dict(node.kwargs)),
        "looks": [_look(each) for each in looks] if isinstance(looks, tuple | list) else _look(looks)}
    if isinstance(looks, tuple | list):
        found["kind"] = type(looks).__name__
    if (stack := node.meta.get("nn_module_stack")) is not None:
        found["stack"] = [[name, entry[0], entry[1] if isinstance(entry[1], str) else
                           f"{entry[1].__module__}.{entry[1].__qualname__}"] for name, entry in stack.items()]
    if (mark := mark_of(node)) is not None:
        found["mark"] = list(mark)
    if node.op == "get_attr":
        return {**found, "target": str(node.target), "holds": _attribute(captured, node)}
    if node.op in ("placeholder", "output"):
        return {**found, "target": str(node.target)}
    target: Any = node.target
    if isinstance(target, UnderAutocast):
        found["autocast"], target = _value(tuple(target.setting)), target.operator
    if isinstance(target, torch._ops.OpOverload):
        return {**found, "target": str(target)}
    if target is operator.getitem:
        return {**found, "target": "getitem"}
    raise _Unkept


def _attribute(captured: Captured, node: Node) -> Any:
    """What a node reads: the model's own by name, a tensor that only looks, or one of the graph's own by its numbers.
    """
    value = captured.attribute(node)
    if not isinstance(value, Tensor):
        raise _Unkept
    if (own := captured.name_of(value)) is not None:
        return {"own": own}
    if str(node.target).startswith("looks_of_"):
        return {"look": _look(value)}
    lifted = all("lift_fresh" in str(user.target) for user in node.users)  # else somebody else may change it
    if not lifted or value.requires_grad or value.nbytes > LARGE or value.device.type != "cpu":
        raise _Unkept
    flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return {"numbers": flat.numpy().tobytes().hex(), "look": _look(value)}


def _look(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return None if value is None else {"plain": _value(value)}
    if not all(type(n) is int for n in (*value.shape, *value.stride())):
        raise _Unkept
    return {"shape": list(value.shape), "stride": list(value.stride()), "dtype": _value(value.dtype),
            "device": str(value.device)}


def _value(value: Any) -> Any:
    """``value`` as JSON has it: what that does not know is an object with its kind."""
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
    raise _Unkept


# -- reading -----------------------------------------------------------------------------------------------------------


def _found(entry: Mapping[str, Any], model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any],
           run: Followed) -> Captured | None:
    """The capture in ``entry``, of the tensors of ``model``; ``None`` where it is none."""
    own = dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))
    graph, root, nodes = Graph(), nn.Module(), dict[str, Node]()
    try:
        for held in entry["nodes"]:
            if held["op"] == "get_attr":
                register(root, held["target"], _tensor(held["holds"], own))
            node = nodes[held["name"]] = graph.create_node(
                held["op"], _target(held), _read(held["args"], nodes), _read(held["kwargs"], nodes), held["name"])
            if node.name != held["name"]:
                return None
            _know(node, held)
        graph_module = GraphModule(root, graph)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        return None
    return Captured(model, graph_module, names_of(model), tree_flatten((tuple(args), dict(kwargs)))[1],
                    tree_flatten(run.result)[1], under_autocast=autocasts(), checkpoints=tuple(entry["checkpoints"]),
                    fixed=tuple(entry["fixed"]))


def _know(node: Node, held: Mapping[str, Any]) -> None:
    """What is known of ``node``."""
    looks: Any = held["looks"]
    if node.op != "output":
        made = [_empty(look) for look in looks] if isinstance(looks, list) else _empty(looks)
        node.meta["val"] = tuple(made) if held.get("kind") == "tuple" else made
    if "stack" in held:
        node.meta["nn_module_stack"] = {name: (path, kind) for name, path, kind in held["stack"]}
    if "mark" in held:
        put_mark(node, *held["mark"])


def _target(held: Mapping[str, Any]) -> Any:
    name = held["target"]
    if held["op"] != "call_function":
        return name
    if name == "getitem":
        return operator.getitem
    space, packet, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, space), packet), overload)
    return under_autocast(found, _read(held["autocast"], {})) if "autocast" in held else found


def _tensor(holds: Mapping[str, Any], own: Mapping[str, Tensor]) -> Tensor:
    if "own" in holds:
        return own[holds["own"]]
    look = holds["look"]
    dtype, shape = getattr(torch, look["dtype"]["torch"]), look["shape"]
    if "numbers" not in holds:
        return torch.empty((), dtype=dtype, device=look["device"]).expand(shape)
    flat = torch.frombuffer(bytearray.fromhex(holds["numbers"]) or bytearray(1), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape).clone()


def _empty(look: Mapping[str, Any] | None) -> Any:
    if look is None or "plain" in look:
        return None if look is None else _read(look["plain"], {})
    return Tensor._make_wrapper_subclass(
        _Looks, look["shape"], look["stride"], dtype=getattr(torch, look["dtype"]["torch"]), device=look["device"])


def _read(value: Any, nodes: Mapping[str, Node]) -> Any:
    """What :func:`_value` wrote."""
    if isinstance(value, list):
        return [_read(each, nodes) for each in value]
    if not isinstance(value, dict):
        return value
    (kind, held), = value.items()
    made: Any = {"node": lambda: nodes[held], "float": lambda: float.fromhex(held),
                 "tuple": lambda: tuple(_read(each, nodes) for each in held),
                 "dict": lambda: {key: _read(each, nodes) for key, each in held},
                 "slice": lambda: slice(*(_read(each, nodes) for each in held)),
                 "device": lambda: torch.device(held), "torch": lambda: getattr(torch, held)}
    return made[kind]()
