"""The pipeline of one grid as a separate spec: a stage's GPUs do the same, so one represents all of them.

Layers are listed with one GPU's share of each; transfers go from each GPU to its counterpart in the next stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from weft.models.candidates.build import ModelCandidate, candidate_of
from weft.models.candidates.given_cut import cut_of
from weft.models.candidates.gpu_costs import family_model, gpu_costs
from weft.models.candidates.stage_split import split_at
from weft.models.candidates.stages import Backward, MemoryRule
from weft.models.grid.degrees import Degrees
from weft.models.grid.grids import GridSpace
from weft.models.grid.links import GridLinks
from weft.models.grid.step_end import StateBytes
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, GpuLink, model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.families import GptModel
from weft.models.spec.placement import MAX_CHUNKS
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError

#: Chunks a GPU in the search of a pipeline if ``virtual`` is auto.
_CHUNKS = 3


def grid_space(spec: Spec) -> GridSpace:
    """The grids of a spec with ``parallel``. Raises :class:`~weft.models.spec.spec.SpecError` for a model other than a
    decoder, and the exceptions of reading a config."""
    model, run, asked = family_model(spec), spec.training, spec.parallel
    assert run is not None and asked is not None and isinstance(spec.cluster.device, str)
    if not isinstance(model, GptModel):
        raise SpecError(f"{spec.where}: parallel is for decoders (families gpt and moe), not for "
                        f"{getattr(model, 'family', 'this model')}; leave it out")
    if run.parameter_bytes != 2:
        raise SpecError(f"{spec.where}: parallel computes in 16 bits, but training.parameter_bytes is "
                        f"{run.parameter_bytes}; leave it out")
    cluster = model_cluster(spec.cluster)
    cut = spec.placement.cut
    if cut is not None and (asked.pipeline is None or asked.virtual is None
                            or asked.pipeline * asked.virtual != len(cut)):
        raise SpecError(f"{spec.where}: placement.cut has {len(cut)} stages; give parallel.pipeline and virtual, whose "
                        "product is that")
    return GridSpace(spec.where, model, asked, spec.cluster.gpus, cluster.available[0],
                     run.micro_batches * run.micro_batch_size, GridLinks(DEVICES[spec.cluster.device], cluster.network),
                     StateBytes(run.parameter_bytes, run.gradient_bytes, run.optimizer_bytes_per_parameter))


def pipeline_spec(spec: Spec, space: GridSpace, degrees: Degrees) -> Spec:
    """The pipeline of ``degrees``, with the requested chunks; its cut is that of ``spec``, or open."""
    auto = space.asked.virtual is None and degrees.pipeline > 1
    chunks = max(degrees.virtual, _CHUNKS) if auto else degrees.virtual
    placement: dict[str, object] = {
        "shapes": ["chain", "v", "loop", "wave"] if auto else ["chain" if degrees.virtual == 1 else "loop"],
        "chunks": min(MAX_CHUNKS, chunks), "backward": list(spec.placement.backward)}
    found = Spec.model_validate({
        "name": spec.name, "model": {"layers": [_listed(cost) for cost in space.layers(degrees)]},
        "cluster": {"gpus": degrees.pipeline, "memory": spec.cluster.memory[0], "reserve": spec.cluster.reserve,
                    **_links(space.links, degrees)},
        "training": {"micro_batches": degrees.micro_batches(space.batch), "parameter_bytes": 1, "gradient_bytes": 0,
                     "optimizer_bytes_per_parameter": 0},
        "placement": placement})
    found._where, found._folder = spec.where, spec.folder
    return found


def given_cut(spec: Spec, pipeline: Spec) -> tuple[int, ...] | None:
    """The borders of the stages given in ``spec``, for its ``pipeline``; ``None`` if it gives none. Raises the
    exceptions of :func:`~weft.models.candidates.given_cut.cut_of`."""
    if spec.placement.cut is None:
        return None
    names = [layer.name for layer in gpu_costs(pipeline).layers[0]]
    most = {"cut": spec.placement.cut, "chunks": MAX_CHUNKS}
    asked = pipeline.model_copy(update={"placement": pipeline.placement.model_copy(update=most)})
    return cut_of(asked, names)


def pipeline_candidate(pipeline: Spec, cut: Sequence[int], backward: Backward) -> ModelCandidate | None:
    """The block problem of ``pipeline`` in the stages of ``cut``; ``None`` if they do not fit."""
    costs, cluster = gpu_costs(pipeline), model_cluster(pipeline.cluster)
    rule = MemoryRule(backward, 1, cluster.reserve)
    shape = "chain" if len(cut) - 1 == pipeline.cluster.gpus else "loop"
    split = split_at(shape, costs.layers, cut, cluster.memory, rule=rule)  # type: ignore[arg-type]
    if any(need > own for need, own in zip(split.memory, cluster.available, strict=True)):
        return None
    return candidate_of(pipeline, split, backward, "least", costs.layers[0], cluster)


def _listed(cost: LayerCost) -> dict[str, object]:
    return {"name": cost.name, "forward": cost.forward, "input_grad": cost.input_grad, "weight_grad": cost.weight_grad,
            "parameters": cost.parameters, "activation_memory": cost.activation_bytes,
            "weight_grad_memory": cost.weight_grad_bytes, "output": cost.output_bytes,
            "workspace": max(cost.workspace_forward, cost.workspace_backward, cost.workspace_weight_grad)}


def _links(links: GridLinks, degrees: Degrees) -> dict[str, object]:
    """The links between the stages: within a machine if it has room for several."""
    if degrees.pipeline == 1:
        return {}
    together = links.network.size // degrees.of_stage
    near, far = links.network.near, links.network.far
    if together < 2:
        return _one("", far)
    return {**_one("", near), "gpus_per_machine": together,
            **(_one("machine_", far) if degrees.pipeline > together else {})}


def _one(lead: str, link: GpuLink) -> dict[str, object]:
    if isinstance(link, AffineLink):
        return {f"{lead}bandwidth": link.bandwidth, f"{lead}latency": link.latency}
    size = 2**26  # on a measured curve, the time of a large tensor
    return {f"{lead}bandwidth": size / link.seconds(size)}


def even_cut(layers: int, stages: int) -> tuple[int, ...]:
    """The borders of ``stages`` stages of a model with ``layers`` entries, the first and the last of which are the
    embedding and the head: the others are distributed evenly, as in frameworks, with the remainder on the stages in the
    middle; embedding and head are on the first and the last stage. With more stages than other layers some stages have
    only an end."""
    inner = layers - 2
    if inner < stages:
        return tuple(round(i * layers / stages) for i in range(stages + 1))
    each, left = divmod(inner, stages)
    first = (stages - left) // 2
    borders = accumulate(each + (first <= i < first + left) for i in range(stages))
    return 0, *(1 + border for border in [*borders][:-1]), layers


def balanced_cut(cut: Sequence[int], loads: Sequence[float], gpus: int) -> tuple[int, ...]:
    """``cut`` with layers moved, one at a time, from a stage of the busiest GPU to another stage, as long as the
    largest load falls, or, if equal, the sum of the squares of the loads, or that of the stages' loads: a long stage
    delays all later ones. ``loads``: of each layer; stage s is on GPU s modulo ``gpus``. Among equal moves the one to
    the latest stage is made, whose activations wait least."""
    before = [0.0, *accumulate(loads)]

    def measure(borders: Sequence[int]) -> tuple[tuple[float, ...], list[float]]:
        stages = [before[last] - before[first] for first, last in pairwise(borders)]
        busy = [sum(stages[gpu::gpus]) for gpu in range(gpus)]
        return (round(max(busy), 9), *(round(sum(load * load for load in each), 12) for each in (busy, stages))), busy

    best = tuple(cut)
    value, busy = measure(best)
    while True:
        busiest, found = busy.index(max(busy)), None
        for source in range(busiest, len(best) - 1, gpus):
            if best[source + 1] - best[source] < 2:
                continue
            for target in reversed(range(len(best) - 1)):
                moved = tuple(border + (target < i <= source) - (source < i <= target)
                              for i, border in enumerate(best))
                new, load = measure(moved)
                if target != source and new < value:
                    value, busy, found = new, load, moved
        if found is None:
            return best
        best = found
