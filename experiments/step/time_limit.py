"""Whether the time limit holds: large inputs of every command, how long each takes, when its first schedule is there.

    python -m experiments.step.time_limit [--only NAME,...] [--cpu] [--output time_limit.json] [--ceiling 300]

Each input runs in a process of its own, from nothing to the result written. A row holds the limit, the wall and CPU
seconds of the whole command, by how much it overran, and when the first line of progress and the first schedule came,
by the command's own clock; ``ceiling`` seconds after its start a command is killed. With ``--cpu`` the command's clock
is its CPU time, and so is what counts as overrun: on a machine that others use as well. The inputs are drawn from a
seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, ROOT, Record
from weft.solver.io.problem_files import save_problem
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

__all__ = ["INPUTS", "chain", "everywhere", "measure", "random_graph", "wide_m"]

_LLAMA = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
          "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "hidden_act": "silu",
          "max_position_embeddings": 8192, "attention_bias": False, "tie_word_embeddings": False}
_LLAMA_SPEC = """
name: Llama-3-70B on 64 GPUs
model: {config: llama.json}
costs: roofline
cluster: {gpus: 64, memory: 80 GiB, device: h100, bandwidth: 450 GB/s, latency: 10 us}
training: {micro_batches: 64, micro_batch_size: 2}
"""


# -- problems ------------------------------------------------------------------------------------------------------


def chain(stages: int, devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """A forward and a backward of every stage, stages in runs of equal length (down and back where they divide by two)
    on the devices; random durations."""
    draw = random.Random(seed)
    blocks: list[Block] = []
    where = [s * devices // stages for s in range(stages)]
    for s in range(stages):
        after = (Dependency(f"F{s - 1}", 1 if where[s] != where[s - 1] else 0),) if s else ()
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (where[s],), draw.randint(80, 120), (1,), (), after))
    for s in reversed(range(stages)):
        last = Dependency(f"F{s}") if s + 1 == stages else Dependency(f"B{s + 1}", 1 if where[s] != where[s + 1] else 0)
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (where[s],), draw.randint(160, 240), (-1,), (), (last,)))
    return Problem(f"chain of {stages} stages on {devices}", tuple(Device(f"gpu{d}", memory) for d in range(devices)),
                   tuple(blocks), (), "us", "activation")


def folded(devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """Two stages a device in a V: forwards down and back, backwards the same way."""
    draw = random.Random(seed)
    where = [*range(devices), *reversed(range(devices))]
    blocks: list[Block] = []
    for s, device in enumerate(where):
        after = (Dependency(f"F{s - 1}", 1),) if s else ()
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (device,), draw.randint(80, 120), (1,), (), after))
    for s in reversed(range(len(where))):
        last = Dependency(f"F{s}" if s + 1 == len(where) else f"B{s + 1}", 1)
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (where[s],), draw.randint(160, 240), (-1,), (), (last,)))
    return Problem(f"V on {devices}", tuple(Device(f"gpu{d}", memory) for d in range(devices)), tuple(blocks), (), "us",
                   "activation")


def everywhere(blocks: int, devices: int, *, seed: int = 1) -> Problem:
    """A row of blocks, each on all devices; the second half gives back what the first has taken."""
    draw = random.Random(seed)
    every = tuple(range(devices))
    made = tuple(
        Block(f"b{i}", BlockKind.OTHER, every, draw.randint(5, 20), (1 if 2 * i < blocks else -1,), (),
              (Dependency(f"b{i - 1}"),) if i else ()) for i in range(blocks))
    return Problem(f"{blocks} blocks on all of {devices}", tuple(Device(f"gpu{d}", blocks) for d in every), made, (),
                   "us", "activation")


def wide_m(devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """An embedding and its gradient on all devices, a chain of one stage a device between them."""
    draw = random.Random(seed)
    every = tuple(range(devices))
    blocks = [Block("E", BlockKind.FORWARD, every, 30)]
    for s in range(devices):
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s,), draw.randint(80, 120), (1,), (),
                            (Dependency(f"F{s - 1}", 1) if s else Dependency("E"),)))
    for s in reversed(range(devices)):
        before = Dependency(f"F{s}") if s + 1 == devices else Dependency(f"B{s + 1}", 1)
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (s,), draw.randint(160, 240), (-1,), (), (before,)))
    blocks.append(Block("D", BlockKind.BACKWARD, every, 60, (), (), (Dependency("B0"),)))
    return Problem(f"M on {devices}", tuple(Device(f"gpu{d}", memory) for d in every), tuple(blocks), (), "us",
                   "activation")


def random_graph(blocks: int, devices: int, *, memory: int = 40, seed: int = 1) -> Problem:
    """Blocks with up to three producers among the fifty before them; each gives back what a block before it took."""
    draw = random.Random(seed)
    half = blocks // 2
    where = [draw.randrange(devices) for _ in range(half)]
    made: list[Block] = []
    for i in range(half):
        before = sorted({draw.randrange(max(0, i - 50), i) for _ in range(draw.randint(1, 3))}) if i else []
        made.append(Block(f"f{i}", BlockKind.FORWARD, (where[i],), draw.randint(10, 99), (1,), (),
                          tuple(Dependency(f"f{j}", draw.randint(0, 5)) for j in before)))
    consumers: list[list[int]] = [[] for _ in range(half)]
    for i, block in enumerate(made):
        for dependency in block.after:
            consumers[int(dependency.block[1:])].append(i)
    for i in reversed(range(half)):
        after = (Dependency(f"f{i}"), *(Dependency(f"b{j}", draw.randint(0, 5)) for j in consumers[i]))
        made.append(Block(f"b{i}", BlockKind.BACKWARD, (where[i],), draw.randint(20, 199), (-1,), (), after))
    return Problem(f"random graph of {blocks} blocks on {devices}",
                   tuple(Device(f"gpu{d}", memory * max(1, half // devices) // 20) for d in range(devices)),
                   tuple(made), (), "us", "activation")


def _operators(blocks: int, seed: int = 1) -> dict[str, Any]:
    """An operator graph in blocks of four branches, in the format of the dnn-partitioning collection."""
    from experiments.lib.placement_graphs import inception_like

    problem = inception_like(8, blocks=blocks, seed=seed)
    colours = {name: number for number, name in enumerate(dict.fromkeys(node.colocation for node in problem.nodes))}
    cost = {tensor.producer: tensor.time for tensor in problem.tensors}  # the format has one for all that a node sends
    edges = [{"sourceId": tensor.producer, "destId": target, "cost": cost[tensor.producer]}
             for tensor in problem.tensors for target in tensor.consumers]
    return {"maxFPGAs": 8, "maxCPUs": 1, "maxSizePerFPGA": 10**9,
            "nodes": [{"id": i, "cpuLatency": node.times[1], "fpgaLatency": node.times[0], "size": node.resident,
                       "supportedOnFpga": 1, "isBackwardNode": int(node.backward),
                       "colorClass": colours[node.colocation]}
                      for i, node in enumerate(problem.nodes)],
            "edges": edges}


# -- runs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A command on a large input. ``write`` puts its files into a folder; ``arguments`` name them."""

    name: str
    limit: float
    arguments: tuple[str, ...]
    write: Callable[[Path], None]
    #: How many times the limit counts: once for each point of a sweep.
    times: int = 1


