"""Programs of computation and communication: passes, chunks and order chosen by one solve, beside CoCoNet's schedules.

- ``known``: a matmul, an all-reduce and something pointwise whose best numbers of chunks are known (1297.5 us in 8,
  1054.375 in 16, 1217.5 in 4): chosen and proven of 1, 2, 4, 8 and 16, as written and with all that the passes reach.
- ``updates``: data parallel SGD (with momentum and without), Adam and LAMB by the size of the weight: AR-C, RS-C-AG
  and the like, and what is chosen of all programs.
- ``layers``: a tensor-parallel matmul, its all-reduce, bias, dropout and residual; the same as a pipeline stage's end,
  whose result is sent to the next group.
- ``values``: the largest difference between the program as written and all that the passes reach, with small tensors.

``found`` is of the schedule that the judge has passed, ``bound`` proven over all programs that were tried. The prices
are assumptions (:data:`PRICES`): what is compared are programs at the same prices. Writes ``overlap_programs.json``;
exits with 1 where a known number is missed or not proven, a value differs, or something found is worse than a
schedule beside it.

    python -m experiments.models.overlap_programs [--only known updates layers values] [--most N] [--optimizers lamb]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from tests.support.communication import chunked_collective, error, pipelined, tensor_parallel
from weft import communication as comm
from weft.models.communication.interpreter import random_values
from weft.models.communication.search.titles import title

KNOWN = (((1000, 1000, 100, 20), 1297.5, 8), ((1000, 500, 50, 20), 1054.375, 16), ((500, 1000, 50, 20), 1217.5, 4))
COUNTS = (1, 2, 4, 8, 16)
#: A rank's all-reduces at 60 GB/s, sends at 12, memory at 700 GB/s, 60 TFLOP/s; 20 us a collective, 5 us a kernel.
PRICES = comm.Prices(bandwidth=60e9, link=12e9, memory=700e9, flops=60e12, launch=20e-6, kernel=5e-6)
OPTIMIZERS = ("sgd", "momentum", "adam", "lamb")
PARTS = ("known", "updates", "layers", "values")
EFFORT = 10.0


def found(program: comm.Program, prices: comm.Prices, variants: Sequence[comm.Schedule] | None = None,
          counts: Sequence[int] = COUNTS) -> comm.Tuned:
    """The best of ``variants``, or of all."""
    return comm.tune(program, prices, counts, variants=variants, effort=EFFORT)


def row(name: str, program: comm.Program, prices: comm.Prices, published: Sequence[str]) -> dict[str, Any]:
    """What is chosen of all programs, beside each of the ``published`` titles in its best number of chunks.

    Of several programs of one title the best is taken.
    """
    reached = comm.schedules(program)
    best = comm.tune(program, prices, COUNTS, variants=reached.schedules, effort=EFFORT)
    beside = {}
    for wanted in published:
        alike = [entry for entry in reached.schedules if title(entry.program) == wanted]
        whole = found(program, prices, alike, (1,))
        chunked = found(program, prices, alike)
        beside[wanted] = {"whole_us": whole.microseconds, "us": chunked.microseconds, "chunks": chunked.chunks}
    return {"case": name, "programs": len(reached.schedules), "complete": reached.complete,
            "left_to_search": len(best.choices.variants), "chosen": best.variant, "chunks": best.chunks,
            "chains": [list(chain) for chain in best.chains], "found_us": best.microseconds, "bound_us": best.bound,
            "proven": best.proven,
            "state_bytes": best.program.state_bytes(), "state_bytes_written": program.state_bytes(),
            "beside": beside}


def known() -> list[dict[str, Any]]:
    """The three settings: chunks alone, then everything."""
    rows = []
    for times, best, count in KNOWN:
        program, prices = chunked_collective(*times)
        as_written = comm.schedules(program).schedules[:1]
        choices = comm.choices_of(program, prices, COUNTS, variants=as_written, every_chain=False,
                                  leave_out=False)
        chunks = comm.tune(program, prices, COUNTS, variants=as_written, every_chain=False, leave_out=False,
                           effort=EFFORT)
        every = comm.tune(program, prices, COUNTS, every_chain=False, leave_out=False, effort=3 * EFFORT)
        rows.append({"times_us": times, "known_us": best, "known_chunks": count,
                     "options": list(choices.problem.choices.get("chunks", ())), "chunks": chunks.chunks,
                     "found_us": chunks.microseconds, "bound_us": chunks.bound, "all": every.variant,
                     "all_chunks": every.chunks, "all_us": every.microseconds, "all_bound_us": every.bound,
                     "all_programs": every.choices.tried})
    return rows


def updates(optimizers: Sequence[str], most: int) -> list[dict[str, Any]]:
    """By optimizer and elements of the weight, on 8 ranks."""
    rows = []
    for optimizer in optimizers:
        for elements in (2**14, 2**18, 2**22, 2**26):
            if elements <= most:
                program = comm.data_parallel(optimizer, 8, (elements,))
                rows.append(row(f"{optimizer}, {elements} elements", program, PRICES,
                                ("AR-C", "AR-(C)", "RS-C-AG", "RS-(C)-AG", "(RS-C-AG)")))
    return rows


def layers(most: int) -> list[dict[str, Any]]:
    """Tokens x hidden / ranks times that x hidden, on 8 ranks; and what a pipeline's group sends to the next."""
    rows = []
    for tokens, hidden in ((1024, 1024), (8192, 3072), (8192, 12288)):
        if tokens * hidden <= most:
            name = f"{tokens} tokens, hidden {hidden}"
            rows.append(row(f"tensor parallel, {name}", tensor_parallel(8, tokens, hidden, hidden), PRICES,
                            ("MM-AR-C", "MM-AR-(C)", "MM-RS-C-AG", "MM-(RS-C-AG)")))
            rows.append(row(f"pipelined, {name}", pipelined(8, (tokens, hidden)), PRICES,
                            ("AR-P2P-C", "AR-P2P-(C)", "RS-P2P-C-AG", "RS-(P2P-C-AG)")))
    return rows


