"""One trial: a candidate part, or a whole assignment, is built, compared with eager torch, and timed.

On a CPU a trial has one thread, like a rank of the executor, and seconds are CPU time of the process, which excludes
other load on the machine. Its effects on caches and clock rates remain. So a part and eager torch on the same part are
timed in alternating laps, and their ratio is the result. The times of eager units are measured together and scaled to
the time of the whole model in the same process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter, Node

from weft.runtime.backends.build import Choice, PartCall, assembled
from weft.runtime.backends.graph import GraphPart, UnitGraph
from weft.runtime.backends.registry import EAGER, Backend, BackendError, registered
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.measure.measure import Sample, Timer

#: The allowed error of a backend against eager, as a share of the largest element: sums are rounded in another order.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
#: Warm-up calls: they compile code and allocate memory.
WARM = 3
#: The least seconds of a lap, given the clock's precision: a lap may have several calls.
LAP = 1e-3
#: The seconds of all laps of one candidate, and the most laps as a multiple of the requested number: the median of many
#: laps tolerates a few disturbed ones.
LONG, MOST = 0.5, 10
#: The most seconds of all laps: a long candidate gets fewer laps than requested, at least 3.
LONGEST = 10.0
#: Bytes written between laps of one call, so that weights are not in the cache, as in a whole model.
FLUSHED = 4 * 2**20


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial: seconds per call with their spread, eager's seconds measured in turn, and the largest
    error as a share of the largest element. ``units``: seconds of each unit, for eager only. ``refused``: the reason
    why the candidate cannot be used, or ``None``.
    """

    seconds: float = 0.0
    spread: float = 0.0
    repeats: int = 0
    error: float = 0.0
    eager: float = 0.0
    units: tuple[float, ...] = ()
    refused: str | None = None


class RecordedValues(Interpreter):
    """``values``: the result of every node in one run of ``graph`` on ``leaves``."""

    def __init__(self, graph: UnitGraph, leaves: Sequence[Any]) -> None:
        super().__init__(graph.captured.graph_module, garbage_collect_values=False)
        self.values: dict[Node, Any] = {}
        with preserved_state(graph.captured.model), torch.no_grad():
            self.run(*leaves, enable_io_processing=False)
        del self.env
        self.device = _device(leaves)

    def run_node(self, n: Node) -> Any:
        """The node's value; it is copied if an in-place operator writes into it later."""
        result = super().run_node(n)
        if n.op != "output":
            written = isinstance(result, Tensor) and n.op in ("placeholder", "call_function")
            self.values[n] = result.detach().clone() if written and _is_written(n) else result
        return result

    def inputs(self, part: GraphPart) -> tuple[Any, ...]:
        """The recorded inputs of ``part``."""
        return tuple(self.values[node] for node in part.takes)


def _is_written(node: Node) -> bool:
    return any(str(getattr(user.target, "_schema", "")).partition("(")[0].rpartition("::")[2].partition(".")[0]
               .endswith("_") for user in node.users)


def try_part(graph: UnitGraph, recorded: RecordedValues, backend: Backend, units: Sequence[int], *, trains: bool,
             repeats: int) -> TrialResult:
    """The time of ``backend`` for the part ``units``, refused if its results differ from eager's."""
    part = graph.part(units)
    part = replace(part, inputs=_leaves(part, recorded.inputs(part), trains))
    reference, passes = graph.part(units).module, _passes(trains)
    expected = passes(reference.forward, _fresh(part.inputs))
    run: Callable[..., Any] = backend.build(part)
    if backend.name != EAGER:
        run = PartCall(run, part.module.forward)
    error, refused = compared(passes(run, _fresh(part.inputs)), expected)
    if refused is not None:
        return TrialResult(error=error, refused=refused)
    return _timed_beside(lambda: passes(run, part.inputs), lambda: passes(reference.forward, part.inputs), part.inputs,
                         repeats, error)


