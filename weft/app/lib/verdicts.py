"""The reasons for a placement: the cost of each one considered, and the bound that ruled it out, in numbers and in
words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.app.lib.coverage import cut_of_details, others
from weft.app.lib.decided_memory import plan_lines
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.text.units import shown_memory, shown_time

if TYPE_CHECKING:
    from weft.app.lib.overlap_listing import OpenOverlap
    from weft.app.lib.placements import CasePlacement, OpenPlacement
    from weft.models.tensor_parallel.parts import LayersPart
    from weft.models.tensor_parallel.shapes import ShapeCandidate
    from weft.models.tensor_parallel.space import Space
    from weft.solver.portfolio import Candidate

#: Number of placements with a line of text each; the rest are counted.
_MOST_LINES = 12


@dataclass(frozen=True, slots=True)
class Searched:
    """One placement after the search: its lower bound, and its best makespan where it was scheduled. ``cut``: layers
    on each of its stages."""

    placement: str
    bound: float
    makespan: float | None
    chosen: bool
    refusal: str = ""
    cut: tuple[int, ...] = ()


def searched(candidate: Candidate[CasePlacement] | Candidate[OpenPlacement] | Candidate[OpenOverlap], *, chosen: bool
             ) -> Searched:
    """A placement's results."""
    best, refused = candidate.best, candidate.ruled_out
    return Searched(candidate.of.title, candidate.least if refused else candidate.bound,
                    None if best is None else best.makespan, chosen, str(candidate.refusal) if refused else "",
                    cut_of_details(candidate.of.details))


def told_rows(schedule: Schedule, first: CasePlacement, *, chosen: bool) -> list[Searched]:
    """An answer's records of the placements it was chosen from; for a single one, of that, ``first``. ``chosen``:
    whether it is still the answer."""
    alternatives = schedule.solver.get("alternatives")
    if not isinstance(alternatives, list):
        return [Searched(first.title, schedule.value_bound, schedule.makespan, chosen, "",
                         cut_of_details(first.details))]
    return [Searched(row["placement"], row["bound"], row["makespan"], chosen and row["verdict"] == "chosen",
                     row.get("reason", ""), tuple(row["cut"])) for row in alternatives if row["verdict"] != "none"]


def choice(rows: Sequence[Searched], refused: Sequence[tuple[str, str]], best: float,
           any_bound: float | None) -> dict[str, Any]:
    """Entries for a schedule's ``solver``: ``alternatives``, best first, and a bound over all placements.

    A placement's ``verdict`` is "chosen", "bound" (its lower bound is not below the best makespan), "worse" (a
    schedule of it was found, none better, and its bound alone does not rule it out), "memory" (nothing fits) or
    "unknown" (time ended before it had a schedule).
    """
    entries: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (not row.chosen, row.makespan or row.bound)):
        verdict = ("chosen" if row.chosen else "memory" if row.refusal else
                   "bound" if row.bound >= best * (1 - RELATIVE_TOLERANCE) else
                   "unknown" if row.makespan is None else "worse")
        entries.append({key: value for key, value in asdict(row).items() if key not in ("chosen", "refusal")}
                       | {"verdict": verdict} | ({"reason": row.refusal} if row.refusal else {}))
    entries += [{"placement": shape, "bound": None, "makespan": None, "verdict": "none", "reason": reason}
                for shape, reason in refused]
    return {"alternatives": entries} | ({} if any_bound is None else {"bound_over_any_placement": min(any_bound, best)})


def layout_title(shape: str, chunks: int) -> str:
    """The layout of stages on GPUs, for tables: ``shape`` with ``chunks`` stages a GPU."""
    if shape == "chain":
        return "1 stage a GPU"
    return f"{ {'v': 'V'}.get(shape, shape)}, {chunks} chunks"


def backward_title(backward: str) -> str:
    """The kind of backward, for tables."""
    return {"full": "B", "split": "I+W", "none": "inference"}[backward]


