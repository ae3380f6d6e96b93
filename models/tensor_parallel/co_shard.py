"""Co-shard: attention or a feed-forward block in parts that run in sequence on one device.

A *segment* is a run of a layer's operators that tensor parallelism divides without an exchange inside: from projections
that read a whole tensor, through operators cut by heads or hidden units, to a projection that yields terms of a sum.
With its parts run in sequence on one device, the sum is accumulated in place, as are the gradients of inputs read by
every part; nothing is sent. In training each part's forward keeps nothing and is recomputed just before its backward,
so that at most one part's activations exist at any time (Lin et al., "SuperScaler" / "nnScaler", OSDI 2024: the
operator co-shard with recomputation). Its costs: every part's forward once more, smaller and so less efficient kernels
(by :class:`~weft.models.tensor_parallel.part_times.PartTimes`), and the additions.

Weight gradients are computed with the input gradients: their inputs are freed afterwards. The parts of a segment are
one operator of the resulting graph, whose workspace is the peak of a part beside the segment's inputs, its output and
their gradients; layers and memory then follow from the general rules. If weight gradients and activations do not peak
together, the workspace is overestimated by at most a part's weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from weft.models.graph.operators import Operator, OperatorGraph, Split, Tensor, Work
from weft.models.layers.layering import operators_by_layer
from weft.models.tensor_parallel.part_times import PartTimes, has_gradient, layout_of, outputs_of, parameters_of
from weft.models.times.operator_times import OperatorTime, Origin
from weft.models.times.roofline import Roofline, dtype_of, pass_seconds

#: What a segment computes.
Family: TypeAlias = Literal["attention", "feed forward"]
FAMILIES: tuple[Family, ...] = ("attention", "feed forward")


@dataclass(frozen=True)
class LayerSegment:
    """Operators of one layer with the split of each, their external inputs, and the tensor of their sum."""

    family: Family
    layer: str
    choices: Mapping[str, Split]
    reads: tuple[str, ...]
    gives: str

    def divides(self, parts: int) -> bool:
        """Whether all its splits allow this many equal parts."""
        return all(split.size % parts == 0 for split in self.choices.values())


@dataclass(frozen=True)
class CoSharded:
    """A graph whose segments of some families are in ``parts`` parts each, with its times and those segments."""

    graph: OperatorGraph
    times: Mapping[str, OperatorTime]
    parts: Mapping[Family, int]
    segments: tuple[LayerSegment, ...]


def segments_of(graph: OperatorGraph) -> tuple[LayerSegment, ...]:
    """All segments of ``graph``, layer by layer; no operator is in two."""
    found: list[LayerSegment] = []
    for layer, operators in operators_by_layer(graph).items():
        taken: set[str] = set()
        for operator in operators:
            if operator.name in taken:
                continue
            for split in operator.splits:
                segment = _grown(graph, layer, operators, operator, split) if _opens(operator, split) else None
                if segment is not None and not taken & set(segment.choices):
                    found.append(segment)
                    taken |= set(segment.choices)
                    break
    return tuple(found)


def co_shard(graph: OperatorGraph, times: Mapping[str, OperatorTime], parts: Mapping[Family, int],
             part_times: Callable[[int], PartTimes], roofline: Roofline) -> CoSharded | None:
    """``graph`` with every segment of the families in ``parts`` in that many parts, if its sizes divide.

    ``part_times`` gives the times of parts by their number. ``None`` if there is no such segment.
    """
    chosen = [segment for segment in segments_of(graph)
              if parts.get(segment.family, 1) > 1 and segment.divides(parts[segment.family])]
    if not chosen:
        return None
    inside = {name: segment for segment in chosen for name in segment.choices}
    operators: list[Operator] = []
    known = dict(times)
    for operator in graph.operators:
        segment = inside.get(operator.name)
        if segment is None:
            operators.append(operator)
        elif operator.name == graph.producer[segment.gives]:
            together, time = _in_turn(graph, segment, parts[segment.family], part_times, roofline)
            operators.append(together)
            known[together.name] = time
        if segment is not None:
            del known[operator.name]
    return CoSharded(OperatorGraph(graph.name, tuple(operators), graph.inputs, graph.outputs, graph.notes), known,
                     parts, tuple(chosen))


def part_peaks(graph: OperatorGraph, segment: LayerSegment, parts: int) -> tuple[int, int]:
    """The peak bytes of one of ``parts`` parts beside the segment's inputs, its output's sum, and the sums of their
    gradients: in a forward (if there is a backward, the recomputed one, which keeps the backward's inputs), and in the
    backward with the gradients of one operator's weights (0 if there is none)."""
    operators = [_part(graph.by_name[name], split, parts) for name, split in segment.choices.items()]
    if not _trains(operators):
        return _forward_peak(operators, segment, keeping=False), 0
    return _forward_peak(operators, segment, keeping=True), _backward_peak(graph, operators, segment)


def _trains(operators: Iterable[Operator]) -> bool:
    return any(operator.input_grad is not None or operator.weight_grad is not None for operator in operators)


# -- segments ----------------------------------------------------------------------------------------------------------


def _opens(operator: Operator, split: Split) -> bool:
    """Whether ``split`` divides a weight matrix and all outputs, and reads everything whole."""
    return (any(p.name in split.parameters for p in operator.parameters if len(p.shape) > 1)
            and all(layout_of(split, name, "inputs") == "whole" for name in operator.inputs)
            and all(isinstance(layout_of(split, tensor.name, "outputs"), int) for tensor in operator.outputs))


def _grown(graph: OperatorGraph, layer: str, operators: Sequence[Operator], first: Operator,
           split: Split) -> LayerSegment | None:
    """The segment that ``first`` opens with ``split``; ``None`` if a cut tensor is needed whole somewhere."""
    growth = _Growth(graph, layer, first, split)
    if not growth.closes():
        return None
    choices, gives = growth.choices, growth.gives
    if gives is None or any(name in choices for name in graph.readers[gives]):
        return None
    ordered = {operator.name: choices[operator.name] for operator in operators if operator.name in choices}
    if next(reversed(ordered)) != graph.producer[gives]:
        return None
    reads = tuple(dict.fromkeys(name for operator in ordered for name in graph.by_name[operator].inputs
                                if name not in growth.cut))
    heads = any(option.dimension == "heads" for option in ordered.values())
    return LayerSegment("attention" if heads else "feed forward", layer, ordered, reads, gives)


class _Growth:
    """A growing segment: the splits chosen so far, the axis of each cut tensor, its sum."""

    def __init__(self, graph: OperatorGraph, layer: str, first: Operator, split: Split) -> None:
        self.graph, self.layer = graph, layer
        self.choices = {first.name: split}
        self.cut = {tensor.name: layout_of(split, tensor.name, "outputs") for tensor in first.outputs}
        self.gives: str | None = None
        self._left = list(self.cut)

    def closes(self) -> bool:
        """Whether all readers of cut tensors accept the cut, or turn it into terms of one sum."""
        while self._left:
            tensor = self._left.pop()
            if tensor in self.graph.outputs or not all(
                    self._takes(self.graph.by_name[name], tensor) for name in self.graph.readers[tensor]):
                return False
        return True

    def _takes(self, reader: Operator, tensor: str) -> bool:
        """Whether ``reader`` accepts the cut of ``tensor``; then it belongs to the segment."""
        if reader.name in self.choices:
            return layout_of(self.choices[reader.name], tensor, "inputs") == self.cut[tensor]
        option = _continuing(reader, self.cut) if reader.layer == self.layer else None
        if option is None:
            return False
        self.choices[reader.name] = option
        for other in reader.inputs:
            self._open_beside(option, other)
        for made in reader.outputs:
            layout = layout_of(option, made.name, "outputs")
            if isinstance(layout, int):
                self.cut[made.name] = layout
                self._left.append(made.name)
            elif self.gives is None:
                self.gives = made.name
            else:
                return False
        return True

    def _open_beside(self, option: Split, tensor: str) -> None:
        """A second projection whose output is read beside the first one's, such as keys and values."""
        wanted = layout_of(option, tensor, "inputs")
        producer = self.graph.by_name.get(self.graph.producer.get(tensor, ""))
        if (not isinstance(wanted, int) or tensor in self.cut or producer is None or producer.layer != self.layer
                or any(self.graph.by_name[user].layer != self.layer for user in self.graph.readers[tensor])):
            return
        opening = next((split for split in producer.splits if _opens(producer, split)
                        and layout_of(split, tensor, "outputs") == wanted), None)
        if opening is not None:
            self.choices[producer.name] = opening
            self.cut[tensor] = wanted
            self._left.append(tensor)


def _continuing(reader: Operator, cut: Mapping[str, object]) -> Split | None:
    """The split of ``reader`` for ``cut`` inputs: to cut outputs, or to terms of a sum."""
    matrices = {p.name for p in reader.parameters if len(p.shape) > 1}
    for split in reader.splits:
        fits = all(layout_of(split, name, "inputs") == cut[name] for name in reader.inputs if name in cut)
        ends = [layout_of(split, tensor.name, "outputs") for tensor in reader.outputs]
        # Terms of a sum come from a projection: a loss has terms too, but its gradient needs the whole sum.
        if fits and matrices <= split.parameters and (
                all(isinstance(end, int) for end in ends) or (ends == ["partial"] and matrices)):
            return split
    return None


# -- costs -------------------------------------------------------------------------------------------------------------


def _in_turn(graph: OperatorGraph, segment: LayerSegment, parts: int, part_times: Callable[[int], PartTimes],
             roofline: Roofline) -> tuple[Operator, OperatorTime]:
    """The parts of ``segment`` as one operator, and its time."""
    known = part_times(parts)
    inner = [graph.by_name[name] for name in segment.choices]
    last = graph.by_name[graph.producer[segment.gives]]
    parameters = tuple({p.name: p for operator in inner for p in operator.parameters}.values())
    trains = _trains(inner)
    ahead, behind = part_peaks(graph, segment, parts)
    operator = Operator(
        name=f"{last.name}: {segment.family} in {parts} parts", kind="co_shard", layer=segment.layer,
        forward=Work.total(operator.forward for operator in inner) or Work(), inputs=segment.reads,
        outputs=last.outputs,
        input_grad=Work.total(work for operator in inner for work in (
            operator.forward, operator.input_grad, operator.weight_grad)) if trains else None,
        parameters=parameters, keeps=segment.reads if trains else (),
        # For an operator that computes them at once, all weights' gradients are counted beside its workspace.
        workspace=max(ahead, behind - sum(p.bytes for p in parameters)))

    dtype = dtype_of(graph, last)
    times = [known.of(graph.by_name[name], split) for name, split in segment.choices.items()]
    forward = parts * sum(time.forward for time in times)
    again = forward + parts * sum(time.input_grad + time.weight_grad for time in times)
    whole = [name for name in segment.reads if has_gradient(graph, name) and any(
        layout_of(split, name, "inputs") == "whole" for operator, split in segment.choices.items()
        if name in graph.by_name[operator].inputs)]
    time = OperatorTime(
        round(forward + (parts - 1) * _addition(roofline, last.outputs[0], dtype, backward=False), 9),
        round(again + (parts - 1) * sum(_addition(roofline, graph.tensors[name], dtype, backward=True)
                                        for name in whole), 9) if trains else 0.0,
        0.0, max((time.origin for time in times), key=list(Origin).index))
    return operator, time


def _addition(roofline: Roofline, tensor: Tensor, dtype: str, *, backward: bool) -> float:
    """Seconds to add a term to ``tensor``."""
    work = Work(tensor.bytes / 2, 2 * tensor.bytes, tensor.bytes)
    return pass_seconds(roofline.device, "add", work, dtype, "backward" if backward else "forward")


# -- one part's memory -------------------------------------------------------------------------------------------------


def _part(operator: Operator, split: Split, parts: int) -> Operator:
    """One part of ``operator``, for memory."""
    return replace(
        operator, outputs=outputs_of(operator, split, parts), parameters=parameters_of(operator, split, parts),
        internal=tuple(replace(tensor, bytes=-(-tensor.bytes // parts)) for tensor in operator.internal),
        workspace=-(-operator.workspace // parts), splits=())


def _forward_peak(operators: Sequence[Operator], segment: LayerSegment, *, keeping: bool) -> int:
    """Of one part; ``keeping`` its backward's inputs."""
    kept = {name for operator in operators for name in operator.keeps} if keeping else set()
    live: dict[str, int] = {}
    peak = 0
    for i, operator in enumerate(operators):
        live |= {tensor.name: tensor.bytes for tensor in (*operator.outputs, *operator.internal)}
        peak = max(peak, sum(live.values()) + operator.workspace)
        for name in list(live):
            if name not in kept and name != segment.gives and not any(
                    name in later.inputs for later in operators[i + 1:]):
                del live[name]
    return peak


def _backward_peak(graph: OperatorGraph, operators: Sequence[Operator], segment: LayerSegment) -> int:
    """Of one part: the tensors kept by its operators up to one, the gradients of the tensors between that one and later
    ones, the terms of its inputs' gradients, and the gradients of its weights."""
    sizes = {tensor.name: tensor.bytes for operator in operators for tensor in (*operator.outputs, *operator.internal)}
    floats = {tensor.name for operator in operators for tensor in operator.outputs if "float" in tensor.dtype}
    peak = 0
    for i, operator in enumerate(operators):
        kept = {name for earlier in operators[:i + 1] for name in earlier.keeps if name in sizes}
        made = {tensor.name for earlier in operators[:i + 1] for tensor in earlier.outputs}
        between = {name for name in made & floats - {segment.gives}
                   if any(name in later.inputs for later in operators[i:])
                   or name in {tensor.name for tensor in operator.outputs}}
        terms = sum(graph.tensors[name].bytes for name in dict.fromkeys(operator.inputs)
                    if name in segment.reads and has_gradient(graph, name))
        peak = max(peak, sum(sizes[name] for name in kept) + sum(sizes[name] for name in between) + terms
                   + sum(p.bytes for p in operator.parameters) + operator.workspace)
    return peak
