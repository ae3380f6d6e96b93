"""``weft train``: what ``setup()`` gives, trained for some steps by ranks that it starts itself."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch.optim import Optimizer

from weft.app.pipeline.build import make_pipeline
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.run.pipe import Pipeline
from weft.app.train.options import TrainOptions
from weft.app.train.saving import Saving
from weft.app.train.setup import Setup, example_setup, setup_of
from weft.runtime.captured.captured import CaptureError
from weft.runtime.interface.fitting import misfit

__all__ = ["rank_command", "train_rank"]

MICRO_BATCHES = 4  # where neither the setup nor the user says


def train_rank(options: TrainOptions) -> int:
    """What one rank does, and its exit code; ``options.on_line`` hears each step's loss and the report, on rank 0; or
    one line with both as JSON, ``{"losses": [...], "report": {...}}``. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` before the ranks meet."""
    try:
        setup = _setup(options)
    except CaptureError:
        if os.environ.get("RANK", "0") == "0":
            raise
        time.sleep(1)  # let rank 0 speak
        raise SystemExit(2) from None
    with make_pipeline(setup.module, setup.args, setup.kwargs, _options(setup, options)) as pipe:
        heard = _saved_if_unheard(pipe, options) if pipe.rank == 0 and not options.as_json else _nobody
        optimizer = _optimizer(setup, pipe)
        saving = Saving(pipe, optimizer, options.checkpoint, options.every, heard)
        losses = []
        for loss in _steps(pipe, setup, optimizer, saving, options.steps):
            losses.append(loss)
            heard(f"step {pipe.steps}  loss {loss:.6g}")
        saving.end()
        report = pipe.report()
        if losses and options.figure is not None:
            pipe.draw(options.figure)
        heard(str(report))
        if pipe.rank == 0 and options.as_json:
            options.on_line(json.dumps({"losses": losses, "report": report.to_json()}))
    return saving.code


def _optimizer(setup: Setup, pipe: Pipeline) -> Optimizer:
    """This rank's. Raises :class:`~weft.runtime.captured.captured.CaptureError` for one that would train nothing."""
    optimizer = setup.optimizer(list(pipe.parameters()))
    trained = [parameter for _, parameter in pipe.named_parameters()]
    if (why := misfit(optimizer, trained, (), "the parameters that optimizer(parameters) is called with",
                      folds=False)) is not None:
        raise CaptureError(f"setup: {why}")
    return optimizer


def _options(setup: Setup, options: TrainOptions) -> PipelineOptions:
    return PipelineOptions(
        micro_batches=options.micro_batches or setup.micro_batches or MICRO_BATCHES, loss=setup.loss,
        target=setup.target,
        schedule=options.schedule, memory=options.memory, spec=options.spec, time_limit=options.time_limit,
        timeout=options.timeout, **setup.options)


def _steps(pipe: Pipeline, setup: Setup, optimizer: Optimizer, saving: Saving, steps: int) -> Iterator[float]:
    """The loss of each step from the checkpoint on; the optimizer's follows when the next is asked for."""
    for args, kwargs, target in itertools.islice(_batches(setup, pipe), saving.begin(), steps):
        yield pipe.step(*args, target=target, **kwargs)
        optimizer.step()
        optimizer.zero_grad()
        if saving.after_step():
            return


class Feeds(Protocol):
    """What is asked of a pipeline before it is fed."""

    @property
    def takes_data(self) -> bool:
        """Whether this rank reads anything of a batch."""

    def needs(self, name: str) -> bool:
        """Whether it reads this argument."""


def _saved_if_unheard(pipe: Pipeline, options: TrainOptions) -> Callable[[str], object]:
    """What hears lines; where nobody reads standard output any more and there is somewhere to save to, training ends as
    by a signal, with a checkpoint."""
    if options.checkpoint is None:
        return options.on_line

    def hear(line: str) -> None:
        try:
            options.on_line(line)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            pipe.session.watch.asked = signal.SIGPIPE

    return hear


def _nobody(line: str) -> None:
    """Hears nothing."""


def _setup(options: TrainOptions) -> Setup:
    if (options.setup is None) == (options.example is None):
        raise CaptureError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    return setup_of(options.setup) if options.setup is not None else example_setup(str(options.example))


def _batches(setup: Setup, pipe: Feeds) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    """Arguments, named ones and target of each batch, round and round; on a rank that reads none, nothing is asked of
    the user's data."""
    if not pipe.takes_data:
        yield from itertools.repeat(((), {}, None))
        return
    if setup.data is None:
        yield from itertools.repeat((tuple(setup.args), dict(setup.kwargs), setup.target))
        return
    before = 0
    while True:
        seen = before
        for batch in setup.data(pipe.needs) if callable(setup.data) else setup.data:
            seen += 1
            yield _batch(batch)
        if seen == before:  # an iterator, which is at its end for ever
            raise CaptureError(f"data of setup gives no batch after {seen}: give what can be gone through again, such "
                               "as a list, a DataLoader or a function, or run fewer --steps" if seen else
                               "data of setup gives no batch")
        before = seen


def _batch(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    if isinstance(batch, Mapping):
        return (), {name: value for name, value in batch.items() if name != "target"}, batch.get("target")
    if not isinstance(batch, Sequence) or len(batch) != 2:
        raise CaptureError(f"data of setup gives {type(batch).__name__}, it must give (inputs, target) or a mapping of "
                           "named arguments")
    inputs, target = batch
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, target


def rank_command(arguments: Sequence[str]) -> list[str]:
    """What starts one rank of ``weft train`` with ``arguments``."""
    return [sys.executable, "-m", "weft", "train", *arguments]