def shape_placement_details(candidate: ShapeCandidate, space: Space) -> tuple[str, dict[str, Any]]:
    """The title of ``candidate`` and the details for its schedules; lists are by GPU, not by device of its problem."""
    title = f"{candidate.title}, {backward_title(candidate.backward)}"
    of_gpu = {gpu: d for d, group in enumerate(candidate.gpus) for gpu in group}
    static = [candidate.static_memory[of_gpu[gpu]] for gpu in sorted(of_gpu)]
    return title, {
        "placement": title,
        "static_memory": static,
        "gpu_memory": [space.capacity] * len(static),
        "bytes_per_parameter": dict(space.classes),
        "layers_of_stage": [list(names) for names in candidate.layers_of_part],
        "gpus_of_stage": [list(part.gpus) for part in candidate.parts],
        "tensor_parallel": [_exchanges(space, part.degree, names)
                            for part, names in zip(candidate.parts, candidate.layers_of_part, strict=True)],
        **({"co_shard": [_in_parts(space, part) for part in candidate.parts]}
           if any(part.co_shard for part in candidate.parts) else {}),
        **({"replicas": candidate.replicas} if candidate.replicas > 1 else {}),
        **({"notes": list(space.family.notes)} if space.family.notes else {}),
    }


def _in_parts(space: Space, part: LayersPart) -> dict[str, Any] | None:
    """The co-sharded parts of the layers of ``part``, and their cost and savings for one micro-batch."""
    if not part.co_shard:
        return None
    from weft.models.tensor_parallel.parts import stage_cost

    whole = stage_cost(space.costs[1], part.layers)
    return {"parts": part.co_shard, "seconds_more": round((part.cost.load - whole.load) * 1e-9, 9),
            "kept_less": whole.activation - part.cost.activation,
            "workspace_less": max(whole.workspace_forward, whole.workspace_backward)
            - max(part.cost.workspace_forward, part.cost.workspace_backward)}


def _exchanges(space: Space, degree: int, layers: Sequence[str]) -> dict[str, Any]:
    """The splits of the operators of ``layers`` at ``degree``, by kind; their collectives for a micro-batch; and the
    origin of their times."""
    sharded, inside = space.sharded[degree], set(layers)
    splits: dict[str, str] = {}
    for operator in space.graph.operators:
        option = sharded.choices[operator.name]
        if operator.layer in inside and option is not None:
            splits[operator.name.partition(".")[2] or operator.name] = option.dimension
    counts: dict[str, int] = {}
    seconds = 0.0
    for entry in sharded.exchanges:
        if entry.layer in inside:
            for kind, _ in filter(None, entry.exchange.collectives):
                counts[kind] = counts.get(kind, 0) + 1
            seconds += entry.forward + entry.backward
    return {"degree": degree, "splits": splits, "collectives": counts, "seconds": round(seconds, 9),
            "origins": space.origins(degree, inside)}


def covered_lines(schedule: Schedule) -> list[str]:
    """The placements covered, with the proof or bound over them; none for a block problem."""
    covered, bound = schedule.solver.get("covered"), schedule.solver.get("bound_over_placements")
    if not covered:
        return []
    if bound is None:
        return [f"covered   {covered}; {others(covered)}"]
    proof = ("proven optimal" if schedule.value <= bound * (1 + RELATIVE_TOLERANCE) else
             f"lower bound {shown_time(bound, schedule.problem.time_unit)}")
    return [f"covered   {proof} over {covered}; {others(covered)}"]