def try_eager(graph: UnitGraph, recorded: RecordedValues, *, trains: bool, repeats: int) -> TrialResult:
    """The time of eager torch for the whole model and for each unit, scaled to sum to the whole."""
    passes, leaves = _passes(trains), tuple(recorded.values[node] for node in graph.captured.inputs)
    whole = assembled(graph, _eager(graph), trains=trains)
    parts = [graph.part([unit]) for unit in range(len(graph.units))]
    runs = [(part.module.forward, _leaves(part, _fresh(recorded.inputs(part)), trains)) for part in parts]
    with preserved_state(graph.captured.model):
        wholes, *laps = _laps([partial(passes, run, given) for run, given in ((whole.forward, leaves), *runs)],
                              _device(leaves), repeats, once=True)
    sample, units = Sample.of(wholes), list(map(statistics.median, laps))
    scale = sample.seconds / max(sum(units), 1e-12)
    return TrialResult(sample.seconds, sample.spread, len(wholes), 0.0, sample.seconds, tuple(u * scale for u in units))


def try_whole(graph: UnitGraph, recorded: RecordedValues, choice: Choice, beside: Choice = (), *, trains: bool,
              repeats: int) -> TrialResult:
    """The time of the whole model by ``choice`` and by ``beside`` (empty: eager), from alternating laps. Refused if the
    results differ from eager's."""
    captured, passes = graph.captured, _passes(trains)
    leaves = tuple(recorded.values[node] for node in captured.inputs)
    plain, chosen, other = (
        assembled(graph, own or _eager(graph), trains=trains,
                  inputs=lambda part: _leaves(part, recorded.inputs(part), trains)) for own in ((), choice, beside))
    with preserved_state(captured.model):
        expected, given = (passes(module.forward, leaves) for module in (plain, chosen))
        error, refused = compared(given, expected)
        if refused is not None:
            return TrialResult(error=error, refused=refused)
        return _timed_beside(lambda: passes(chosen.forward, leaves), lambda: passes(other.forward, leaves), leaves,
                             repeats, error)


def _eager(graph: UnitGraph) -> Choice:
    return [(EAGER, [unit]) for unit in range(len(graph.units))]


def boundary_seconds(first: Backend, second: Backend, numbers: int, device: torch.device, *, repeats: int) -> float:
    """The cost in seconds of ``second`` reading a tensor of ``numbers`` fp32 elements that ``first`` produced: two
    operators in sequence, minus each alone."""
    x = torch.randn(numbers, device=device)
    captured = Captured.of(nn.Sequential(nn.ReLU(), nn.Tanh()).eval(), (x,))
    graph = UnitGraph(captured)
    runs = []
    for unit, backend in enumerate((first, second)):
        part = replace(graph.part([unit]), inputs=(x,))
        run = backend.build(part)
        runs.append(run if backend.name == EAGER else PartCall(run, part.module.forward))
    a, b = runs
    with torch.no_grad():
        both, one, other = map(statistics.median, _laps([lambda: b(a(x)[0]), lambda: a(x), lambda: b(x)],
                                                        device, repeats))
    return max(0.0, both - one - other)


def compared(given: Sequence[Any], expected: Sequence[Any]) -> tuple[float, str | None]:
    """The largest error of ``given`` as a share of the largest expected element, and the reason for a refusal, or
    ``None`` within tolerance."""
    if len(given) != len(expected):
        return float("inf"), f"gives {len(given)} results, eager {len(expected)}"
    largest = 0.0
    for i, (found, right) in enumerate(zip(given, expected, strict=True)):
        if not isinstance(right, Tensor):
            continue
        if not isinstance(found, Tensor) or found.shape != right.shape or found.dtype != right.dtype:
            kind = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            return float("inf"), f"gives {kind} as result {i}, eager {tuple(right.shape)} {right.dtype}"
        allowed = TOLERANCE.get(right.dtype, 0.0)
        a, b = (value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
                for value in (found, right))
        both = torch.isfinite(a) & torch.isfinite(b)
        if not torch.equal(a[~both].nan_to_num(), b[~both].nan_to_num()):
            return float("inf"), f"has infinities or NaN in result {i} where eager has none, or the other way round"
        scale = float(b[both].abs().max()) if both.any() else 0.0
        error = float((a[both] - b[both]).abs().max()) / max(scale, 1e-30) if both.any() else 0.0
        largest = max(largest, error)
        if error > allowed:
            return largest, f"has wrong numbers: the largest error is {error:.2g} of the largest number, {allowed:g} " \
                            "are allowed"
    return largest, None


