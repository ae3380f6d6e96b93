"""``weft train``: training of ``setup()`` for some steps by ranks that it starts itself.

Saving, resuming and stopping are in :mod:`weft.app.train.saving`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from weft.app.pipeline.build import make_pipeline
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.run.pipe import PipelineEngine
from weft.app.train.options import TrainOptions
from weft.app.train.saving import Saving, hearing
from weft.app.train.setup import Setup, example_setup, setup_of
from weft.runtime.captured.captured import CaptureError
from weft.runtime.interface.fitting import misfit

MICRO_BATCHES = 4  # default


def train_rank(options: TrainOptions) -> int:
    """Run one rank; returns its exit code. ``options.on_line`` receives each step's loss and the report, on rank 0; or
    one line with both as JSON, ``{"losses": [...], "report": {...}}``. Raises
    :class:`~weft.runtime.captured.captured.CaptureError` before the ranks connect."""
    try:
        setup = _setup(options)
    except CaptureError:
        if os.environ.get("RANK", "0") == "0":
            raise
        time.sleep(1)  # let rank 0 speak
        raise SystemExit(2) from None
    with make_pipeline(setup.module, setup.args, setup.kwargs, _options(setup, options)) as pipe:
        heard = hearing(pipe.session, options)
        optimizer = _optimizer(setup, pipe)
        if setup.follow is not None:
            pipe.follow(optimizer=optimizer, **setup.follow)
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


def _optimizer(setup: Setup, pipe: PipelineEngine) -> Optimizer:
    """This rank's optimizer. Raises :class:`~weft.runtime.captured.captured.CaptureError` for one that would train
    nothing."""
    optimizer = setup.optimizer(list(pipe.parameters()))
    trained = [parameter for _, parameter in pipe.named_parameters()]
    if (why := misfit(optimizer, trained, (), "the parameters that optimizer(parameters) is called with",
                      folds=False)) is not None:
        raise CaptureError(f"setup: {why}")
    return optimizer


def _options(setup: Setup, options: TrainOptions) -> PipelineOptions:
    first = {} if setup.follow is None else {"plan": setup.follow["plans"][0]}
    return PipelineOptions(
        micro_batches=options.micro_batches or setup.micro_batches or MICRO_BATCHES, loss=setup.loss,
        target=setup.target,
        schedule=options.schedule, memory=options.memory, spec=options.spec, time_limit=options.time_limit,
        timeout=options.timeout, **first, **setup.options)


def _steps(pipe: PipelineEngine, setup: Setup, optimizer: Optimizer, saving: Saving, steps: int) -> Iterator[float]:
    """The loss of each step from the checkpoint on; the optimizer steps when the next loss is requested."""
    for args, kwargs, target in itertools.islice(_batches(setup, pipe), saving.begin(), steps):
        yield pipe.step(*args, target=target, **kwargs)
        optimizer.step()
        optimizer.zero_grad()
        if saving.after_step():
            return


def _setup(options: TrainOptions) -> Setup:
    if (options.setup is None) == (options.example is None):
        raise CaptureError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    return setup_of(options.setup) if options.setup is not None else example_setup(str(options.example))


def _batches(setup: Setup, pipe: PipelineEngine) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Any]]:
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
        if seen == before:  # an exhausted iterator
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
