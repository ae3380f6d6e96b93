"""The optional cut of the layers in a spec (``placement.cut``), and the maximum number of stages a GPU.

A cut lists the stages in order: the number of layers of each, or its first layer by name. The number of stages
determines the possible shapes: p stages on p GPUs are a chain, 2 p a V or a loop, k p for a larger k a loop or a wave.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import accumulate, pairwise

from weft.models.candidates.stages import Shape
from weft.models.spec.placement import MAX_CHUNKS
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError


def cut_of(spec: Spec, layer_names: Sequence[str]) -> tuple[int, ...] | None:
    """The borders 0 = c0 < c1 < ... < cS = L of the cut that ``spec`` gives of its L layers: stage s is the layers
    from c_s to c_(s+1) - 1. ``None`` if it gives none.

    Raises :class:`~weft.models.spec.spec.SpecError` for an unknown layer, layers omitted or out of order, counts with a
    wrong sum, and a number of stages that does not fit the layers, the GPUs, ``placement.chunks`` or
    ``placement.shapes``.
    """
    cut = spec.placement.cut
    if cut is None:
        return None
    cut_shapes(spec)
    if len(cut) > len(layer_names):
        raise SpecError(f"{spec.where}: placement.cut has {len(cut)} stages, but model has {len(layer_names)} layers "
                        "(each stage has at least one)")
    counts = [entry for entry in cut if isinstance(entry, int)]
    if not counts:
        return _named(spec.where, [str(entry) for entry in cut], layer_names)
    if sum(counts) != len(layer_names):
        more = sum(counts) - len(layer_names)
        raise SpecError(f"{spec.where}: placement.cut has {sum(counts)} layers in its stages, "
                        f"{f'{more} more than' if more > 0 else f'{-more} fewer than'} the {len(layer_names)} of the "
                        f"model ({layer_names[0]} to {layer_names[-1]})")
    return (0, *accumulate(counts))


def _named(where: str, firsts: Sequence[str], layer_names: Sequence[str]) -> tuple[int, ...]:
    """The borders if ``firsts`` names the first layer of every stage."""
    position = {name: i for i, name in reversed(list(enumerate(layer_names)))}
    for name in firsts:
        if name not in position:
            near = difflib.get_close_matches(name, layer_names, n=1)
            raise SpecError(f"{where}: placement.cut names {name!r:.60}, which is no layer; " + (
                f"did you mean {near[0]!r}?" if near else f"the layers are {_listed(layer_names)}"))
    if position[firsts[0]]:
        raise SpecError(f"{where}: placement.cut begins at {firsts[0]!r}, which leaves {layer_names[0]!r} out: the "
                        "first stage begins at the first layer")
    for before, after in pairwise(firsts):
        if before == after:
            raise SpecError(f"{where}: placement.cut names {after!r} twice in a row; every stage has a first layer of "
                            "its own")
        if position[before] > position[after]:
            raise SpecError(f"{where}: placement.cut names {after!r} after {before!r}, which comes later in the model; "
                            "name the stages in the order of their layers")
    return (*(position[name] for name in firsts), len(layer_names))


def _listed(names: Sequence[str], most: int = 6) -> str:
    """Some of ``names``, the first and the last among them."""
    shown = [*names] if len(names) <= most else [*names[:most - 2], "...", names[-1]]
    return ", ".join(shown)


def cut_shapes(spec: Spec) -> tuple[Shape, ...]:
    """The possible shapes of the given cut, among those with one GPU a stage that ``spec`` allows.

    Raises :class:`~weft.models.spec.spec.SpecError` where there is none: the number of stages is no multiple of the
    GPUs', more than ``placement.chunks`` a GPU, or that of other shapes. The spec must give a cut.
    """
    placement, gpus = spec.placement, spec.cluster.gpus
    assert placement.cut is not None
    count = len(placement.cut)
    chunks, rest = divmod(count, gpus)
    has = f"{spec.where}: placement.cut has {count} stage{'s' if count > 1 else ''}"
    if rest:
        raise SpecError(f"{has}, no multiple of cluster.gpus: {gpus}; give {gpus} (chain), {2 * gpus} (v, loop) or "
                        f"another multiple of {gpus} (loop, wave)")
    if gpus == 1 and chunks > 1:
        raise SpecError(f"{has}, but a single GPU (cluster.gpus: 1) runs the model as one")
    has += f", {chunks} on each of {gpus} GPUs"
    if chunks > MAX_CHUNKS:
        raise SpecError(f"{has}; at most {MAX_CHUNKS} on each are supported")
    if chunks > placement.chunks:
        raise SpecError(f"{has}, but placement.chunks is {placement.chunks}"
                        f"{'' if 'chunks' in placement.model_fields_set else ' (its default)'}; give chunks: {chunks}")
    possible: tuple[Shape, ...] = ("chain",) if chunks == 1 else ("v", "loop") if chunks == 2 else ("loop", "wave")
    found = tuple(shape for shape in possible if shape in placement.shapes)
    if not found:
        raise SpecError(f"{has}, which is {' or '.join(possible)}, but placement.shapes is "
                        f"{', '.join(placement.shapes)}; allow {possible[0]}, or give another number of stages")
    return found


def most_chunks(spec: Spec, layer_count: int) -> int:
    """The most stages that a GPU may run with ``layer_count`` layers, limited by ``placement.chunks`` and the layers.

    At least 1, and 1 on a single GPU. Raises :class:`~weft.models.spec.spec.SpecError` where the spec states more than
    the layers allow.
    """
    gpus, chunks = spec.cluster.gpus, spec.placement.chunks
    if gpus == 1:
        return 1
    if chunks > 1 and chunks * gpus > layer_count and "chunks" in spec.placement.model_fields_set:
        least = max(1, layer_count // gpus)
        raise SpecError(f"{spec.where}: placement.chunks is {chunks}, on {gpus} GPUs {chunks * gpus} stages, but model "
                        f"has {layer_count} layers; give chunks: {least}")
    return max(1, min(chunks, layer_count // gpus))