def grid_lines(schedule: Schedule) -> list[str]:
    """Its uniform grid, the time of a whole step, and the distance to any other grid; none without a grid."""
    grid = schedule.solver.get("grid")
    if not isinstance(grid, Mapping):
        return []
    shown = partial(shown_time, unit=schedule.problem.time_unit)
    end, step = grid["end"], grid["step"]
    lines = [f"grid      {grid['title']}, {grid['gpus']} GPUs; {grid['micro_batches']} micro-batches for each of "
             f"{grid['data']} replicas, {grid['gpus'] // grid['pipeline']} GPUs a stage",
             f"step      {shown(step)}: the pipeline and {shown(end['seconds'])} behind it (gradients "
             f"{shown(end['gradients'])}, optimizer {shown(end['optimizer'])}, parameters "
             f"{shown(end['parameters'])} on the GPU that ends last); {grid['model_flops_utilization']:.1%} of the "
             "peak rate"]
    if "bound_over_grids" in grid:
        gap = step / grid["bound_over_grids"] - 1
        lines.append(f"          lower bound {shown(grid['bound_over_grids'])} over all {grid['listed']} grids listed, "
                     f"any cut and order (gap {gap:.1%}); {grid['looked_at']} had a schedule tried"
                     + ("; there was no time to list all" if grid["not_all_listed"] else ""))
        lines += [f"          {other['title']}: {shown(other['step'])}, not below {shown(other['bound'])}"
                  for other in grid["others"]]
    if grid.get("free_groups") is not None:
        lines.append(f"          groups of any size, without the end of the step: {shown(grid['free_groups'])} "
                     f"({grid['free_placement']}; the uniform grid {shown(grid['pipeline_time'])})")
    return lines


def overlap_lines(schedule: Schedule) -> list[str]:
    """The gain of overlapping collectives, a line or two; none if not requested."""
    overlap = schedule.solver.get("overlap")
    if not isinstance(overlap, Mapping):
        return []
    if "not_searched" in overlap:
        return [f"overlap   not searched: {overlap['not_searched']}"]
    if "nothing" in overlap:
        return [f"overlap   nothing to overlap: {overlap['nothing']}"]
    shown = partial(shown_time, unit=schedule.problem.time_unit)
    bound = f"bound {shown(overlap['bound_over_placements'])} over all placements and options listed"
    update = [] if not overlap.get("update") else [
        f"          of these only steps of the whole model on every GPU count the optimizer's update, here "
        f"{shown(overlap['update'])} for all parameters"]
    if not overlap["taken"]:
        return [f"overlap   no placement with overlap is better than {shown(schedule.value)} without; {bound}", *update]
    if overlap["without"] is None:
        none = "nothing fits" if overlap.get("nothing_fits") else "none was found"
        line = f"without overlap {none}, with overlap {shown(overlap['with'])}"
    else:
        line = (f"without overlap {shown(overlap['without'])}, with overlap {shown(overlap['with'])} "
                f"(−{max(0.0, 1 - overlap['with'] / overlap['without']):.1%})")
    best = overlap.get("best_without_options")
    if overlap["without"] is not None and best is not None and best >= overlap["without"] * (1 - RELATIVE_TOLERANCE):
        best = None  # it is this placement, already reported
    return [f"overlap   {line} on this placement, bound {shown(overlap['bound'])}",
            *([f"          the best placement without overlap takes {shown(best)}; {bound}"] if best is not None else
              [f"          {bound}"]), *_framework_lines(overlap, schedule), *update]


def _framework_lines(overlap: Mapping[str, Any], schedule: Schedule) -> list[str]:
    """The results of the frameworks' own overlap, a line each."""
    from weft.models.overlap.frameworks import FRAMEWORKS

    lines = []
    for entry in overlap.get("frameworks", ()):
        what, found = FRAMEWORKS.get(entry["name"], entry["name"]), entry["with"]
        if found is None:
            lines.append(f"          {what}: does not fit")
            continue
        change = overlap["with"] / found - 1
        compared = "a tie" if abs(change) < 5e-5 else f"{'−' if change < 0 else '+'}{abs(change):.1%} with weft"
        lines.append(f"          {what}: {shown_time(found, schedule.problem.time_unit)} ({compared})")
    return lines