def _passes(trains: bool) -> Callable[..., list[Any]]:
    """A function that calls a part and returns its results; with ``trains``, it also runs the backward with gradients
    of ones and returns the gradients of the arguments after the results."""
    def forward(run: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return list(run(*given))

    def both(run: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
        results = list(run(*given))
        ends = [result for result in results if isinstance(result, Tensor) and result.requires_grad]
        wanted = [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not ends:
            return results
        if not wanted:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
            return results
        gradients = torch.autograd.grad(ends, wanted, [torch.ones_like(end) for end in ends], allow_unused=True)
        return [*results, *gradients]

    return both if trains else forward


def _leaves(part: GraphPart, given: Sequence[Any], trains: bool) -> tuple[Any, ...]:
    """``given`` as inputs of a part; with ``trains``, activations require gradients."""
    return tuple(leaf.detach().requires_grad_(trains and _learns(node)) if isinstance(leaf, Tensor) and
                 leaf.is_floating_point() else leaf for node, leaf in zip(part.takes, given, strict=True))


def _learns(node: Node) -> bool:
    fake = node.meta.get("val")
    return node.op != "placeholder" and isinstance(fake, Tensor) and fake.is_floating_point()


def _fresh(given: Sequence[Any]) -> tuple[Any, ...]:
    """Copies of ``given`` in newly allocated memory."""
    return tuple(leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
                 for leaf in given)


def _device(given: Sequence[Any]) -> torch.device:
    return next((leaf.device for leaf in given if isinstance(leaf, Tensor)), torch.device("cpu"))


def _timed_beside(run: Callable[[], Any], plain: Callable[[], Any], given: Sequence[Any], repeats: int,
                  error: float) -> TrialResult:
    """The time of ``run``: the median ratio of alternating laps of ``run`` and ``plain``, times the median of
    ``plain``."""
    own, other = _laps([run, plain], _device(given), repeats)
    eager = statistics.median(other)
    ratio = statistics.median(a / max(b, 1e-12) for a, b in zip(own, other, strict=True))
    return TrialResult(ratio * eager, Sample.of(own).spread, len(own), error, eager)


def _laps(runs: Sequence[Callable[[], Any]], device: torch.device, repeats: int, *,
          once: bool = False) -> list[list[float]]:
    """Seconds per call of each of ``runs``, by lap; the laps of the runs alternate. ``once``: a lap is one call,
    without a cache flush before it."""
    several, total, timer = list[int](), 0.0, Timer.of_work(device)
    for run in runs:
        lap, calls = max(timer.lap(run)[1], 1e-9), 1
        while calls < WARM and lap < LONG:
            lap, calls = max(timer.lap(run)[1], 1e-9), calls + 1
        several.append(1 if once else max(1, round(LAP / lap)))
        total += several[-1] * lap
    flushed, laps = torch.zeros(FLUSHED // 4, device=device), [list[float]() for _ in runs]
    count = max(min(repeats, round(LONGEST / total)), min(MOST * repeats, round(LONG / total)), 3)
    for _ in range(count):
        for run, each, own in zip(runs, several, laps, strict=True):
            if each == 1 and not once:
                flushed.add_(1)
            own.append(timer.lap(lambda run=run, each=each: [run() for _ in range(each)])[1] / each)  # type: ignore[misc]
    return laps


def require_usable(name: str) -> Backend:
    """The backend of this name. Raises :class:`~weft.runtime.backends.registry.BackendError`."""
    known = registered()
    if name not in known:
        raise BackendError(f"backend {name!r} is not registered in the process that measures: register it in a file "
                           "of its own, not in the script")
    return known[name]
