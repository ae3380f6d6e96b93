"""What helps the search over all cuts: each of its ideas left out in turn, with the same effort.

    python -m experiments.models.cut_ablation [--only TEXT] [--parts NAME ...] [--effort 8]

On the spec of ``weft demo`` and three random ones of :mod:`experiments.models.cut_search` (6 and 8 GPUs, 20 to 29
layers, here with up to three chunks a GPU). Left out are, by name:

* ``cuts not listed``: only the cuts with the least largest loads are searched, which are listed at first. Its bound is
  one over these alone: no measure of the others;
* ``bounds of whole cuts``: cuts keep the bounds of their beginnings, and no cut is bounded side by side with others;
* ``least bounds``: the cut with the least bound of all is neither bounded more closely nor searched, round after round;
* ``carrying``: an order stays on the cut that it was made for;
* ``tries``: no known schedules of cuts to begin with, so nothing to climb from but the placements listed;
* ``climb``: no layer moves to another stage with the order carried along;
* ``third chunk``: at most two stages a GPU. Its bound, too, is one over fewer placements.

Shown are the makespan as a multiple of the whole search's, and the gap to the run's own bound. The same effort is not
the same CPU time. Writes ``cut_ablation.json`` after every spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from experiments.lib.provenance import begun
from experiments.models.cut_search import searched, spec_of
from weft.app.cuts import tries
from weft.app.cuts.search import CutDecision, CutSearch
from weft.app.lib.case import Case, case_of
from weft.models.spec.spec import Spec, demo_spec
from weft.solver.orders.climb import Climb, Decided, judged
from weft.solver.timing import Orders

#: Seeds of :mod:`experiments.models.cut_search`.
SEEDS = (0, 3, 16)
_LISTED, _CHUNK = "cuts not listed", "third chunk"


def stays(self: CutSearch, cut: CutDecision, orders: Orders) -> Decided[CutDecision] | None:
    """In place of ``CutSearch.carried``: the order on its own cut, where it fits."""
    found = judged(cut.problem, self.micro_batches, orders)
    return None if found is None else Decided(cut, found)


#: By what is left out: which methods are others.
_OTHERS: dict[str, tuple[tuple[object, str, object], ...]] = {
    "bounds of whole cuts": ((CutSearch, "raise_some", lambda self, best, time: False),),
    "least bounds": ((CutSearch, "lowest", lambda self, best, time: None),),
    "carrying": ((CutSearch, "carried", stays),),
    "tries": ((tries, "tried", lambda cuts, climb, beside: []),),
    "climb": ((Climb, "run", lambda self, time: None),),
    }
PARTS = (_LISTED, *_OTHERS, _CHUNK)


@contextmanager
def without(part: str | None) -> Iterator[None]:
    """The search over cuts inside has no ``part``."""
    with ExitStack() as stack:
        for owner, name, other in _OTHERS.get(part or "", ()):
            stack.enter_context(patch.object(owner, name, other))
        yield


def with_chunks(spec: Spec, most: int) -> Spec:
    """``spec`` with up to ``most`` stages a GPU."""
    return spec.model_copy(update={"placement": spec.placement.model_copy(update={"chunks": most})})


def specs() -> Iterator[Spec]:
    """The demo's, and the random ones."""
    for spec in (demo_spec(), *map(spec_of, SEEDS)):
        yield with_chunks(spec, 3)


def case_without(spec: Spec, part: str | None) -> Case:
    """What is to be solved, made anew for each run."""
    case = case_of(with_chunks(spec, 2) if part == _CHUNK else spec)
    return replace(case, spaces=()) if part == _LISTED else case


def measured(spec: Spec, part: str | None, effort: float) -> dict[str, Any]:
    """What comes of so much effort without ``part``."""
    with without(part):
        found = searched(case_without(spec, part), effort)
    return {**found, "proven": found["makespan"] <= found["bound"] * (1 + 1e-9),
            "gap": round(found["makespan"] / found["bound"] - 1, 6)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options, record = begun(__doc__, arguments, "cut_ablation.json", only="", parts=list(PARTS), effort=8.0)
    rows = []
    for spec in specs():
        if options.only not in spec.name:
            continue
        row: dict[str, Any] = {"name": spec.name, "gpus": spec.cluster.gpus,
                               "whole": measured(spec, None, options.effort)}
        print(f"{spec.name}: {row['whole']}", flush=True)
        for part in options.parts:
            row[part] = measured(spec, part, options.effort)
            row[part]["takes_times"] = round(row[part]["makespan"] / row["whole"]["makespan"], 6)
            print(f"  without {part:22} x{row[part]['takes_times']:.4f}, gap {row[part]['gap']:.2%}, "
                  f"{row[part]['cpu_seconds']:.0f} s", flush=True)
        rows.append(row)
        record.write({"effort": options.effort, "rows": rows})
    return 0


if __name__ == "__main__":
    main()
