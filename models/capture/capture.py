"""A user's model as an :class:`~weft.models.graph.operators.OperatorGraph`: from a ``.pt2`` file, or from a module.

Each call of the exported program becomes one operator, named as in the program (``print(exported_program)``); the
inputs, saved tensors and outputs of a call are observed in a run on fake tensors (:mod:`weft.models.capture.calls`),
its costs are counted by :mod:`weft.models.capture.operator_costs`. A view of a parameter counts as the parameter. An
operator that reads a tensor after an in-place change also reads the changing operator. Only linear layers of
``torch.nn`` state the needs of their deferred weight gradient: the executor defers these. Saved tensors are those of a
CPU: other devices choose other kernels, mostly for attention and dropout, as a note says. Recomputation in the model's
own code (``torch.utils.checkpoint``) is not followed: export writes its operators like any others, and the placement
decides what to recompute.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from weft.models.capture.calls import ProgramRun, TracedCall, follow
from weft.models.capture.exported import Exported, ExportFault
from weft.models.capture.exported_file import read_exported
from weft.models.capture.operator_costs import CallCost, call_cost, mutated, storage
from weft.models.graph.operators import Operator, OperatorGraph, Parameter, Tensor, Work

#: Operators with inner products, in kernels without a formula in torch.utils.flop_counter.
_UNCOUNTED = ("lstm", "gru", "rnn_", "cdist", "fft_", "linalg_")


def capture_file(path: str | os.PathLike[str]) -> OperatorGraph:
    """The operators of the file ``path``, written by ``torch.export.save``.

    Raises :class:`~weft.models.capture.exported.ExportFault`.
    """
    return operator_graph(read_exported(path))


def capture_module(module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any] | None = None,
                   name: str | None = None) -> OperatorGraph:
    """The operators of ``module(*inputs, **keywords)`` by ``torch.export.export``.

    Raises :class:`~weft.models.capture.exported.ExportFault` if export refuses the module.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name or type(module).__name__}.pt2"
        save_exported(module, inputs, path, keywords)
        return operator_graph(read_exported(path), trusted=True)


def save_exported(module: torch.nn.Module, inputs: tuple[Any, ...], path: str | os.PathLike[str],
                  keywords: Mapping[str, Any] | None = None, *, functional: bool = False) -> None:
    """Export ``module`` and save it; ``functional``: replace in-place writes by new tensors.

    Raises :class:`~weft.models.capture.exported.ExportFault` if export refuses.
    """
    try:
        program = torch.export.export(module, inputs, dict(keywords or {}))
        if functional:
            program = program.run_decompositions({})
    except Exception as error:  # anything raised by the module's code or the tracer
        first = (str(error) or "no message").strip().splitlines()[0]
        raise ExportFault(f"{type(module).__name__}: torch.export.export refuses it: {type(error).__name__}: "
                          f"{first}") from error
    torch.export.save(program, os.fspath(path))


def operator_graph(exported: Exported, *, trusted: bool = False) -> OperatorGraph:
    """The operators of ``exported``; ``trusted`` as in :func:`weft.models.capture.calls.follow`.

    Raises :class:`~weft.models.capture.exported.ExportFault` for a program without operators.
    """
    run = follow(exported, trusted=trusted)
    builder = _Builder(run)
    with run.mode:
        operators = tuple(builder.operators())
    if not operators:
        raise ExportFault(f"{exported.name}: has no operators")
    inputs = tuple(builder.tensor(source.name, run.values[source.name], None)
                   for source in exported.sources if source.role == "input")
    outputs = tuple(dict.fromkeys(name for name in exported.results if run.tensor_owner(name) is not None))
    return OperatorGraph(exported.name, operators, inputs, outputs, tuple(builder.notes()))