def values(optimizers: Sequence[str], most_ranks: int) -> list[dict[str, Any]]:
    """Every program that the passes reach, on small tensors."""
    rows = []
    for ranks in range(2, most_ranks + 1):
        small = [comm.data_parallel(optimizer, ranks, (4, 12)) for optimizer in optimizers]
        for program in (*small, tensor_parallel(ranks, 24, 12, 12), pipelined(ranks, (12, 12))):
            given = random_values(program)
            entries = comm.schedules(program).schedules
            rows.append({"program": program.name, "ranks": ranks, "programs": len(entries),
                         "largest_error": max(error(program, entry.program, given) for entry in entries)})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: what is chosen, and what each published schedule takes whole and in its best chunks."""
    lines = []
    for entry in rows:
        sure = "proven" if entry["proven"] else f"bound {entry['bound_us']:.1f}"
        lines.append(f"{entry['case']}: {entry['chosen']}, {_often(entry['chunks'])}, {entry['found_us']:.1f} us "
                     f"({sure}, {entry['programs']} programs" + ", and more)" * (not entry["complete"])
                     + ")" * entry["complete"])
        lines += [f"    {name:<14} {beside['whole_us']:>10.1f} us whole, {beside['us']:.1f} {_often(beside['chunks'])}"
                  for name, beside in entry["beside"].items()]
    return "\n".join(lines)


def _often(chunks: int) -> str:
    return "whole" if chunks == 1 else f"in {chunks} chunks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write the parts; fails where a mark is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--most", type=int, default=2**27, help="elements of the largest tensor")
    parser.add_argument("--optimizers", nargs="*", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--ranks", type=int, default=4, help="up to how many virtual ranks values are held against")
    parser.add_argument("--output", type=Path, default=RESULTS / "overlap_programs.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    report: dict[str, list[dict[str, Any]]] = {
        "known": known() if "known" in options.only else [],
        "updates": updates(options.optimizers, options.most) if "updates" in options.only else [],
        "layers": layers(options.most) if "layers" in options.only else [],
        "values": values(options.optimizers, options.ranks) if "values" in options.only else []}
    record.write(report)
    for entry in (*report["known"], *report["values"]):
        print(json.dumps(entry))
    print(table([*report["updates"], *report["layers"]]))
    right = all(abs(entry["found_us"] - entry["known_us"]) < 1e-6 and entry["chunks"] == entry["known_chunks"]
                and abs(entry["bound_us"] - entry["known_us"]) < 1e-6 for entry in report["known"])
    best = all(entry["found_us"] <= beside["us"] + 1e-3 for part in ("updates", "layers") for entry in report[part]
               for beside in entry["beside"].values())
    return 0 if right and best and all(entry["largest_error"] < 1e-12 for entry in report["values"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
