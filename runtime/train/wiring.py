"""The values that pass between the stages of a plan: the inputs of each pass, and the content of each message.

A plan has the dependencies, a :class:`~weft.runtime.interface.training.Training` the values that its modules take and
give. Here the two are compared: a value must be waited for where it is taken, and its gradient where it was given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from weft.runtime.interface.training import Boundary, Ports, Training
from weft.runtime.plan.program import StageWork
from weft.runtime.plan.stage_graph import StageGraph
from weft.runtime.ranks.session import SessionError

#: The names of the data and the result of a chain, whose stages have none for them.
INPUT, TARGET, OUTPUT = "input", "target", "output"


class Wiring:
    """The values of ``training`` on the stages of ``graph``.

    Raises :class:`~weft.runtime.ranks.session.SessionError` with a sentence where they do not fit.
    """

    def __init__(self, graph: StageGraph, training: Training) -> None:
        self.graph = graph
        self.is_chain = training.ports is None
        self.ports, self.boundaries = _chain(graph, training) if training.ports is None else (
            training.ports, _named(training.boundaries))
        self.untrained, self.maybe = training.untrained, training.doubtful
        self.losses: Collection[str] = ("loss",) if self.is_chain else training.losses
        self.giver: dict[str, int] = {}
        self.takers: dict[str, list[int]] = {}
        self._enter_values()
        for value, giver in self.giver.items():
            for taker in self.takers.get(value, ()):
                self._require_waits(value, giver, taker)
        if graph.has_backward:
            self._require_gradients()

    @property
    def has_losses(self) -> bool:
        """Whether some stage gives a loss."""
        return any(value in self.giver for value in self.losses)

    def reads(self, work: StageWork) -> tuple[StageWork, ...]:
        """The passes whose results ``work`` reads."""
        stage, letter, micro_batch = work
        if letter == "F":
            givers = dict.fromkeys(self.giver[value] for value in self.ports[stage].takes if value in self.giver)
            return tuple(StageWork(giver, "F", micro_batch) for giver in givers)
        if letter != self.graph.stages[stage].backward:
            return ()
        takers = dict.fromkeys(taker for value in self.ports[stage].gives for taker in self.gradients_from(value))
        return tuple(StageWork(taker, self.backward(taker), micro_batch) for taker in takers)

    def gradients_from(self, value: str) -> Iterator[int]:
        """The stages that give a gradient of ``value``."""
        if self._is_number(value):
            yield from (s for s in self.takers.get(value, ()) if self.graph.stages[s].gives_gradient)

    def parcel(self, what: StageWork, target: int) -> tuple[str, ...]:
        """The values, or gradients of values, in the message of the result of ``what`` to rank ``target``."""
        stage, letter, _ = what
        ports, stages = self.ports[stage], self.graph.stages
        if letter == "F":
            return tuple(value for value in ports.gives
                         if any(target in stages[taker].ranks for taker in self.takers.get(value, ())))
        if letter == stages[stage].backward and stages[stage].gives_gradient:
            return tuple(value for value in self.differentiated(stage) if target in stages[self.giver[value]].ranks)
        return ()

    def differentiated(self, stage: int) -> tuple[str, ...]:
        """The values that ``stage`` takes and owes a gradient of."""
        return tuple(value for value in self.ports[stage].takes if self._is_number(value) and value in self.giver
                     and self.graph.stages[self.giver[value]].backward is not None)

    def doubtful(self, what: StageWork, target: int) -> list[str]:
        """The values whose gradients there may not be in the message of the result of ``what`` to rank ``target``;
        none where that has others of unknown shapes, which are left out of it."""
        names = self.parcel(what, target) if what.letter != "F" and self.maybe else ()
        return [value for value in names if value in self.maybe] if all(
            value in self.boundaries and self.boundaries[value].is_known for value in names) else []

    def backward(self, stage: int) -> str:
        """The letter of the backward of ``stage`` that gives gradients, which the plan has."""
        letter = self.graph.stages[stage].backward
        assert letter is not None
        return letter

    def results(self, stage: int) -> tuple[str, ...]:
        """The values that leave the model at ``stage``: no stage takes them, and they are not losses."""
        return tuple(value for value in self.ports[stage].gives
                     if value not in self.takers and value not in self.losses)

    # -- what must fit -------------------------------------------------------------------------------------------------

    def _enter_values(self) -> None:
        count = len(self.graph.stages)
        if set(self.ports) != set(range(count)):
            raise SessionError(f"ports names the stages {sorted(self.ports)}, but the plan has the stages "
                               f"{list(range(count))}")
        for stage, (takes, gives) in sorted(self.ports.items()):
            for names in (takes, gives):
                if len(set(names)) != len(names):
                    raise SessionError(f"stage {stage}: its ports name a value twice: {', '.join(names)}")
            for value in gives:
                if value in self.giver:
                    raise SessionError(f"stages {self.giver[value]} and {stage} both give the value {value!r}")
                self.giver[value] = stage
            for value in takes:
                self.takers.setdefault(value, []).append(stage)
        for value in self.losses:
            if value in self.takers:
                raise SessionError(f"stage {self.takers[value][0]} takes {value!r}, which is a loss: a loss leaves the "
                                   "model where it is given")

    def _require_waits(self, value: str, giver: int, taker: int) -> None:
        stages, blocks = self.graph.stages, self.graph.problem.blocks
        passes = [(giver, "F", taker, "F", "")]
        if taker in self.gradients_from(value) and stages[giver].backward is not None:
            passes.append((taker, self.backward(taker), giver, self.backward(giver), "the gradient of "))
        for source, letter, reader, its_letter, what in passes:
            producer, consumer = stages[source].blocks[letter], stages[reader].blocks[its_letter]
            for rank in stages[reader].ranks:
                if not self.graph.reaches(producer, consumer, rank):
                    raise SessionError(
                        f"stage {reader} takes {what}{value!r} from stage {source}, but in the plan block "
                        f"{blocks[consumer].name!r} does not wait for {blocks[producer].name!r} on rank {rank}")
                if rank not in stages[source].ranks and value not in self.boundaries:
                    raise SessionError(f"{value!r} goes from stage {giver} to stage {taker}, on another rank, but "
                                       "boundaries does not say what it looks like")

    def _require_gradients(self) -> None:
        given = [value for value in self.losses if value in self.giver]
        if not given:
            raise SessionError("the plan has backward passes, but no stage gives a loss (a value named in losses: "
                               f"{', '.join(self.losses)})")
        for stage, passes in enumerate(self.graph.stages):
            gives = self.ports[stage].gives
            has_loss = any(value in given for value in gives)
            if has_loss and passes.backward is None:
                raise SessionError(f"stage {stage} gives a loss, but the plan has no backward for it")
            if passes.backward is not None and not has_loss and not any(
                    True for value in gives for _ in self.gradients_from(value)):
                raise SessionError(f"the plan has a backward for stage {stage}, but no stage gives it a gradient, and "
                                   "it gives no loss")

    def _is_number(self, value: str) -> bool:
        return value not in self.untrained and (
            value not in self.boundaries or self.boundaries[value].has_gradient)


def _chain(graph: StageGraph, training: Training) -> tuple[dict[int, Ports], dict[str, Boundary]]:
    last = len(graph.stages) - 1
    if not isinstance(training.boundaries, Sequence) or len(training.boundaries) != last:
        raise SessionError(f"boundaries has {len(training.boundaries)} entries, but {last + 1} stages have {last} "
                           "between them")
    names = [f"boundaries[{s}]" for s in range(last)]
    takes: list[tuple[str, ...]] = [(name,) for name in (INPUT, *names)]
    gives: list[tuple[str, ...]] = [(name,) for name in (*names, OUTPUT)]
    if graph.has_backward:
        takes[last], gives[last] = (*takes[last], TARGET), ("loss",)
    return ({s: Ports(takes[s], gives[s]) for s in range(last + 1)},
            dict(zip(names, training.boundaries, strict=True)))


def _named(boundaries: Sequence[Boundary] | Mapping[str, Boundary]) -> Mapping[str, Boundary]:
    if not isinstance(boundaries, Mapping):
        raise SessionError("with ports, boundaries must say by name what each value looks like")
    return boundaries
