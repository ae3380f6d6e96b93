"""The executor's worker that trains (or infers): the stages of a model on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.runtime.execute.executor import Parcel, Task
from weft.runtime.interface.counting import LossError, is_counted, one_tensor
from weft.runtime.interface.optim import AdamA
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import StageWork, Work
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.train.accumulation import Folding
from weft.runtime.train.agreement import wiring_of
from weft.runtime.train.moment import Moment
from weft.runtime.train.offload import CopyEngine
from weft.runtime.train.stage import Offloading, StageRunner, add_gradient
from weft.runtime.train.wiring import INPUT, OUTPUT, TARGET

#: The layout of a message without content, which is only waited for.
TOKEN: Mapping[str, Boundary] = {"": Boundary((1,), torch.uint8)}
#: The result of a pass that leaves all its results in the stage.
NOTHING: Parcel = {}
#: Of a message with gradients that there may not be: which are missing, 1 for each that is.
MISSING = ""


class StageWorker:
    """Rank ``session.rank``'s stages of ``plan``, from ``training``.

    They may be a part of a batch of ``whole`` micro-batches in each replica (by default the plan's), behind the first
    ``before`` of them. Raises :class:`~weft.runtime.ranks.session.SessionError` if the problem has no stages or
    ``training`` does not fit it.
    """

    def __init__(self, plan: Plan, session: Session, training: Training, before: int = 0,
                 whole: int | None = None) -> None:
        self.wiring = wiring_of(plan, session.rank, training)
        graph = self.wiring.graph
        self.graph, self.training, self.rank, self.device = graph, training, session.rank, session.device
        self.micro_batches = plan.micro_batches
        whole = plan.micro_batches if whole is None else whole
        self.replicas, self.is_first = session.replicas, not session.peer
        self.first_micro_batch = session.replica * whole + before
        self.batch_size = session.replicas * whole
        self.weight = 1.0  # the share of a batch of these micro-batches, where their losses are means
        self.batches = 1  # whose mean gradient is accumulated
        self.may_count = True  # whether losses may be sums and counts: the caller sums counts
        self.total: float | None = None  # the count of this batch on all ranks
        self._layouts: dict[tuple[int, str, int], Mapping[str, Boundary]] = {}  # the same for every micro-batch
        self.step = 0
        self.token = torch.zeros(1, dtype=torch.uint8, device=self.device)
        self.losses: dict[tuple[int, str, int], Tensor] = {}  # (stage, value, micro-batch)
        mine = {s for s, stage in enumerate(graph.stages) if session.rank in stage.ranks}
        if self.wiring.is_chain and graph.has_backward and len(graph.stages) - 1 in mine and (
                training.loss is None or training.targets is None):
            raise SessionError("the plan has backward passes, so the rank of the last stage must hand over a loss and "
                               "targets")
        if training.masters is not None:
            training.masters.move(self.device)
        self.engine = CopyEngine(self.device)
        self.runners = {s: self._runner(s) for s in mine}
        self.folding = Folding(training, self.runners) if isinstance(training.optimizer, AdamA) else None

    def begin(self, step: int) -> None:
        """Switch to the micro-batches of batch ``step``."""
        self.step = step
        for runner in self.runners.values():
            runner.moment.step = step
        self.losses.clear()
        self.total = None

    @property
    def own_losses(self) -> list[Tensor]:
        """The losses that count here: a stage's losses count on its first rank, of the first of peers."""
        return [loss for (stage, _, _), loss in self.losses.items()
                if self.is_first and self.graph.stages[stage].ranks[0] == self.rank]

    @property
    def is_counted(self) -> bool | None:
        """Whether this batch's losses are sums and counts; ``None`` on a rank that has none."""
        return next((is_counted(loss) for loss in self.losses.values()), None)

    @property
    def count(self) -> float:
        """This rank's part of the count of the batch, where losses are sums and counts."""
        return sum(float(loss[1, 0, 0]) for loss in self.own_losses)

    def loss(self) -> float:
        """This rank's part of its replica's mean loss of the batch; where losses have counts, ``R`` times its part of
        the mean over all ``R`` replicas, so that their mean is that too."""
        if self.total is not None:
            return sum(float(loss[0, 0, 0]) for loss in self.own_losses) * (self.replicas / self.total)
        return sum(float(loss) for loss in self.own_losses) / self.micro_batches

    def close(self) -> None:
        """Restore the modules."""
        for runner in self.runners.values():
            runner.close()
        self.engine.close()
        if self.folding is not None:
            self.folding.close()

    # -- what the executor calls ---------------------------------------------------------------------------------------

    def reads(self, work: Work) -> Sequence[Work]:
        """The passes that give a forward's inputs, or the gradients of its outputs."""
        return self.wiring.reads(_stage(work))

    def keeps(self, work: Work) -> Work:
        """A stage may read its inputs, and its outputs' gradients, until its last pass is done."""
        stage, _, micro_batch = _stage(work)
        return StageWork(stage, self.graph.pass_of[self.graph.stages[stage].order[-1]][1], micro_batch)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """The values, or their gradients, that stages on rank ``target`` read."""
        stage, letter, _ = _stage(what)
        if (key := (stage, letter, target)) not in self._layouts:
            names = self.wiring.parcel(_stage(what), target)
            doubtful = len(self.wiring.doubtful(_stage(what), target))
            self._layouts[key] = {**{name: self.wiring.boundaries[name] for name in names},
                                  **({MISSING: Boundary((doubtful,), torch.uint8)} if doubtful else {})} or TOKEN
        return self._layouts[key]

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        """The same, in the layout of the boundaries; the gradient of an unused value is zero, and said to be missing
        where it may be, or is left out where its shape is unknown."""
        layout, is_gradient = self.layout(what, target), _stage(what).letter != "F"
        if layout is TOKEN:
            token = {"": self.token}
            return lambda result: token
        if doubtful := self.wiring.doubtful(_stage(what), target):
            return lambda result: {name: torch.tensor([value not in result for value in doubtful], dtype=torch.uint8,
                                                      device=self.device) if name is MISSING else
                                   self._checked(what, name, boundary, result.get(name), True)
                                   for name, boundary in layout.items()}
        entries = [(name, boundary, boundary.is_known or not is_gradient) for name, boundary in layout.items()]
        return lambda result: {name: self._checked(what, name, boundary, result.get(name), is_gradient)
                               for name, boundary, is_sent in entries if is_sent or name in result}

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        """Wait for copies to or from the host, where they run beside the computation."""
        stage, letter, micro_batch = _stage(work)
        if letter not in "ORBIW" or not self.graph.copies_beside(stage):
            return None
        arrive = self.runners[stage].arrive
        return lambda results: arrive(micro_batch)

    def task(self, work: Work) -> Task:
        """One pass of one stage."""
        stage, letter, micro_batch = _stage(work)
        task, folding = self._pass(stage, letter, micro_batch), self.folding
        if folding is None or letter not in "BIW":
            return task

        def folded(results: Mapping[Work, Parcel]) -> Parcel:
            folding.enter(stage, letter, micro_batch)
            result = task(results)
            folding.leave()
            return result

        return folded

    # -- passes --------------------------------------------------------------------------------------------------------

    def _pass(self, stage: int, letter: str, micro_batch: int) -> Task:
        if letter == "F":
            return self._forward(stage, micro_batch)
        if letter == self.graph.stages[stage].backward:
            return self._backward(stage, letter, micro_batch)
        runner = self.runners[stage]
        run = {"W": runner.weight_grad, "R": runner.recompute, "O": runner.offload, "L": runner.load}[letter]

        def inner(results: Mapping[Work, Parcel]) -> Parcel:
            run(micro_batch)
            return NOTHING

        return inner

    def _forward(self, stage: int, micro_batch: int) -> Task:
        runner, (takes, gives) = self.runners[stage], self.wiring.ports[stage]
        giver = {value: StageWork(self.wiring.giver[value], "F", micro_batch) for value in takes
                 if value in self.wiring.giver}
        fetch, collect = self._data(stage, micro_batch), self._collect(stage, micro_batch)
        run = partial(runner.forward if self.graph.stages[stage].backward is not None else runner.infer_of, micro_batch)
        losses = [value for value in gives if value in self.wiring.losses]

        def forward(results: Mapping[Work, Parcel]) -> Parcel:
            data = fetch()
            ys = run(*[results[giver[value]][value] if value in giver else self._here(data[value])
                       for value in takes])
            if len(ys) != len(gives):
                raise SessionError(f"stage {stage} gave {len(ys)} values, but its ports name {len(gives)}: "
                                   f"{', '.join(gives)}")
            given = dict(zip(gives, ys, strict=True))
            for value in losses:
                self.losses[stage, value, micro_batch] = self._scalar(stage, value, given.pop(value))
            collect(given)
            return given

        return forward

    def _backward(self, stage: int, letter: str, micro_batch: int) -> Task:
        runner, (takes, gives) = self.runners[stage], self.wiring.ports[stage]
        run = runner.input_grad if letter == "I" else runner.backward
        gradients = [self._gradient(stage, value, micro_batch) for value in gives]
        owed = [(place, value) for place, value in enumerate(takes)
                if letter != "W" and value in self.wiring.differentiated(stage)]

        def backward(results: Mapping[Work, Parcel]) -> Parcel:
            found = run(micro_batch, *[gradient(results) for gradient in gradients])
            return {value: gradient for place, value in owed if (gradient := found[place]) is not None}

        return backward

    def _gradient(self, stage: int, value: str, micro_batch: int) -> Callable[[Mapping[Work, Parcel]], Tensor | None]:
        """The gradient of an output of ``stage``: of a loss, its share in the batch's mean; else the sum over
        takers."""
        if value in self.wiring.losses:
            return lambda results: self._share(self.losses[stage, value, micro_batch])
        takers = []
        for taker in self.wiring.gradients_from(value):
            work = StageWork(taker, self.wiring.backward(taker), micro_batch)
            doubtful = self.wiring.doubtful(work, self.rank)
            takers.append((work, doubtful.index(value) if value in doubtful else None))

        def total(results: Mapping[Work, Parcel]) -> Tensor | None:
            found: Tensor | None = None
            for taker, place in takers:
                parcel = results[taker]
                if (gradient := parcel.get(value)) is not None and (
                        place is None or MISSING not in parcel or not parcel[MISSING][place]):
                    found = gradient if found is None else found + gradient
            return found

        return total

    def _share(self, loss: Tensor) -> Tensor:
        """The gradient of a loss: its share in the batch's mean, or of its sum, which is divided by the count later."""
        scale = 1.0 if self.training.scaling is None else self.training.scaling.value
        if not is_counted(loss):
            return torch.full_like(loss, self.weight / (self.replicas * self.micro_batches * self.batches) * scale)
        share = torch.full_like(loss, 1 / (self.batch_size * self.batches) * scale)
        share[1] = 0
        return share

    # -- modules, data, results ----------------------------------------------------------------------------------------

    def _runner(self, stage: int) -> StageRunner:
        wiring, passes, training = self.wiring, self.graph.stages[stage].blocks, self.training
        owed = wiring.differentiated(stage) if self.graph.stages[stage].gives_gradient else ()
        module = training.stages[stage]
        if any(tensor.device != self.device for tensor in (*module.parameters(), *module.buffers())):
            module = module.to(self.device)  # of shares it makes others, without their hooks
        for name in training.offloaded.get(stage, ()):
            if name not in dict(module.named_modules()):
                raise SessionError(f"offloaded names {name!r}, which is no part of stage {stage}'s module")
        function: Callable[..., Any] = module
        if wiring.is_chain and TARGET in wiring.ports[stage].takes:
            loss = training.loss
            assert loss is not None

            def function(x: Tensor, target: Tensor) -> Tensor:
                try:
                    return one_tensor(loss(module(x), target))  # type: ignore[no-any-return]
                except LossError as error:
                    raise SessionError(str(error)) from None

        return StageRunner(module, function=function, split="I" in passes, recompute="R" in passes,
                           offloading=Offloading(self.engine, training.offloaded.get(stage),
                                                 self.graph.copies_beside(stage)) if "O" in passes else None,
                           constant=[i for i, value in enumerate(wiring.ports[stage].takes) if value not in owed],
                           moment=Moment(training.seed, 0, self.first_micro_batch),
                           add=add_gradient if training.masters is None else training.masters.add)

    def _data(self, stage: int, micro_batch: int) -> Callable[[], Mapping[str, Tensor]]:
        """A function that fetches the inputs of ``stage`` that no stage gives."""
        wanted = [value for value in self.wiring.ports[stage].takes if value not in self.wiring.giver]
        number, training = self.first_micro_batch + micro_batch, self.training
        if not wanted:
            return dict
        if self.wiring.is_chain:
            sources = {INPUT: training.inputs, TARGET: training.targets}
            return lambda: {value: fetch(self.step, number) for value in wanted
                            if (fetch := sources[value]) is not None}

        def fetch_by_name() -> Mapping[str, Tensor]:
            data = training.inputs(self.step, number)
            missing = [value for value in wanted if value not in data] if isinstance(data, Mapping) else wanted
            if missing:
                raise SessionError(f"stage {stage} takes {missing[0]!r}, which no stage gives and inputs({self.step}, "
                                   f"{number}) does not hold by that name")
            return dict(data)

        return fetch_by_name

    def _collect(self, stage: int, micro_batch: int) -> Callable[[Mapping[str, Tensor]], None]:
        """A function that collects the values that leave the model at ``stage``."""
        values, collect = self.wiring.results(stage), self.training.collect
        if not values or collect is None or self.graph.stages[stage].ranks[0] != self.rank:
            return lambda given: None
        number, whole = self.first_micro_batch + micro_batch, self.wiring.is_chain
        return lambda given: collect(self.step, number,
                                     given[OUTPUT] if whole else {value: given[value] for value in values})

    def _here(self, data: Tensor) -> Tensor:
        """``data`` on the device. A GPU copies from page-locked memory without making the host wait for all earlier
        kernels; so ordinary memory is first copied to such (torch keeps that until it has been read). Data that is
        already page-locked is waited for: its owner may want to write to it."""
        if self.device.type == "cuda" and data.device.type == "cpu" and not data.is_pinned():
            return data.pin_memory().to(self.device, non_blocking=True)
        return data.to(self.device)

    def _checked(self, what: Work, name: str, boundary: Boundary, found: Tensor | None, is_gradient: bool) -> Tensor:
        if found is not None and boundary.fits(found):
            return found
        if found is None and is_gradient:
            return torch.zeros(boundary.known, dtype=boundary.dtype, device=self.device)
        seen = "nothing" if found is None else f"{tuple(found.shape)} of {found.dtype}"
        entry = name if self.wiring.is_chain else f"boundaries[{name!r}]"
        raise SessionError(f"{what} gives {seen}, but {entry} says {tuple(boundary.shape)} of {boundary.dtype}")

    def _scalar(self, stage: int, value: str, loss: Tensor) -> Tensor:
        if is_counted(loss):
            self._require_counts(value)
        elif loss.numel() != 1:
            raise SessionError(f"stage {stage} gives the loss {value!r} in the shape {tuple(loss.shape)}, it must be "
                               "one number, the mean over the micro-batch, or (sum, count)")
        # Torch's mse_loss gives a number in the memory of the differences: kept till the next step, it keeps that.
        return loss if loss.untyped_storage().nbytes() == loss.nbytes else loss.clone()

    def _require_counts(self, value: str) -> None:
        """Refuse a sum and a count where they cannot be averaged."""
        given = [other for other in self.wiring.losses if other in self.wiring.giver]
        why = ("jobs that share GPUs do not add up counts" if not self.may_count else
               "AdamA takes each micro-batch's gradients before the count of the batch is known" if self.folding
               is not None else f"there are {len(given)} losses, whose counts differ" if len(given) > 1 else None)
        if why is not None:
            raise SessionError(f"the loss {value!r} is a sum and a count, but {why}: give the mean")


def _stage(work: Work) -> StageWork:
    assert isinstance(work, StageWork)  # a program of stages has no other words
    return work
