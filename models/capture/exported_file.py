"""Reader of ``torch.export.save`` files, without torch and without running any of their contents.

A ``.pt2`` file is a zip archive. The program is one JSON text in it, ``models/model.json``; the weights, the example
inputs and custom objects are separate entries, some of them pickled, and are never opened. Symbolic sizes are
expressions in the text; ``torch.export.load`` evaluates them, here only the example's value is used. (The layout is
PyTorch's ``torch/_export/serde/schema.py``, schema version 8.)

The archive of a ``.pt2`` file: its one JSON text, unpacked up to the maximum size of a program.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from weft.models.capture.exported import Exported, ExportFault, Meta, Named, Ref, Source, Step, require_order
from weft.models.files.limits import MAX_ARCHIVE_ENTRIES, MAX_ELEMENTS, MAX_PROGRAM_BYTES, bad_name
from weft.solver.io.reading import checked_path

SCHEMA_MAJOR = 8
#: Maximum dimensions of a tensor in PyTorch's kernels.
_DIMENSIONS = 64
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
           9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
           29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu",
           34: "uint32", 35: "uint64"}
_LAYOUTS = {1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc", 6: "_mkldnn",
            7: "strided"}
_MEMORY_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
_INLINED = {"torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"}


def read_exported(path: str | os.PathLike[str]) -> Exported:
    """The program in a ``.pt2`` file. Raises :class:`ExportFault`."""
    where = os.fspath(path)
    program = read_program(where)
    found = program.get("schema_version") if isinstance(program, dict) else None
    major = found.get("major") if isinstance(found, dict) else None
    if major != SCHEMA_MAJOR:
        raise ExportFault(f"{where}: was written by torch {_version(program)} in export schema {major!r:.40}, this "
                          f"weft reads schema {SCHEMA_MAJOR}; export the model again with torch 2.8 or newer")
    try:
        return _Reader(Path(where).stem, program).read()
    except ExportFault as error:
        raise ExportFault(f"{where}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, RuntimeError) as error:
        raise ExportFault(f"{where}: models/model.json is not what torch.export.save writes "
                          f"({type(error).__name__}: {str(error).partition(chr(10))[0]:.200})") from None


def _version(program: Any) -> str:
    found = program.get("torch_version") if isinstance(program, dict) else None
    return found if isinstance(found, str) and bad_name(found) is None else "(unknown)"


class _Reader:
    """Converts the JSON text's objects to an :class:`Exported`."""

    def __init__(self, name: str, program: Any) -> None:
        self.name, self.program = name, program
        self.module = program["graph_module"]
        self.metas: dict[str, Meta] = {}
        self.notes: list[str] = []

    def read(self) -> Exported:
        graph = self.module["graph"]
        scope = self._scope(graph)
        sources = tuple(self._sources())
        steps = tuple(self._steps(graph, scope, grad=True))
        results = tuple(name for spec in self.module["signature"]["output_specs"] for name in self._result(spec))
        require_order(sources, steps, results, self.metas)
        if self.program.get("range_constraints"):
            self.notes.append("the program has dynamic sizes: all numbers are for those of the example inputs")
        return Exported(self.name, _version(self.program), sources, steps, results, self.metas, tuple(self.notes))

    # -- what the program starts from and gives ---------------------------------------------------------------------

    def _sources(self) -> Iterator[Source]:
        roles: Mapping[str, tuple[Literal["parameter", "buffer", "constant"], str]] = {
            "parameter": ("parameter", "parameter_name"), "buffer": ("buffer", "buffer_name"),
            "tensor_constant": ("constant", "tensor_constant_name")}
        for spec in self.module["signature"]["input_specs"]:
            (kind, value), = spec.items()
            if kind in roles:
                role, field_name = roles[kind]
                yield Source(value["arg"]["name"], role, value[field_name])
            elif kind == "user_input" and "as_tensor" in value["arg"]:
                name = value["arg"]["as_tensor"]["name"]
                yield Source(name, "input", name)
            elif kind == "custom_obj":
                raise ExportFault(f"input {value['arg']['name']!r} is a custom object, only tensors can be captured")

    def _result(self, spec: Any) -> Iterator[str]:
        (kind, value), = spec.items()
        if kind in ("user_output", "loss_output"):
            (form, arg), = value["arg"].items()
            if form == "as_tensor":
                yield arg["name"]
            elif form == "name":
                yield arg

    # -- graphs ------------------------------------------------------------------------------------------------------

    def _scope(self, graph: Any, prefix: str = "", known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The meaning of each name in ``graph``: a tensor of the program, or a number."""
        scope: dict[str, Any] = dict(known or {})
        for name, meta in graph["tensor_values"].items():
            if name not in scope:
                scope[name] = Ref(prefix + name)
                self.metas[prefix + name] = _meta(meta)
        for values in ("sym_int_values", "sym_bool_values", "sym_float_values"):
            for name, value in (graph.get(values) or {}).items():
                scope[name] = _number(value)
        return scope

    def _steps(self, graph: Any, scope: Mapping[str, Any], *, grad: bool) -> Iterator[Step]:
        for i, node in enumerate(graph["nodes"]):
            outputs = tuple(self._outputs(node["outputs"], scope))
            if not outputs and all(set(output) & {"as_sym_int", "as_sym_bool", "as_sym_float", "as_int"}
                                   for output in node["outputs"]):
                continue  # sizes and numbers derived from them: already known; or an assertion
            positional = [self._argument(a["arg"], scope) for a in node["inputs"] if a.get("kind", 1) != 2]
            keywords = {a["name"]: self._argument(a["arg"], scope) for a in node["inputs"] if a.get("kind", 1) == 2}
            name = node.get("name") or next((out for out in outputs if out), f"step{i}")
            if node["target"] in _INLINED:
                yield from self._inlined(node, name, positional, outputs, scope, grad)
                continue
            metadata = node.get("metadata") or {}
            module, module_type = _module(metadata.get("nn_module_stack", ""))
            yield Step(name, node["target"], tuple(positional), keywords, outputs, module, module_type, grad)

    def _inlined(self, node: Any, name: str, positional: list[Any], outputs: tuple[str | None, ...],
                 scope: Mapping[str, Any], grad: bool) -> Iterator[Step]:
        """The steps of a ``with torch.no_grad()`` or ``autocast`` region, under the caller's names."""
        at = next(i for i, a in enumerate(node["inputs"]) if "as_graph" in a["arg"])
        inner = node["inputs"][at]["arg"]["as_graph"]["graph"]
        if "set_grad_enabled" in node["target"]:
            grad = bool(positional[0])
        else:
            self.notes.append(f"{name}: autocast is not followed, its operators are counted in the given types")
        given = dict(zip((next(iter(i.values()))["name"] for i in inner["inputs"]), positional[at + 1:], strict=True))
        inside = self._scope(inner, f"{name}.", given)
        renamed: dict[str, str] = {}
        for outer, output in zip(outputs, self._outputs(inner["outputs"], inside), strict=True):
            if outer is not None and output is not None:
                renamed[output] = outer
        for step in self._steps(inner, inside, grad=grad):
            yield replace(step, name=f"{name}.{step.name}",
                          arguments=_rename(step.arguments, renamed), keywords=_rename(step.keywords, renamed),
                          outputs=tuple(renamed.get(out, out) if out else out for out in step.outputs))

    def _outputs(self, outputs: Any, scope: Mapping[str, Any]) -> Iterator[str | None]:
        for output in outputs:
            (form, value), = output.items()
            if form == "as_tensor":
                yield scope[value["name"]].name
            elif form in ("as_tensors", "as_optional_tensors"):
                for item in value:
                    item = item.get("as_tensor", item) if isinstance(item, dict) else item
                    yield scope[item["name"]].name if isinstance(item, dict) and "name" in item else None
            elif form == "as_optional_tensor":
                yield scope[value["as_tensor"]["name"]].name if "as_tensor" in value else None
            elif form == "as_none":
                yield None

    def _argument(self, argument: Any, scope: Mapping[str, Any]) -> Any:
        (form, value), = argument.items()
        if form in ("as_float", "as_floats", "as_float_lists"):
            return _floats(value)
        if form in ("as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings", "as_int_lists"):
            return value
        if form == "as_none":
            return None
        if form in ("as_tensor", "as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
            return self._item(value, scope)
        if form in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools"):
            return [self._item(item, scope) for item in value]
        if form == "as_nested_tensors":
            return [[self._item(item, scope) for item in row] for row in value]
        if form == "as_complex":
            return complex(value["real"], value["imag"])
        if form == "as_device":
            return Named("device", value["type"])
        for constants, form_of in ((_DTYPES, "as_scalar_type"), (_LAYOUTS, "as_layout"),
                                   (_MEMORY_FORMATS, "as_memory_format")):
            if form == form_of:
                return Named("constant", constants[value])
        return None  # graphs, operators, objects: only in calls priced by their tensors

    def _item(self, item: Any, scope: Mapping[str, Any]) -> Any:
        if "name" in item:
            return scope[item["name"]]
        (form, value), = item.items()
        if form == "as_name":
            return scope[value]
        return scope[value["name"]] if form == "as_tensor" else None if form == "as_none" else value


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Ref):
        return Ref(names.get(value.name, value.name))
    if isinstance(value, Named):
        return value
    if isinstance(value, dict):
        return {key: _rename(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_rename(item, names) for item in value)
    return value


def _meta(value: Any) -> Meta:
    if value["layout"] != 7:
        raise ExportFault(f"a tensor of layout {_LAYOUTS.get(value['layout'], value['layout'])} cannot be captured, "
                          "only strided ones")
    if value["dtype"] not in _DTYPES:
        raise ExportFault(f"a tensor's type number is {value['dtype']}, which this weft does not know")
    sizes, strides = ([_size(_number(size)) for size in value[field]] for field in ("sizes", "strides"))
    if len(sizes) != len(strides) or len(sizes) > _DIMENSIONS:
        raise ExportFault(f"a tensor has {len(sizes)} sizes and {len(strides)} strides, it must have as many of both, "
                          f"and at most {_DIMENSIONS}")
    reach = 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if max(math.prod(sizes), reach) > MAX_ELEMENTS // 16:  # of 16 bytes each at most
        raise ExportFault(f"a tensor has the sizes {sizes} and strides {strides}, which is more memory than exists")
    if not isinstance(value["requires_grad"], bool) or not isinstance(value["device"]["type"], str):
        raise ExportFault("a tensor's requires_grad is neither true nor false, or the type of its device is no text")
    return Meta(tuple(sizes), tuple(strides), _DTYPES[value["dtype"]], value["device"]["type"], value["requires_grad"])


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ELEMENTS:
        raise ExportFault(f"a tensor has the size or stride {value!r:.60}, it must be a whole number from 0 to "
                          f"{MAX_ELEMENTS}")
    return value


def _number(value: Any) -> Any:
    """A number, or the value of an expression for the example's sizes."""
    (form, inner), = value.items()
    found = inner
    if form == "as_expr":
        hint = inner.get("hint")
        if not hint:
            raise ExportFault(f"the size {inner['expr_str']!r:.100} depends on the data, so nothing can be counted; "
                              "export the model with sizes that are known")
        found = next(iter(hint.values()))
    if not isinstance(found, int | float):
        raise ExportFault(f"{found!r:.60} stands where a number must stand")
    return found


def _floats(value: Any) -> Any:
    """Numbers of the file, also in lists: values without a JSON number are text."""
    if isinstance(value, list):
        return [_floats(item) for item in value]
    if not isinstance(value, str):
        return value
    if value not in ("Infinity", "-Infinity", "NaN"):
        raise ExportFault(f"{value!r:.60} stands where a number must stand")
    return float(value)


def _module(stack: str) -> tuple[str, str]:
    """Path and class of the innermost module in ``key,path,class;key,path,class``."""
    last = stack.rsplit(";", 1)[-1].split(",", 2)
    return (last[1], last[2]) if len(last) == 3 else ("", "")


#: Exceptions of zipfile and its decompressors for broken and for encrypted archives.
_NOT_AN_ARCHIVE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError,
                   LookupError, NotImplementedError, RuntimeError)


def read_program(where: str) -> Any:
    """The program in the archive, as a JSON value. Raises :class:`~weft.models.capture.exported.ExportFault`."""
    checked_path(where, 2**63, "a .pt2 archive", ExportFault)
    try:
        with zipfile.ZipFile(where) as archive:
            if len(archive.filelist) > MAX_ARCHIVE_ENTRIES:
                raise ExportFault(f"{where}: has {len(archive.filelist)} entries, at most {MAX_ARCHIVE_ENTRIES} are "
                                  "supported")
            entries = {PurePosixPath(name).parts[1:]: name for name in archive.namelist()}
            top = set(archive.namelist())
            if "serialized_exported_program.json" in top:
                raise ExportFault(f"{where}: was written by torch 2.7 or older; export the model again with torch 2.8 "
                                  "or newer")
            models = [entry for entry in entries if len(entry) == 2 and entry[0] == "models"
                      and entry[1].endswith(".json")]
            if not models:
                raise ExportFault(f"{where}: holds no exported program; write it with "
                                  "torch.export.save(torch.export.export(module, example_inputs), path)")
            if len(models) > 1:
                raise ExportFault(f"{where}: holds {len(models)} programs, save one per file")
            return json.loads(_unpacked(archive, entries[models[0]], where))
    except OSError as error:
        raise ExportFault(f"{where}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ExportFault(f"{where}: models/model.json in it is nested too deeply") from None
    except _NOT_AN_ARCHIVE as error:
        raise ExportFault(f"{where}: is no .pt2 archive ({str(error)[:200]}); write it with "
                          "torch.export.save") from None
    except ExportFault:
        raise
    except ValueError:  # invalid JSON or UTF-8, an integer with thousands of digits
        raise ExportFault(f"{where}: models/model.json in it is not JSON") from None


def _unpacked(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    """The entry ``name``. It is not unpacked if its stated size is too large, and never beyond the limit: the stated
    size can be wrong."""
    data, declared = b"", archive.getinfo(name).file_size
    if declared <= MAX_PROGRAM_BYTES:
        with archive.open(name) as stream:
            data = stream.read(MAX_PROGRAM_BYTES + 1)
    if max(declared, len(data)) > MAX_PROGRAM_BYTES:
        raise ExportFault(f"{where}: {name} unpacks to more than {MAX_PROGRAM_BYTES // 1024**2} MiB, the program of no "
                          "model is so large")
    return data
