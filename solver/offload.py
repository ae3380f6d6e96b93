"""Offload in parallel with computation: blocks and links that make it a part of a block problem.

The activations that a forward leaves for its backward go to host memory and come back, while the device computes. For
that a stage gets two blocks on its device, which occupy the device only briefly, and two links, one for each direction
of the copy engine:

* *offload* waits for the forward, and for a transfer from the device to the host. When it ends, the bytes are given
  back;
* *load* waits for the offload and takes the bytes again when it starts. The backward waits for it, and for a transfer
  from the host to the device.

So the bytes count until they have left and from before they come back, the engine carries one copy at a time each way,
in the order of the blocks before the copies, and computation continues meanwhile. Search, judge and timing need no
special case. The two blocks are in the device's row like any others: bytes whose copy has ended while a block runs are
given back after that block, as an executor that runs a row in order does.

The host is not a device of the problem, so both links begin and end at the device; its memory is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.solver.problem import Block, BlockKind, Dependency, Link, Number, Problem, ProblemError


@dataclass(frozen=True, slots=True)
class Offload:
    """The bytes kept on the host between two blocks of a stage, for each micro-batch.

    ``forward`` takes at least ``size`` on each of its devices, ``backward`` (a gradient or a recomputation, on the same
    devices) needs it again; ``seconds`` is the time of the copy one way, in the problem's time unit.
    """

    forward: str
    backward: str
    size: Number
    seconds: Number


def host_links(device: str) -> tuple[str, str]:
    """The names of a device's links to the host and back."""
    return f"{device} to host", f"host to {device}"


def with_offloads(problem: Problem, offloads: Iterable[Offload], moment: Number) -> Problem:
    """``problem`` with the blocks and links of ``offloads``.

    ``moment`` is the time that each of the new blocks occupies its device: small against all durations, but more than
    0, like every block's. Raises :class:`~weft.solver.problem.ProblemError` for blocks that do not exist or are not on
    the same devices, for a size that the forward does not take, and for a stage that is offloaded twice.
    """
    links = {link.name: link for link in problem.links}
    after_forward: dict[str, Block] = {}
    before_backward: dict[str, Block] = {}
    arrivals: dict[str, tuple[Dependency, ...]] = {}
    for entry in offloads:
        forward, backward = (_block(problem, name) for name in (entry.forward, entry.backward))
        _require_sense(entry, forward, backward, after_forward)
        ways = [(device, *host_links(problem.devices[device].name)) for device in forward.devices]
        links |= {name: links.get(name, Link(name, device, device)) for device, *names in ways for name in names}
        sizes = (entry.size,) * len(forward.devices)
        leaves = Block(f"{forward.name} out", BlockKind.OTHER, forward.devices, moment, tuple(-size for size in sizes),
                       (), tuple(Dependency(forward.name, entry.seconds, link) for _, link, _ in ways))
        comes = Block(f"{forward.name} in", BlockKind.OTHER, forward.devices, moment, sizes, (),
                      (Dependency(leaves.name),))
        after_forward[forward.name], before_backward[backward.name] = leaves, comes
        arrivals[backward.name] = tuple(Dependency(comes.name, entry.seconds, link) for _, _, link in ways)
    blocks: list[Block] = []
    for block in problem.blocks:
        if block.name in before_backward:
            blocks.append(before_backward[block.name])
            block = replace(block, after=(*block.after, *arrivals[block.name]))
        blocks.append(block)
        if block.name in after_forward:
            blocks.append(after_forward[block.name])
    return replace(problem, blocks=tuple(blocks), links=tuple(links.values()))


def _block(problem: Problem, name: str) -> Block:
    if name not in problem.index:
        raise ProblemError(f"offload: there is no block named {name!r}")
    return problem.blocks[problem.index[name]]


def _require_sense(entry: Offload, forward: Block, backward: Block, known: Iterable[str]) -> None:
    where = f"offload after {entry.forward!r}"
    if forward.name in known:
        raise ProblemError(f"{where}: it is there twice")
    if forward.devices != backward.devices:
        raise ProblemError(f"{where}: it runs on {list(forward.devices)} and block {entry.backward!r} on "
                           f"{list(backward.devices)}, they must be on the same devices")
    if not 0 < entry.size <= min(forward.memory):
        raise ProblemError(f"{where}: its size is {entry.size}, it must be more than 0 and no more than the "
                           f"{min(forward.memory)} that the block takes")
    if entry.seconds < 0:
        raise ProblemError(f"{where}: its copy takes {entry.seconds}, it must be 0 or more")
