"""The pipeline of one grid as a spec of its own: a stage's GPUs do the same, so one stands for all of them.

Layers are listed with what one GPU has of each; transfers go from each GPU to the one in its place in the next stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from weft.models.grid.degrees import Degrees
from weft.models.grid.grids import GridSpace
from weft.models.grid.links import GridLinks
from weft.models.layers.cluster import AffineLink, Link
from weft.models.layers.costs import LayerCost
from weft.models.spec.sections import Spec

__all__ = ["even_cut", "pipeline_spec"]

#: Nobody's number of them is more than a cut of a spec may say.
_MOST_CHUNKS = 8


def pipeline_spec(spec: Spec, space: GridSpace, degrees: Degrees, cut: Sequence[int] | None = None) -> Spec:
    """The pipeline of ``degrees``, cut where ``cut`` says (borders of its stages), or anywhere."""
    run = spec.training
    assert run is not None
    chunks, is_loop = min(_MOST_CHUNKS, degrees.virtual), degrees.virtual > 1
    open_chunks = space.asked.virtual is None
    shapes = ["chain", "v", "loop", "wave"] if open_chunks and degrees.pipeline > 1 else ["loop" if is_loop else "chain"]
    placement = {"shapes": shapes, "chunks": max(chunks, 3) if open_chunks else chunks,
                 "backward": list(spec.placement.backward)}
    if cut is not None:
        placement |= {"shapes": ["loop" if is_loop else "chain"], "chunks": chunks,
                      "cut": [last - first for first, last in pairwise(cut)]}
    found = Spec.model_validate({
        "name": spec.name, "model": {"layers": [_listed(cost) for cost in space.layers(degrees)]},
        "cluster": {"gpus": degrees.pipeline, "memory": spec.cluster.memory[0], "reserve": spec.cluster.reserve,
                    **_links(space.links, degrees)},
        "training": {"micro_batches": degrees.micro_batches(space.batch), "parameter_bytes": 1, "gradient_bytes": 0,
                     "optimizer_bytes_per_parameter": 0},
        "placement": placement})
    found._where, found._folder = spec.where, spec.folder
    return found


def _listed(cost: LayerCost) -> dict[str, object]:
    return {"name": cost.name, "forward": cost.forward, "input_grad": cost.input_grad, "weight_grad": cost.weight_grad,
            "parameters": cost.parameters, "activation_memory": cost.activation_bytes,
            "weight_grad_memory": cost.weight_grad_bytes, "output": cost.output_bytes,
            "workspace": max(cost.workspace_forward, cost.workspace_backward, cost.workspace_weight_grad)}


def _links(links: GridLinks, degrees: Degrees) -> dict[str, object]:
    """What joins the stages: within a machine as far as it has room for several."""
    if degrees.pipeline == 1:
        return {}
    together = links.network.size // degrees.of_stage
    near, far = links.network.near, links.network.far
    if together < 2:
        return _one("", far)
    return {**_one("", near), "gpus_per_machine": together,
            **(_one("machine_", far) if degrees.pipeline > together else {})}


def _one(lead: str, link: Link) -> dict[str, object]:
    if isinstance(link, AffineLink):
        return {f"{lead}bandwidth": link.bandwidth, f"{lead}latency": link.latency}
    size = 2**26  # of a measured curve, what a large tensor takes
    return {f"{lead}bandwidth": size / link.seconds(size)}


def even_cut(layers: int, stages: int) -> tuple[int, ...]:
    """The borders of ``stages`` stages of a model with ``layers`` entries, the first and the last of which are the
    embedding and the head: the others are dealt out evenly, as frameworks do, those left over to the stages in the
    middle; the ends are on the first and the last stage."""
    inner = layers - 2
    if inner < stages:  # some stages have an end alone
        return tuple(round(i * layers / stages) for i in range(stages + 1))
    each, left = divmod(inner, stages)
    first = (stages - left) // 2
    sizes = [each + (first <= i < first + left) for i in range(stages)]
    borders = [0]
    for size in sizes:
        borders.append(borders[-1] + size)
    return 0, *(1 + border for border in borders[1:-1]), layers