def signature(call: TracedCall) -> tuple[Any, ...]:
    """A value equal for calls of equal cost: operator, other arguments, and shapes, strides and types of tensors."""
    seen: dict[int, int] = {}

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (seen.setdefault(id(value), len(seen)), tuple(value.shape), value.stride(), str(value.dtype),
                    value.requires_grad, id(value) in call.weight_ids)
        if isinstance(value, list | tuple):
            return tuple(described(item) for item in value)
        return value if value.__hash__ is not None else repr(value)

    return (call.step.target, described(call.arguments),
            tuple((key, described(value)) for key, value in call.keywords.items()), call.backward, call.step.grad)


class _Builder:
    """Makes operators from calls, and records assumptions."""

    def __init__(self, run: ProgramRun) -> None:
        self.run = run
        self.costs: dict[tuple[Any, ...], CallCost | str] = {}
        self.guessed: dict[tuple[str, str], int] = Counter()
        self.without_formula: dict[str, None] = {}
        self.parameters = {name: _held(target, run.values[name]) for names in (run.trained, run.held)
                           for name, target in names.items()}

    def operators(self) -> Iterator[Operator]:
        for call in self.run.calls:
            writes = [] if call.function is None else mutated(call.function, call.arguments, call.keywords)
            if call.outputs or writes:
                yield self.operator(call)

    def operator(self, call: TracedCall) -> Operator:
        outputs, internal = self.outputs(call)
        keeps, more = self.keeps(call) if call.backward else ((), ())
        cost = self.cost(call)
        defers = (cost.weight_grad is not None and call.step.module_type == "torch.nn.modules.linear.Linear"
                  and call.kind == "linear" and id(call.arguments[1]) in call.weight_ids)
        deferred = call.reads[:1] if defers else None
        return Operator(
            call.step.name, call.kind, cost.forward, call.reads, outputs, cost.input_grad, cost.weight_grad,
            tuple(self.parameters[name] for name in call.weights), (*internal, *more), keeps, deferred,
            cost.workspace, layer=call.step.module, constants=tuple(self.parameters[name] for name in call.constants))

    # -- tensors -----------------------------------------------------------------------------------------------------

    def tensor(self, name: str, value: torch.Tensor, base: str | None) -> Tensor:
        return Tensor(name, value.numel() * value.element_size(), tuple(value.shape),
                      str(value.dtype).removeprefix("torch."), base)

    def outputs(self, call: TracedCall) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The output tensors of a call, and storages larger than their one visible tensor."""
        outputs, larger = [], []
        for name, value in call.outputs:
            owner = self.run.owner[storage(value)]
            base = None if owner == name else owner
            size = value.untyped_storage().nbytes()
            if base is None and size != value.numel() * value.element_size():
                base = f"{name}.storage"
                larger.append(Tensor(base, size))
            outputs.append(self.tensor(name, value, base))
        return tuple(outputs), tuple(larger)

    def keeps(self, call: TracedCall) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
        """The tensors saved by autograd for a call: by their name in the call, else as internal tensors."""
        names: dict[int, str] = {}
        for name in (*call.reads, *(name for name, _ in call.outputs)):
            names.setdefault(storage(self.run.values[name]), name)
        kept: list[str] = []
        internal: list[Tensor] = []
        for key, value in call.saved.items():
            if key in names:
                kept.append(names[key])
            elif self.run.owner.get(key) not in self.parameters:
                name = f"{call.step.name}.saved{len(internal)}"
                size = value.untyped_storage().nbytes()
                internal.append(Tensor(name, size, tuple(value.shape), str(value.dtype).removeprefix("torch.")))
                kept.append(name)
        return tuple(kept), tuple(internal)

    # -- costs -------------------------------------------------------------------------------------------------------

    def cost(self, call: TracedCall) -> CallCost:
        key = signature(call)
        if key not in self.costs:
            self.costs[key] = self.counted(call)
        cost = self.costs[key]
        if isinstance(cost, str):
            self.guessed[call.kind, cost] += 1
            return self.guess(call)
        if not cost.forward.flops and cost.forward.bytes_written:
            self.without_formula[call.kind] = None
        return cost

    def counted(self, call: TracedCall) -> CallCost | str:
        if call.function is None:
            return call.problem
        try:
            with torch.set_grad_enabled(call.step.grad):
                return call_cost(call.function, call.arguments, call.keywords, set(call.weight_ids),
                                 backward=call.backward)
        except Exception as error:  # torch's own refusals are of many types
            return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"

    def guess(self, call: TracedCall) -> CallCost:
        """One operation per output element; every tensor moved once, and twice by each part of a backward."""
        given = [self.run.values[name] for name in (*call.reads, *call.weights, *call.constants)]
        read = sum(value.numel() * value.element_size() for value in given)
        written = sum(value.numel() * value.element_size() for _, value in call.outputs)
        forward = Work(sum(value.numel() for _, value in call.outputs), read, written)
        backward = Work(2 * forward.flops, read + written, read)
        has_input_grad = call.backward and any(self.run.values[name].requires_grad for name in call.reads)
        return CallCost(forward, backward if has_input_grad else None,
                        backward if call.backward and call.weights else None, 0)

    def notes(self) -> Iterable[str]:
        exported, run = self.run.exported, self.run
        yield from exported.notes
        if exported.torch_version.split("+")[0] != torch.__version__.split("+")[0]:
            yield (f"exported by torch {exported.torch_version}, counted with torch {torch.__version__}: a kernel that "
                   "changed in between may save something else")
        if run.others:
            yield (f"exported for {', '.join(sorted(run.others))}, counted as on a CPU: fused kernels there may save "
                   "other tensors")
        for (kind, problem), count in self.guessed.items():
            yield (f"{kind} ({count} operator{'s' * (count > 1)}) could not be followed ({problem}): counted as "
                   "1 operation per element of its results, all its tensors moved once and all of them kept")
        uncounted = [kind for kind in self.without_formula if kind.startswith(_UNCOUNTED)]
        for kind in uncounted:
            del self.without_formula[kind]
            yield (f"{kind}: 0 operations, which is too few: its products have no formula; and what a device keeps of "
                   "it depends on its library")
        if self.without_formula:
            yield ("0 operations, as in torch.utils.flop_counter, only memory traffic: "
                   + ", ".join(sorted(self.without_formula)))


def _held(target: str, value: torch.Tensor) -> Parameter:
    return Parameter(target, value.numel(), value.numel() * value.element_size(), tuple(value.shape))


#: Tokens of a sequence of a config, if its model has more.
_SEQUENCE = 4096


@lru_cache(maxsize=4)
def capture_config(path: Path, batch: int, sequence: int | None, dtype: str, training: bool) -> OperatorGraph:
    """One micro-batch of ``batch`` texts through transformers' model of a config, which has no weights (device meta)
    and comes only from the installed library: no code named by the config is run.

    ``sequence``: tokens, by default the model's maximum, 4096 at most. Raises
    :class:`~weft.models.capture.exported.ExportFault` if transformers has no such model, or it is not a text model.
    """
    import transformers

    values = json.loads(path.read_text(encoding="utf-8"))
    try:
        config: Any = transformers.AutoConfig.for_model(**values)
        config.use_cache = False
        named = [getattr(transformers, str(name), None) for name in values.get("architectures") or ()]
        with torch.device("meta"):
            made = next((kind for kind in named if kind is not None), None)
            model = made._from_config(config) if made else transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:  # any error that a config causes in the library
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ExportFault(f"{path}: transformers {transformers.__version__} makes no model of it: {first:.200}; export "
                          "the model with torch.export and capture it (weft capture model.pt2)") from None
    tokens = sequence or min(getattr(config, "max_position_embeddings", None) or _SEQUENCE, _SEQUENCE)
    ids = torch.zeros(batch, tokens, dtype=torch.long, device="meta")
    model = model.to(getattr(torch, dtype)).train(training)
    given = {"input_ids": ids, **({"labels": ids} if training else {})}
    return capture_module(model, (), given, str(values["model_type"]))