def _saved(problem: Callable[[], Problem]) -> Callable[[Path], None]:
    return lambda folder: save_problem(problem(), folder / "input.json")


def _write_llama(folder: Path) -> None:
    (folder / "llama.json").write_text(json.dumps(_LLAMA), encoding="utf-8")
    (folder / "input.yaml").write_text(_LLAMA_SPEC, encoding="utf-8")


def _write_operators(folder: Path) -> None:
    (folder / "input.json").write_text(json.dumps(_operators(60)), encoding="utf-8")


_SOLVE = ("solve", "input.json", "-o", "schedule.json")

INPUTS: tuple[Input, ...] = (
    Input("llama", 40, ("solve", "input.yaml", "-o", "schedule.json"), _write_llama),
    Input("1000x1000", 20, (*_SOLVE, "-n", "1000"), _saved(lambda: chain(1000, 1000, memory=1000))),
    Input("chain-few", 20, (*_SOLVE, "-n", "20"), _saved(lambda: chain(2500, 8, memory=1600))),
    Input("chain-many", 20, (*_SOLVE, "-n", "20"), _saved(lambda: chain(2500, 2500, memory=8))),
    Input("everywhere", 10, (*_SOLVE, "-n", "20"), _saved(lambda: everywhere(50, 1000))),
    Input("v-100k", 20, (*_SOLVE, "-n", "1000"), _saved(lambda: folded(25, memory=40))),
    Input("wide-m", 20, (*_SOLVE, "-n", "64"), _saved(lambda: wide_m(256, memory=64))),
    Input("random-dag", 20, (*_SOLVE, "-n", "32"), _saved(lambda: random_graph(2000, 16))),
    Input("place", 20, ("place", "input.json", "--stage-graph"), _write_operators),
    Input("compare", 20, ("compare", "input.json", "-n", "1000"), _saved(lambda: folded(25, memory=40))),
    Input("sweep", 5, ("sweep", "input.json", "-n", "16", "--memory", "1x,2x", "--no-cache", "--no-refine",
                       "--workers", "1"), _saved(lambda: random_graph(2000, 16)), times=2),
    Input("latency", 20, ("latency", "input.json", "-n", "64"), _saved(lambda: wide_m(128, memory=64))),
    Input("explain", 20, ("explain", "input.json", "-n", "256", "--what-if"), _saved(lambda: folded(16, memory=40))),
)


