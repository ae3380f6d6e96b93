"""The machine that a pipeline is planned for: as its user says, and where he says nothing, as it shows itself."""

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

#: Bytes of messages by which links are measured, beside what the model sends.
SMALL, LARGE = 64, 1 << 20
#: No message of the measuring is larger: what a byte costs is known by then.
MOST = 1 << 26


@dataclass(frozen=True)
class Machine:
    """``memory``: bytes that each rank has (``None``: not limited). ``shapes`` and ``backwards``: how stages may lie on
    ranks, and which backwards are tried. ``links``: as measured; ``network``: as said. ``notes``: what to know of it.
    """

    memory: tuple[int | None, ...]
    shapes: tuple[str, ...]
    backwards: tuple[str, ...]
    links: Links
    network: Network | None
    notes: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.memory)

    def seconds(self, size: int, source: int, target: int) -> float:
        """How long a message of ``size`` bytes takes from rank ``source`` to ``target``. Of ranks that are no
        neighbours what the slowest pair on the way takes."""
        if source == target:
            return 0.0
        if self.network is not None:
            return float(self.network.seconds(size, [source], [target]))
        step = 1 if target > source else -1
        return max((self.links[hop, hop + step].seconds(size) for hop in range(source, target, step)
                    if (hop, hop + step) in self.links), default=0.0)

    @property
    def seconds_a_byte(self) -> float:
        """What a byte costs that goes to a neighbour and whose gradient comes back, one way, on average."""
        hops = [(rank, rank + 1) for rank in range(self.ranks - 1)]
        both = [self.seconds(LARGE, *hop) - self.seconds(SMALL, *hop) for a, b in hops for hop in ((a, b), (b, a))]
        return max(0.0, sum(both) / len(both) / (LARGE - SMALL)) if both else 0.0


def look_at(session: Session, options: PipelineOptions, sizes: Sequence[int], model_bytes: int) -> Machine:
    """The machine of all ranks, which call it together; all get the same. ``sizes``: bytes that may pass between two
    stages; ``model_bytes``: of the model as it is on the device of each rank.

    Raises :class:`~weft.app.pipeline.planning.spec.SpecError`, on rank 0, for a spec that cannot be used.
    """
    own = own_memory(session.device, model_bytes)
    found = session.exchange((own, cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), "looking at the machine")
    said, = session.exchange(_said(options, session.world) if session.rank == 0 else None, "reading the spec")[:1]
    assert said is not None
    network, shapes, backwards, memory = said
    notes = list(_crowded(found[0][1], found[0][2], session.device))
    if memory is None:
        memory = [amount for amount, _, _ in found]
        if any(amount is not None for amount in memory):
            notes.append("memory is what the GPUs have, less 1 GiB and the whole model, which each rank holds")
    links: Links = {}
    if network is not None:
        notes.append("transfers take what the spec says, until a run of the plan shows what they take")
    elif session.world > 1:
        links = measure_links(session, sorted({SMALL, LARGE, min(MOST, max(sizes, default=0))} - {0}))
        notes.append(_told(links))
    if options.compile:
        backwards = tuple(way for way in backwards if way != "split")
        if not backwards:
            raise CaptureError("the spec's placement.backward allows split backwards alone, which compiled stages "
                               "cannot: leave compile out, or allow full ones")
    return Machine(tuple(memory), shapes, backwards, links, network, tuple(notes))


def own_memory(device: torch.device, model_bytes: int) -> int | None:
    """Bytes that this rank can plan with: of a GPU its own share, of a CPU all there is."""
    if device.type != "cuda":
        return None
    whole = int(torch.cuda.get_device_properties(device).total_memory)
    sharing = max(1, -(-int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // torch.cuda.device_count()))
    return max(0, (whole - RESERVE) // sharing - model_bytes)


class _Said(NamedTuple):
    """What the spec, and ``memory=``, say: as :class:`Machine` has it, but memory may be left out."""

    network: Network | None = None
    shapes: tuple[str, ...] = SHAPES
    backwards: tuple[str, ...] = BACKWARDS
    memory: list[int | None] | None = None


def _said(options: PipelineOptions, ranks: int) -> _Said:
    whole: list[int | None] | None = None if options.memory is None else [options.memory] * ranks
    if options.spec is None:
        return _Said(memory=whole)
    from weft.app.pipeline.planning.spec import load_machine_spec  # what reads specs takes long to import

    spec = load_machine_spec(options.spec, ranks)
    given = spec.cluster.memory
    if given is not None and whole is not None:
        raise CaptureError(f"memory is {options.memory}, and the spec's cluster.memory says it too: give one")
    if given is not None:
        whole = [max(0, amount - spec.cluster.reserve) for amount in (given if len(given) == ranks else given * ranks)]
    return _Said(spec.cluster.network(ranks), spec.placement.shapes, spec.placement.backward, whole)


def _crowded(count: int, ranks: int, device: torch.device) -> list[str]:
    if device.type != "cpu" or count >= ranks:
        return []
    return [f"{ranks} ranks share {count} cores: which of them wait for a core is chance, so a step may take another "
            "time than planned"]


def _told(links: Links) -> str:
    slowest = LinkCost(max(link.latency for link in links.values()),
                       max(link.seconds_a_byte for link in links.values()))
    speed = f" and {1e-9 / slowest.seconds_a_byte:.2g} GB/s" if slowest.seconds_a_byte else ""
    return f"links were measured, nothing else under way: the slowest has {slowest.latency * 1e6:.0f} us{speed}"
