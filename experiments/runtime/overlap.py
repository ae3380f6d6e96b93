"""Communication beside computation on ranks: time by the number of chunks, and the number that the search chooses.

    python -m experiments.runtime.overlap [--repeats N] [--counts N ...] [--parts PART ...]

Two ranks on gloo, each with its collectives on a thread of their own.

- ``chunks``: a matmul, an all-reduce and a pointwise stage, emulated by time, in 1 to 16 chunks. The search
  (``weft.communication.tune``) is asked for the number; it is to be within one step of the best measured, and with
  200 ms of each at 4 ms a launch at least 25 % under serial.
- ``tuned``: a tensor-parallel layer as written, and the program that the search chooses of all that the passes reach,
  emulated by the same prices.
- ``real``: a matmul, an all-reduce and a pointwise stage that take what they take, whole and in chunks. Ranks that
  share cores have less to gain: what they lack is cores, not the network.
- ``training``: a module whose layers, sums of gradients and gatherings of weights are emulated by time, trained by
  ``weft.communication.ShardedOptimizer``: in turn (sums behind the whole backward, weights gathered before the step is
  over), and as it does, beside backward and forward. Weights must be the same, bit for bit.
- ``values``: what the ranks of the tests find (``tests/support/communication_ranks.py``): on two, bits equal to the
  program as written for every number of chunks and every program; on three, differences in double precision; Adam and
  LAMB with sliced states against the plain rule on one process, and the bytes of states.

Times are medians over rounds in which all numbers take turns. Writes ``overlap.json``; exits with 1 where the search is
off by more than a step, or values are not as they must be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from experiments.lib.provenance import RESULTS, Record
from weft import communication as comm
from weft.runtime.ranks.launch import launch_local

COUNTS = (1, 2, 4, 8, 16)
PARTS = ("chunks", "tuned", "real", "training", "values")
#: Of a trained module: layers, milliseconds of a layer's forward, of its backward, of a bucket's sum and its gathering.
LAYERS, TRAINED, STEPS = 8, (10.0, 20.0, 12.0, 12.0), 4
#: Milliseconds of computation before, of the all-reduce, of computation behind, and of a launch. The first is issue's
#: and notes' 200 + 200; the others have the proportions 1000 / 500 / 50 and 500 / 1000 / 50 at a launch of 20.
SETTINGS = ((200.0, 200.0, 0.0, 4.0), (200.0, 100.0, 10.0, 4.0), (100.0, 200.0, 10.0, 4.0))
RANKS, LEAST_SAVED = 2, 0.25
ROWS, INNER, COLUMNS = 256, 64, 64


# -- programs ----------------------------------------------------------------------------------------------------------


def layer(rows: int, inner: int, columns: int, itemsize: int = 8) -> comm.Program:
    """A matmul that is cut where it is summed, an all-reduce, and a pointwise stage behind it."""
    builder = comm.Builder("layer", RANKS, itemsize=itemsize)
    x, w = builder.input("x", (rows, inner), "sliced", 1), builder.parameter("w", (inner, columns), "sliced", 0)
    total = builder.all_reduce("sum", builder.matmul("product", x, w))
    return builder.build(builder.pointwise("out", "gelu", total))


def priced(compute: float, collective: float, after: float, launch: float) -> comm.Prices:
    """Prices with which the stages of :func:`layer` take so many milliseconds."""
    sent = 2 * ROWS * COLUMNS * 8 * (RANKS - 1) / RANKS
    return comm.Prices(bandwidth=sent / (collective / 1e3), memory=1e15, launch=launch / 1e3,
                       compute={"product": compute / 1e3, "out": after / 1e3})


def chunked(program: comm.Program, count: int) -> comm.Program:
    """All stages of ``program`` in ``count`` chunks."""
    return program if count == 1 else comm.overlap(program, [stage.name for stage in program.stages], count)


def tensor_parallel() -> tuple[comm.Program, comm.Prices]:
    """A layer behind which much is computed that all ranks would compute alike, and what its stages take."""
    builder = comm.Builder("tensor parallel layer", RANKS, itemsize=8)
    x, w = builder.input("x", (ROWS, INNER), "sliced", 1), builder.parameter("w", (INNER, COLUMNS), "sliced", 0)
    total = builder.all_reduce("sum", builder.matmul("product", x, w))
    biased = builder.pointwise("biased", "add", total, builder.parameter("b", (COLUMNS,)))
    kept = builder.dropout("kept", biased, rate=0.1)
    program = builder.build(builder.pointwise("out", "add", kept, builder.input("r", (ROWS, COLUMNS))))
    sent = 2 * ROWS * COLUMNS * 8 * (RANKS - 1) / RANKS
    return program, comm.Prices(bandwidth=sent / 0.2, memory=1e15, launch=4e-3, kernel=1e-3, compute={
        "product": 0.2, "biased": 0.04, "kept": 0.04, "out": 0.04})


# -- on a rank ---------------------------------------------------------------------------------------------------------


def run_rank(folder: Path) -> None:
    """Time the runs that ``asked.json`` lists, in turns; rank 0 writes ``seconds.json``."""
    asked = json.loads((folder / "asked.json").read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = [_Trained(entry["in_turn"]) if entry["part"] == "training" else _Run(entry) for entry in asked["runs"]]
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(asked["repeats"] + 1):
        for run, times in zip(runs, seconds, strict=True):
            dist.barrier()
            begun = time.perf_counter()
            run.once()
            dist.barrier()
            if number:  # the first makes what is made once
                times.append(time.perf_counter() - begun)
    if dist.get_rank() == 0:
        (folder / "seconds.json").write_text(json.dumps(seconds))
        (folder / "found.json").write_text(json.dumps([run.found for run in runs]))
    dist.destroy_process_group()


class _Layer(torch.autograd.Function):
    """Takes time, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Sleep for a layer's forward."""
        time.sleep(TRAINED[0] / 1e3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Sleep for a layer's backward."""
        time.sleep(TRAINED[1] / 1e3)
        return gradient.clone()


class _Slow(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(_Layer.apply(x))  # type: ignore[no-untyped-call]


class _Trained:
    """Some steps of a module on this rank."""

    def __init__(self, in_turn: bool) -> None:
        self.in_turn = in_turn

    def once(self) -> None:
        """Train it from the start; what it ends with is kept."""
        torch.manual_seed(0)
        module = torch.nn.Sequential(*(_Slow(16, 16) for _ in range(LAYERS))).double()
        optimizer = comm.ShardedOptimizer(module, "adamw", lr=1e-2, bucket_bytes=16 * 17 * 8)
        start = optimizer._channel.start

        def lasting(name: str, begin: Any, tensors: Sequence[torch.Tensor] = ()) -> Any:
            return start(name, begin, tensors, TRAINED[3 if "gathering" in name else 2] / 1e3)
        optimizer._channel.start = lasting  # type: ignore[assignment, method-assign]
        for step in range(STEPS):
            draw = torch.Generator().manual_seed(step * RANKS + dist.get_rank())
            loss = module(torch.randn(4, 16, generator=draw, dtype=torch.float64)).square().mean()
            if self.in_turn:
                with optimizer.accumulating():
                    loss.backward()
            else:
                loss.backward()
            optimizer.step()
            if self.in_turn:
                optimizer.wait()
        self.found = [tensor.tolist() for tensor in module.state_dict().values()]
        optimizer.close()


class _Run:
    """One program on this rank, and what it is given."""

    found: object = None

    def __init__(self, entry: dict[str, Any]) -> None:
        self.on_rank = comm.ProgramOnRank(**_asked(entry))
        draw = torch.Generator().manual_seed(dist.get_rank())
        dtype = {4: torch.float32, 8: torch.float64}
        self.given = {name: torch.randn(tensor.held_shape(RANKS), generator=draw, dtype=dtype[tensor.itemsize])
                      for name, tensor in self.on_rank.program.tensors.items() if tensor.source != "stage"}

    def once(self) -> None:
        """Run it."""
        self.on_rank.run(self.given)


def _asked(entry: dict[str, Any]) -> dict[str, Any]:
    """The program of a run, its schedule, and what it emulates."""
    if entry["part"] == "chunks":
        written, prices = layer(ROWS, INNER, COLUMNS), priced(*entry["setting"])
        program = chunked(written, entry["count"])
        return {"program": program, "emulated": comm.Emulated.of(program, prices, written)}
    if entry["part"] == "real":
        rows, inner, columns = entry["shape"]
        return {"program": chunked(layer(rows, inner, columns, 4), entry["count"])}
    written, prices = tensor_parallel()
    if entry["what"] == "as written":
        return {"program": written, "emulated": comm.Emulated.of(written, prices)}
    found = tuned(written, prices)
    schedule = found.schedule if entry["what"] == "tuned" else None
    return {"program": found.program, "schedule": schedule,
            "emulated": comm.Emulated.of(found.program, prices, written)}


def tuned(program: comm.Program, prices: comm.Prices, counts: Sequence[int] = COUNTS, **options: Any) -> comm.Tuned:
    """What the search chooses; the same on all ranks."""
    return comm.tune(program, prices, counts, effort=4.0, **options)


# -- the measures ------------------------------------------------------------------------------------------------------


def measured(runs: Sequence[dict[str, Any]], repeats: int) -> list[float]:
    """The median seconds of each of ``runs`` on two ranks."""
    return measured_with(runs, repeats)[0]


def measured_with(runs: Sequence[dict[str, Any]], repeats: int) -> tuple[list[float], list[object]]:
    """The same, and what each found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "asked.json").write_text(json.dumps({"runs": runs, "repeats": repeats}))
        ended = launch_local(RANKS, [sys.executable, "-m", "experiments.runtime.overlap", "--as-rank", name],
                             timeout=600)
        if any(one.code for one in ended):
            raise SystemExit("\n".join(one.errors for one in ended))
        return ([statistics.median(times) for times in json.loads((folder / "seconds.json").read_text())],
                json.loads((folder / "found.json").read_text()))


def by_chunks(repeats: int, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Emulated runs of each setting."""
    runs = [{"part": "chunks", "setting": setting, "count": count} for setting in SETTINGS for count in counts]
    seconds = measured(runs, repeats)
    for number, setting in enumerate(SETTINGS):
        own = dict(zip(counts, seconds[number * len(counts):(number + 1) * len(counts)], strict=True))
        written = layer(ROWS, INNER, COLUMNS)
        found = tuned(written, priced(*setting), counts, variants=[comm.Schedule(written, ())])
        best = min(own, key=lambda count: own[count])
        yield {"setting": dict(zip(("compute", "collective", "after", "launch"), setting, strict=True)),
               "milliseconds": {str(count): 1e3 * value for count, value in own.items()},
               "chosen": found.chunks, "proven": found.proven, "planned": found.microseconds / 1e3,
               "best": best, "steps_off": abs(counts.index(found.chunks) - counts.index(best)),
               "saved": 1 - own[found.chunks] / own[counts[0]]}


def of_all(repeats: int) -> dict[str, Any]:
    """The layer as written, and what the search chooses of all that the passes reach."""
    written, prices = tensor_parallel()
    found = tuned(written, prices)
    alone = tuned(written, prices, (1,), variants=[comm.Schedule(written, ())])
    runs = [{"part": "tuned", "what": what} for what in ("as written", "tuned", "tuned, in the default order")]
    before, after, default = measured(runs, repeats)
    return {"passes": list(found.passes), "chunks": found.chunks, "chain": list(found.chain), "proven": found.proven,
            "planned": {"as written": alone.microseconds / 1e3, "tuned": found.microseconds / 1e3},
            "milliseconds": {
                "as written": 1e3 * before, "tuned": 1e3 * after, "tuned, in the default order": 1e3 * default},
            "saved": 1 - after / before}


def as_it_is(repeats: int, counts: Sequence[int], shape: Sequence[int]) -> dict[str, Any]:
    """Nothing emulated."""
    seconds = measured([{"part": "real", "shape": list(shape), "count": count} for count in counts], repeats)
    own = {str(count): 1e3 * value for count, value in zip(counts, seconds, strict=True)}
    return {"shape": list(shape), "milliseconds": own, "ratio": min(own.values()) / own[str(counts[0])]}


def trained(repeats: int) -> dict[str, Any]:
    """A module trained in turn and beside its communication."""
    (turn, beside), (one, other) = measured_with([{"part": "training", "in_turn": flag} for flag in (True, False)],
                                                 repeats)
    return {"layers": LAYERS, "steps": STEPS, "milliseconds": {"in turn": 1e3 * turn / STEPS,
            "beside": 1e3 * beside / STEPS}, "saved": 1 - beside / turn, "same": one == other}


def values(ranks: int) -> dict[str, Any]:
    """What the ranks of the tests found, and the worst of it."""
    with tempfile.TemporaryDirectory() as name:
        launch_local(ranks, [sys.executable, "-m", "tests.support.communication_ranks", name], timeout=180)
        found = [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(ranks)]
    rows = [row for one in found for row in (*one["chunks"].values(), *one["optimizer_programs"].values())]
    kept = [one["chunks"][name] for one in found for name in one["chunks"] if not name.startswith("product in")]
    trained = [row for one in found for row in one["training"].values()]
    states = found[0]["training"]
    return {"runs": len(rows), "bit_identical": all(row["same"] for row in kept),
            "worst": max(row["worst"] for row in rows),
            "weights": max([*(row["difference"] for row in trained),
                            *(row["difference"] for one in found for row in one["optimizer_programs"].values())]),
            "state_share": {rule: row["state_bytes"] / row["whole_bytes"] for rule, row in states.items()},
            "said": {name: [one["mistakes"].get(name) for one in found] for name in found[0]["mistakes"]}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--shape", type=int, nargs=3, default=[2048, 1024, 1024], help="rows, inner and columns")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS / "overlap.json")
    options = parser.parse_args(arguments)
    if options.as_rank is not None:
        run_rank(options.as_rank)
        return 0
    record, good = Record(options.output), True
    found: dict[str, Any] = dict.fromkeys(PARTS)  # a part that is not asked for is null
    if "chunks" in options.parts:
        found["chunks"] = list(by_chunks(options.repeats, options.counts))
        for row in found["chunks"]:
            print(json.dumps(row))
        good = all(row["steps_off"] <= 1 for row in found["chunks"]) and found["chunks"][0]["saved"] >= LEAST_SAVED
    if "tuned" in options.parts:
        found["tuned"] = of_all(options.repeats)
        print(json.dumps(found["tuned"]))
    if "real" in options.parts:
        found["real"] = as_it_is(options.repeats, options.counts, options.shape)
        print(json.dumps(found["real"]))
    if "training" in options.parts:
        found["training"] = trained(options.repeats)
        print(json.dumps(found["training"]))
        good = good and found["training"]["same"]
    if "values" in options.parts:
        found["values"] = {str(ranks): values(ranks) for ranks in (2, 3)}
        print(json.dumps(found["values"]))
        good = good and found["values"]["2"]["bit_identical"] and all(
            max(row["worst"], row["weights"]) < 1e-12 for row in found["values"].values())
    record.write(found)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
