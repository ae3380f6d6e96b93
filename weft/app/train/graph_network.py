"""``weft train SPEC.yaml``: a graph neural network trained in chunks, in the order of its schedule."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from weft.app.graph_network.planning import budget_of, spec_pass
from weft.app.graph_network.run import streamed
from weft.app.lib.options import SearchOptions
from weft.app.objectives import solve_for
from weft.app.profile.targets import device_of
from weft.app.train.options import TrainOptions
from weft.app.train.saving import Saving, hearing
from weft.models.spec.model_sections import GraphNetworkModel
from weft.models.spec.spec import Spec, SpecError, load_spec
from weft.runtime.checkpoint.model_checkpoint import Trained, find, restore_parameters, restore_training, save
from weft.runtime.graph_network.training import Streamed
from weft.runtime.ranks.launch import run_ranks
from weft.runtime.ranks.session import Session, SessionError, join
from weft.solver.io.schedule_files import load_schedule, save_schedule
from weft.text.units import bytes_text

#: Options of cut models that have no meaning for a graph network.
_OF_MODULES = ("example", "micro_batches", "memory", "spec", "figure")


def train_graph_network(options: TrainOptions, command_of: Callable[[TrainOptions], list[str]]) -> int:
    """Start the ranks that train the network of the spec ``options.setup`` and wait for them; returns the worst exit
    code. Without ``options.schedule`` the schedule is searched first. ``command_of``: the command that starts a rank.

    Raises :class:`~weft.models.spec.spec.SpecError`, and ``ValueError`` for options of modules.
    """
    spec = _spec_of(options)
    with tempfile.TemporaryDirectory() as folder:
        if options.schedule is None:
            path = Path(folder) / "schedule.json"
            save_schedule(solve_for(spec, None, SearchOptions(time_limit=options.time_limit), lambda _: None), path)
            options = replace(options, schedule=str(path))
        return run_ranks(spec.cluster.gpus, command_of(options), patient=options.checkpoint is not None)


def train_graph_network_rank(options: TrainOptions) -> int:
    """Run one rank; returns its exit code."""
    spec = _spec_of(options)
    if options.schedule is None:
        raise ValueError(f"{spec.where}: ranks of a launcher need one schedule: give --schedule FILE, of weft solve")
    schedule = load_schedule(options.schedule)
    steps, graph, network, initial = spec_pass(spec, schedule, options.schedule)
    assert graph.labels is not None
    device = device_of(None)
    parameters = [{name: value.to(device) for name, value in own.items()} for own in initial]
    budget = budget_of(spec)
    with join(options.timeout, device) as session:
        if session.world != spec.cluster.gpus:
            raise SessionError(f"{spec.where}: cluster has {spec.cluster.gpus} GPUs, so as many ranks train it, but "
                               f"there are {session.world}")
        with streamed(network, parameters, graph, steps, schedule, session, budget=budget) as run:
            heard = hearing(session, options)
            training = GraphTraining(run, session)
            optimizer, losses = run.adam(), []
            saving = Saving(training, optimizer, options.checkpoint, options.every, heard)
            for _ in range(saving.begin(), options.steps):
                losses.append(run.run())
                optimizer.step()
                training.steps += 1
                heard(f"step {training.steps}  loss {losses[-1]:.6g}")
                if saving.after_step():
                    break
            saving.end()
            report = training.report(budget, torch.from_numpy(graph.labels))
            heard(f"held at most {' and '.join(map(bytes_text, report['peaks']))} of {bytes_text(budget)}; right at "
                  f"{report['right']} of {report['labelled']} labelled vertices")
            if session.rank == 0 and options.as_json:
                options.on_line(json.dumps({"losses": losses, "report": report}))
    return saving.code


def _spec_of(options: TrainOptions) -> Spec:
    spec = load_spec(str(options.setup))
    if not isinstance(spec.model, GraphNetworkModel) or spec.training is None:
        raise SpecError(f"{spec.where}: weft train takes the spec of a graph-network with a training section; other "
                        "models are trained from their module: weft train FILE.py:FUNCTION")
    for name in _OF_MODULES:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-').replace('figure', 'draw')} is for modules, and {spec.where} "
                             "is a graph network's spec: leave it out")
    if options.gpus not in (None, spec.cluster.gpus):
        raise ValueError(f"--gpus is {options.gpus}, but {spec.where} has {spec.cluster.gpus} GPUs in its cluster")
    return spec


class GraphTraining:
    """The training of ``run`` on this rank, for :class:`~weft.app.train.saving.Saving`: every rank has all parameters,
    and rank 0 writes them, as ``LAYER.NAME``."""

    def __init__(self, run: Streamed, session: Session) -> None:
        self.run, self.session, self.steps = run, session, 0

    @cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        """By name."""
        return {f"{number}.{name}": value for number, own in enumerate(self.run.parameters)
                for name, value in own.items()}

    def heed_signals(self) -> None:
        """Ctrl-C and SIGTERM end training after the running step."""
        self.session.watch.heed()

    def asked_to_stop(self) -> signal.Signals | None:
        """The signal received by any rank."""
        return self.session.asked_to_stop()

    def save(self, folder: str | os.PathLike[str], optimizer: Optimizer | None, keep: int | None = None) -> Path:
        """Save the state; returns the checkpoint's folder."""
        first = self.session.rank == 0
        own = {name: value.detach() for name, value in self.parameters.items()} if first else {}
        return save(self.session, Path(folder), self.steps, own, self._trained(optimizer if first else None), keep)

    def resume(self, folder: str | os.PathLike[str], optimizer: Optimizer | None) -> int:
        """Resume from the newest checkpoint in ``folder``; returns its number of steps, 0 without one. Raises
        :class:`~weft.runtime.ranks.session.SessionError` for one of another network."""
        found = find(self.session, Path(folder))
        if found is None:
            return 0
        restore_parameters(found, self.parameters.items())
        restore_training(self.session, found, self._trained(optimizer))
        self.steps = self.run.passes = found.step
        return found.step

    def report(self, budget: int, labels: Tensor) -> dict[str, Any]:
        """Each rank's peak bytes, and its budget. The number of labelled vertices classified correctly in the last
        pass.
        """
        peaks = self.session.everywhere(self.run.account.peak, "handing over peaks")
        self.run.share_outputs()
        right = (self.run.outputs.argmax(1).cpu() == labels) & (labels >= 0)
        return {"peaks": peaks, "budget": budget, "right": int(right.sum()), "labelled": int((labels >= 0).sum())}

    def _trained(self, optimizer: Optimizer | None) -> Trained:
        return Trained(optimizer, {id(value): name for name, value in self.parameters.items()})