def choice_lines(schedule: Schedule) -> list[str]:
    """The choice, the contents of each GPU, and the reasons against the others, a line each; none for a block
    problem."""
    entries = schedule.solver.get("alternatives")
    if not isinstance(entries, list):
        return plan_lines(schedule)
    unit = schedule.problem.time_unit
    lines = [*_stages(schedule), *plan_lines(schedule), *_memory(schedule)]
    bound = schedule.solver.get("bound_over_any_placement")
    if isinstance(bound, float) and bound > 0:
        lines.append("no placement of layers on groups that share no GPU, or on all GPUs, whatever its cuts, chunks "
                     "and order, nor of the whole model on every GPU for as many micro-batches each, is shorter than "
                     f"{shown_time(bound, unit)} (gap {schedule.value / bound - 1:.2%}); replicas on some of "
                     "the GPUs each are not counted")
    others = [entry for entry in entries if entry["verdict"] != "chosen"]
    chosen = {entry["placement"] for entry in entries if entry["verdict"] == "chosen"}
    for entry in others[:_MOST_LINES]:
        again = ", cut otherwise" if entry["placement"] in chosen else ""  # for other numbers in flight
        chosen.add(entry["placement"])
        lines.append(f"{entry['placement']}{again}: {_verdict(entry, unit)}")
    if len(others) > _MOST_LINES:
        lines.append(f"{len(others) - _MOST_LINES} more in the schedule's solver.alternatives")
    return lines


def _verdict(entry: Mapping[str, Any], unit: str) -> str:
    shown = partial(shown_time, unit=unit)
    if entry["verdict"] in ("none", "memory"):
        return str(entry["reason"])
    cost = "" if entry["makespan"] is None else f"{shown(entry['makespan'])} at best so far, "
    return cost + {"bound": f"ruled out: not below {shown(entry['bound'])}",
                   "worse": f"not below {shown(entry['bound'])}",
                   "unknown": f"not searched to its end: not below {shown(entry['bound'])}"}[entry["verdict"]]


def _stages(schedule: Schedule) -> list[str]:
    layers, gpus = schedule.solver.get("layers_of_stage"), schedule.solver.get("gpus_of_stage")
    if not isinstance(layers, list) or not isinstance(gpus, list):
        return []
    rows = []
    in_turn = schedule.solver.get("co_shard") or [None] * len(layers)
    for names, where, how, parts in zip(layers, gpus, schedule.solver["tensor_parallel"], in_turn, strict=True):
        what = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
        place = f"GPU {where[0]}" if len(where) == 1 else (
            f"all {len(where)} GPUs" if len(where) == len(schedule.problem.devices) else
            f"GPUs {', '.join(map(str, where))}")
        steps = ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in sorted(how["collectives"].items()))
        known = sum(share for origin, share in how.get("origins", {}).items() if origin != "modelled")
        rows.append(f"stage     {what} on {place}" + (f": {steps} a micro-batch" if steps else "")
                    + (f"; {known:.0%} of its time is measured" if known else "") + _one_after_another(parts, schedule))
    return rows


def _one_after_another(parts: Mapping[str, Any] | None, schedule: Schedule) -> str:
    """The cost and savings of co-sharded parts, as the end of a stage's line."""
    if parts is None:
        return ""
    time = shown_time(parts["seconds_more"], schedule.problem.time_unit)
    kept, workspace = (shown_memory(parts[key], schedule.problem.memory_unit)
                       for key in ("kept_less", "workspace_less"))
    return (f"; {parts['parts']}, run in turn: {time} more a micro-batch, {kept} less kept, {workspace} less "
            "workspace")


def _memory(schedule: Schedule) -> list[str]:
    static, most = schedule.solver.get("static_memory"), schedule.solver.get("gpu_memory")
    if not isinstance(static, list) or not isinstance(most, list):
        return []
    shown = partial(shown_memory, unit=schedule.problem.memory_unit)
    worst = max(range(len(static)), key=lambda d: static[d] + schedule.peak_memory[d])
    classes = schedule.solver.get("bytes_per_parameter") or {"weights, gradients and optimizer state": 1}
    total = sum(classes.values())
    parts = [f"{shown(static[worst] * share / total)} {name}" for name, share in classes.items() if share]
    return [f"fullest   {schedule.problem.devices[worst].name}: {', '.join(parts)}, "
            f"{shown(schedule.peak_memory[worst])} activations and workspace"
            + ("" if most[worst] is None else f", of {shown(most[worst])}")]
