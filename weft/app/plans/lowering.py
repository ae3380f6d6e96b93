"""A preserved plan as instructions for each rank: device d of the plan is rank d.

Parts and communications get one common order: a communication follows the last part that it needs, on all participating
ranks. A rank's instructions are its share of that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.models.layouts.layout import Box, intersection, shape_of, within
from weft.models.layouts.steps import LayoutStep, box_of
from weft.models.transform.plan import Preserved
from weft.models.transform.planned import Part, View
from weft.models.transform.preserving import Communication, Sent, serving
from weft.models.transform.program import PlanError
from weft.runtime.by_hand.instructions import (
    Collective,
    Compute,
    Copy,
    Exchange,
    Instruction,
    KernelCall,
    Operand,
    Piece,
    RankProgram,
    Span,
    TakePart,
)


def lower(done: Preserved, ranks: int) -> tuple[RankProgram, ...]:
    """The programs of all ranks. Raises :class:`~weft.models.transform.program.PlanError` if the plan has more devices
    than there are ranks, or communications wait for each other in a cycle."""
    highest = max(done.planned.device(part) for part in done.order)
    if highest >= ranks:
        raise PlanError(f"the plan uses device {highest}, but there are {ranks} ranks: device d runs on rank d")
    return _PlanLowering(done, ranks).programs()


class _PlanLowering:
    def __init__(self, done: Preserved, ranks: int) -> None:
        self.done, self.planned, self.program = done, done.planned, done.planned.program
        self.lists: list[list[Instruction]] = [[] for _ in range(ranks)]
        self.given: list[dict[str, tuple[str, Span]]] = [{} for _ in range(ranks)]
        self.made: list[dict[str, list[tuple[str, Span, tuple[int, int]]]]] = [{} for _ in range(ranks)]
        self.groups: dict[tuple[int, ...], None] = {}
        self.serving = serving(done.joined)

    def programs(self) -> tuple[RankProgram, ...]:
        """In order: each communication as soon as all its inputs are made."""
        open_parts = [{view.part for view in entry.producers} for entry in self.done.joined]
        joined = [entry.next_step for entry in self.done.joined]
        waiting = list(self.done.order)
        ready: set[Part] = set()
        while waiting:
            later = []
            for part in waiting:
                needed = [i for name in self.program.by_name[part.operation].inputs
                          for i in self.serving.get((name, False, part), ()) if not joined[i]]
                for i in needed:
                    if open_parts[i] <= ready:
                        self.join(i)
                        joined[i] = True
                if all(joined[i] for i in needed):
                    self.compute(part)
                    ready.add(part)
                else:
                    later.append(part)
            if len(later) == len(waiting):
                raise PlanError(f"{later[0]} waits for a communication of parts that wait for it")
            waiting = later
        for i, entry in enumerate(self.done.joined):
            if entry.next_step:
                self.join(i)
        return tuple(RankProgram(rank, tuple(self.lists[rank]), tuple(self.groups), self.given[rank], {
            name: tuple(entries) for name, entries in self.made[rank].items()}, self.carried(rank))
            for rank in range(len(self.lists)))

    def carried(self, rank: int) -> dict[str, tuple[str, Span]]:
        """The location of each piece of a rank's parameters and states after a step."""
        makers = {held: made for made, held in self.program.carried.items()}
        found: dict[str, tuple[str, Span]] = {}
        for key, (name, box) in self.given[rank].items():
            for i, entry in enumerate(self.done.joined):
                wanted = entry.wanted.get(rank) if entry.next_step and entry.tensor == makers.get(name) else None
                if wanted is not None and (intersection(box, wanted) == box or wanted == box == ()):
                    found[key] = f"brought {i}", within(box, wanted or ())
                    break
        return found

    # -- parts -----------------------------------------------------------------------------------------------------

    def compute(self, part: Part) -> None:
        operation, rank = self.program.by_name[part.operation], self.planned.device(part)
        call = KernelCall(operation.kind, operation.annotation.inputs, operation.annotation.outputs,
                          self.planned.sizes(part), {n: low for n, (low, _) in self.planned.spans(part).items()},
                          operation.attributes)
        inputs = [self.operand(part, name, box, rank) for name, box in self.planned.inputs(part)]
        outputs = []
        for name, box in self.planned.outputs(part):
            outputs.append(_key(part, name))
            self.made[rank].setdefault(name, []).append((outputs[-1], box, self.planned.value(part)))
        self.lists[rank].append(Compute(call, tuple(inputs), tuple(outputs)))

    def operand(self, part: Part, name: str, box: Box, rank: int) -> Operand:
        terms: list[tuple[str, Span]] = []
        for term in self.program.terms(name):
            if term not in self.program.producer:
                key = f"given {term} {box}"
                self.given[rank][key] = term, box
                terms.append((key, within(box, box)))
        for i in self.serving.get((name, False, part), ()):
            wanted = self.done.joined[i].wanted.get(rank)
            if wanted is not None and intersection(box, wanted) == box:
                terms.append((f"brought {i}", within(box, wanted)))
        return Operand(tuple(terms))

    # -- communications --------------------------------------------------------------------------------------------

    def join(self, i: int) -> None:
        entry = self.done.joined[i]
        if entry.conversion is None:
            self.scattered(i, entry)
            return
        names = {device: f"brought {i} at 0" for device in entry.conversion.source.devices}
        for device in entry.conversion.source.devices:
            own, box = entry.held(device)
            self.lists[device].append(Piece(names[device], shape_of(box), tuple(self.copies(entry, own, box))))
        for at, step in enumerate(entry.conversion.steps):
            names = self.step(entry, step, names, f"brought {i} at {at + 1}")
        for device in entry.wanted:
            self.lists[device].append(TakePart(names[device], f"brought {i}", None, 1, 0))

    def copies(self, entry: Communication, views: Sequence[View], box: Box) -> Iterator[Copy]:
        """Each element of each term once."""
        seen: set[tuple[str, Box, tuple[int, int]]] = set()
        for view in views:
            for term in entry.terms:
                common = intersection(view.box, box)
                if self.program.producer[term] == view.part.operation and common is not None:
                    if (term, common, view.value) not in seen:
                        yield Copy(_key(view.part, term), within(common, view.box), within(common, box))
                    seen.add((term, common, view.value))

    def step(self, entry: Communication, step: LayoutStep, names: Mapping[int, str], into: str) -> dict[int, str]:
        if step.kind == "send":
            shape = shape_of(entry.frame)
            before = {device: box_of(step.before, piece, shape) for device, piece in step.before.held.items()}
            after = {device: box_of(step.after, piece, shape) for device, piece in step.after.held.items()}
            messages = [(m.source, m.target, m.box) for m in step.messages]
            self.exchange(messages, before, after, names, into, self.program.tensors[entry.terms[0]].dtype)
            return dict.fromkeys(after, into)
        for had, get in zip(step.gathered, step.groups, strict=True):
            if step.kind not in ("slice", "term"):
                self.groups[tuple(sorted(had))] = None
            for index, device in enumerate(get):
                if step.kind == "slice" or step.kind == "term":
                    self.lists[device].append(TakePart(names[device], into, step.target, step.parts, index))
                else:
                    self.lists[device].append(Collective(step.kind, names[device], into, had, get, step.source,
                                                         step.target))
        return dict.fromkeys(names, into)

    def exchange(self, messages: Sequence[tuple[int, int, Box]], before: Mapping[int, Box], after: Mapping[int, Box],
                 names: Mapping[int, str], into: str, dtype: str) -> None:
        for device in sorted({*before, *after}):
            sends = tuple((target, within(box, before[device])) for source, target, box in messages
                          if source == device != target)
            receives = tuple((source, within(box, after[device])) for source, target, box in messages
                             if target == device != source)
            own = tuple((within(box, before[device]), within(box, after[device])) for source, target, box in messages
                        if source == target == device)
            shape = shape_of(after[device]) if device in after else ()
            self.lists[device].append(Exchange(names.get(device), into if device in after else None, shape, sends,
                                               receives, own, dtype))

    def scattered(self, i: int, entry: Communication) -> None:
        """Without layouts: each term sent is a message from the part that made it."""
        parts: dict[tuple[str, Part], list[Sent]] = {}
        for message in entry.messages:
            parts.setdefault((message.tensor, message.source), []).append(message)
        pieces: dict[int, list[Copy]] = {device: [] for device in entry.wanted}
        for n, ((tensor, part), sent) in enumerate(parts.items()):
            view = next(view for view in self.planned.gives(part.operation, tensor) if view.part == part)
            targets = {one.target: entry.wanted[one.target] for one in sent}
            into = f"brought {i} of {n}"
            self.exchange([(m.device, m.target, m.box) for m in sent], {view.device: view.box}, targets,
                          {view.device: _key(part, tensor)}, into, self.program.tensors[tensor].dtype)
            for target, box in targets.items():
                whole = within(box, box)
                pieces[target].append(Copy(into, whole, whole))
        for device, copies in pieces.items():
            self.lists[device].append(Piece(f"brought {i}", shape_of(entry.wanted[device]), tuple(copies)))


def _key(part: Part, tensor: str) -> str:
    return f"{part} {tensor}"