#: The command with its CPU time for a clock.
_BY_CPU = ("import time; time.monotonic = time.process_time; import sys; from weft.cli.main import main; "
           "sys.exit(main(sys.argv[1:]))")


def measure(entry: Input, ceiling: float, cpu: bool) -> dict[str, Any]:
    """One row: the command run once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        entry.write(folder)
        front = ("-c", _BY_CPU) if cpu else ("-m", "weft")
        command = [sys.executable, *front, *entry.arguments, "--time-limit", f"{entry.limit:g}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT),
                       "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        lines: list[str] = []
        killed = False
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            try:
                text = process.stderr.read()
            except TypeError:  # nothing there yet
                text = ""
            lines += (text or "").splitlines()
            if pid:
                break
            if not killed and time.monotonic() - began > ceiling:
                process.kill()
                killed = True
            time.sleep(0.02)
        wall = time.monotonic() - began
        process.stderr.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        written = (folder / "schedule.json").exists()
    limit = entry.limit * entry.times
    seconds = used.ru_utime + used.ru_stime
    said = [(float(match[1]), line) for line in lines if (match := re.match(r" *([\d.]+) s  ", line))]
    first = next((at for at, line in said if "nothing" not in line), None)
    return {"input": entry.name, "limit": limit, "wall": round(wall, 2), "cpu": round(seconds, 2),
            "overrun": round((seconds if cpu else wall) - limit, 2), "clock": "cpu" if cpu else "wall",
            "first_line": said[0][0] if said else None, "first_schedule": first, "status": process.returncode,
            "killed": killed, "written": written, "last_line": lines[-1] if lines else ""}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the inputs; print and write a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of inputs, default all")
    parser.add_argument("--cpu", action="store_true", help="CPU time in place of the clock")
    parser.add_argument("--output", type=Path, default=RESULTS / "time_limit.json")
    parser.add_argument("--ceiling", type=float, default=300.0)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows: list[dict[str, Any]] = []
    for entry in INPUTS:
        if options.only and entry.name not in options.only:
            continue
        rows.append(measure(entry, options.ceiling, options.cpu))
        print(json.dumps(rows[-1]), flush=True)
        record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
