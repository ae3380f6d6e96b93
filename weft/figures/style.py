"""Colours and text widths of the pictures.

The colours of block kinds are Okabe and Ito's ("Color Universal Design", 2008), which stay distinguishable under the
common forms of colour blindness. Later chunks of a model on the same GPU are lighter tints of the same colour.

The file formats of pictures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.solver.problem import BlockKind, Problem

FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
INK = "#222222"
MUTED = "#6b6b6b"
IDLE = "#efefef"
CAP = "#9b1535"
MEMORY = ("activations", "#a9b4c0")
STATIC = ("weights + optimizer state", "#6f7f90")
OVER = ("over the cap", CAP)

#: Kind -> its legend label and colour; in legend order.
KINDS: dict[BlockKind, tuple[str, str]] = {
    BlockKind.FORWARD: ("F forward", "#56B4E9"),
    BlockKind.BACKWARD: ("B backward", "#E69F00"),
    BlockKind.INPUT_GRAD: ("I input gradient", "#D55E00"),
    BlockKind.WEIGHT_GRAD: ("W weight gradient", "#009E73"),
    BlockKind.RECOMPUTE: ("R recompute", "#CC79A7"),
    BlockKind.COLLECTIVE: ("C collective", "#F0E442"),
    BlockKind.OTHER: ("O other", "#999999"),
}

#: Chunks beyond this number share the lightest tint: further steps would be indistinguishable.
TINTS = 4


#: Colours of jobs, distinguishable like those of kinds; further jobs reuse them.
JOBS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: The factor by which a kind is lighter than its job's colour.
LIGHTER: dict[BlockKind, float] = {
    BlockKind.FORWARD: 0.55, BlockKind.BACKWARD: 0.1, BlockKind.INPUT_GRAD: 0.1, BlockKind.WEIGHT_GRAD: 0.32,
    BlockKind.RECOMPUTE: 0.68, BlockKind.COLLECTIVE: 0.76, BlockKind.OTHER: 0.84,
}


def kind_label(kind: BlockKind, chunk: int, job: str | None = None) -> str:
    """The legend entry (chunk 0) or colour class (later chunks) of a block, with its job if there are several."""
    label = KINDS[kind][0] if job is None else f"{job}: {KINDS[kind][0]}"
    return label if chunk == 0 else f"{label}, chunk {chunk + 1}"


def job_colour(kind: BlockKind, number: int) -> str:
    """The colour of a job's blocks of a kind; ``number`` is the job's."""
    return lighter(JOBS[number % len(JOBS)], LIGHTER[kind])


def tint(colour: str, chunk: int, chunks: int) -> str:
    """``colour`` (``#rrggbb``), lighter for later chunks of ``chunks``."""
    return lighter(colour, 0.0 if chunks < 2 else 0.55 * chunk / (min(chunks, TINTS) - 1))


def lighter(colour: str, share: float) -> str:
    """``colour`` (``#rrggbb``), mixed with white by the given share."""
    parts = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def chunk_of_block(problem: Problem, same: Callable[[int], int] = lambda block: block) -> tuple[int, ...]:
    """Per block, its index among blocks of its kind on its devices: in model order, so backward ones count from the
    end.

    Blocks on other sets of devices are counted separately, so that one that spans all GPUs is not a chunk of any of
    them. Blocks with equal ``same`` are copies of one, for other micro-batches.
    """
    chunks = [0] * len(problem.blocks)
    seen: dict[tuple[tuple[int, ...], BlockKind], list[int]] = {}
    for i in problem.topological_order:
        block = problem.blocks[i]
        seen.setdefault((tuple(sorted(block.devices)), block.kind), []).append(i)
    for (_, kind), members in seen.items():
        if kind in (BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD):
            members.reverse()
        numbers = {copied: chunk for chunk, copied in enumerate(dict.fromkeys(map(same, members)))}
        for i in members:
            chunks[i] = min(numbers[same(i)], TINTS - 1)
    return tuple(chunks)


def text_width(text: str, size: float, bold: bool = False) -> float:
    """The approximate width of ``text`` in pixels at font size ``size``, which decides whether a label fits."""
    narrow = sum(character in " .,:;|ilIfjt'()" for character in text)
    return size * ((len(text) - narrow) * 0.58 + narrow * 0.31) * (1.07 if bold else 1.0)


def joined(parts: Sequence[str]) -> str:
    """``parts`` as one line, without empty ones."""
    return "  ·  ".join(part for part in parts if part)


#: The supported endings of pictures.
FORMATS = (".html", ".svg", ".png")


def ending_of(path: str | os.PathLike[str]) -> str:
    """The ending of ``path``, one of :data:`FORMATS`. Raises ``ValueError`` for any other."""
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"{os.fspath(path)}: the ending is {ending or 'missing'}, "
                         f"a picture is one of {', '.join(FORMATS)}")
    return ending
