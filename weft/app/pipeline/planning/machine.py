"""The machine that a pipeline is planned for: as the spec describes it, otherwise as measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from weft.app.pipeline.lib.options import BACKWARDS, SHAPES, PipelineOptions
from weft.runtime.captured.captured import CaptureError
from weft.runtime.measure.links import LinkCost, Links, measure_links
from weft.runtime.ranks.session import RESERVE, Session
from weft.solver.control.parallel import cores

if TYPE_CHECKING:
    from weft.models.layers.cluster import Network

#: Bytes of the messages that measure links, beside the size of the model's own.
SMALL, LARGE = 64, 1 << 20
#: Most bytes of such a message: at this size the bandwidth is known.
LARGEST = 1 << 26


@dataclass(frozen=True)
class Machine:
    """``memory``: bytes of each rank (``None``: no limit). ``shapes`` and ``backwards``: the placements of stages on
    ranks and the kinds of backward to try. ``links``: measured costs; ``network``: the spec's costs, which take
    precedence. ``notes``: sentences for the user.
    """

    memory: tuple[int | None, ...]
    shapes: tuple[str, ...]
    backwards: tuple[str, ...]
    links: Links
    network: Network | None
    notes: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.memory)

    def seconds(self, size: int, source: int, target: int) -> float:
        """Seconds of a message of ``size`` bytes from rank ``source`` to ``target``. Between ranks that are not
        neighbours: those of the slowest measured hop between them."""
        if source == target:
            return 0.0
        if self.network is not None:
            return float(self.network.seconds(size, [source], [target]))
        step = 1 if target > source else -1
        return max((self.links[hop, hop + step].seconds(size) for hop in range(source, target, step)
                    if (hop, hop + step) in self.links), default=0.0)

    @property
    def seconds_a_byte(self) -> float:
        """Seconds per byte between neighbours, averaged over all hops in both directions."""
        hops = [(rank, rank + 1) for rank in range(self.ranks - 1)]
        both = [self.seconds(LARGE, *hop) - self.seconds(SMALL, *hop) for a, b in hops for hop in ((a, b), (b, a))]
        return max(0.0, sum(both) / len(both) / (LARGE - SMALL)) if both else 0.0


def detect_machine(session: Session, options: PipelineOptions, sizes: Sequence[int], model_bytes: int) -> Machine:
    """The machine of all ranks. Collective: all ranks get the same. ``sizes``: bytes of activations at possible cuts;
    ``model_bytes``: bytes of the model on each rank's device.

    Raises :class:`~weft.app.pipeline.planning.spec.SpecError`, on rank 0, for an invalid spec.
    """
    own = own_memory(session.device, model_bytes)
    found = session.exchange((own, cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), "looking at the machine")
    requested, = session.exchange(_requested(options, session.world) if session.rank == 0 else None,
                                  "reading the spec")[:1]
    assert requested is not None
    network, shapes, backwards, memory = requested
    notes = list(_crowded(found[0][1], found[0][2], session.device))
    if memory is None:
        memory = [amount for amount, _, _ in found]
        if any(amount is not None for amount in memory):
            notes.append("the memory limit is that of the GPUs, less 1 GiB and the whole model, which each rank has")
    links: Links = {}
    if network is not None:
        notes.append("transfer times are the spec's until a run of the plan measures them")
    elif session.world > 1:
        links = measure_links(session, sorted({SMALL, LARGE, min(LARGEST, max(sizes, default=0))} - {0}))
        notes.append(_links_note(links))
    if options.compile:
        backwards = tuple(way for way in backwards if way != "split")
        if not backwards:
            raise CaptureError("the spec's placement.backward allows only split backwards, but compiled stages cannot "
                               "split: leave compile out, or allow full backwards")
    return Machine(tuple(memory), shapes, backwards, links, network, tuple(notes))


def own_memory(device: torch.device, model_bytes: int) -> int | None:
    """Bytes of this rank's memory limit: its share of a GPU; on a CPU ``None``, no limit."""
    if device.type != "cuda":
        return None
    whole = int(torch.cuda.get_device_properties(device).total_memory)
    sharing = max(1, -(-int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // torch.cuda.device_count()))
    return max(0, (whole - RESERVE) // sharing - model_bytes)


class _Requested(NamedTuple):
    """What the spec and ``memory=`` give, as in :class:`Machine`; ``memory`` may be missing."""

    network: Network | None = None
    shapes: tuple[str, ...] = SHAPES
    backwards: tuple[str, ...] = BACKWARDS
    memory: list[int | None] | None = None


def _requested(options: PipelineOptions, ranks: int) -> _Requested:
    whole: list[int | None] | None = None if options.memory is None else [options.memory] * ranks
    if options.spec is None:
        return _Requested(memory=whole)
    from weft.app.pipeline.planning.spec import load_machine_spec  # what reads specs takes long to import

    spec = load_machine_spec(options.spec, ranks)
    given = spec.cluster.memory
    if given is not None and whole is not None:
        raise CaptureError(f"memory is {options.memory}, and the spec has cluster.memory too: give one of them")
    if given is not None:
        whole = [max(0, amount - spec.cluster.reserve) for amount in (given if len(given) == ranks else given * ranks)]
    return _Requested(spec.cluster.network(ranks), spec.placement.shapes, spec.placement.backward, whole)


def _crowded(count: int, ranks: int, device: torch.device) -> list[str]:
    if device.type != "cpu" or count >= ranks:
        return []
    return [f"{ranks} ranks share {count} cores and wait for each other at random, so steps may take longer or shorter "
            "than planned"]


def _links_note(links: Links) -> str:
    slowest = LinkCost(max(link.latency for link in links.values()),
                       max(link.seconds_a_byte for link in links.values()))
    speed = f" and {1e-9 / slowest.seconds_a_byte:.2g} GB/s" if slowest.seconds_a_byte else ""
    return f"links were measured while idle: the slowest has {slowest.latency * 1e6:.0f} us{speed}"
