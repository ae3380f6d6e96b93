"""Everything that only a GPU can show, in the order of its worth, in ten minutes at most.

On a machine with CUDA: does what runs there compute what one process on the CPU does (pipelines and replays of every
shape, ``weft.pipeline`` and copies of it, plans by hand, programs of communication, the sharded optimizer, offloading
on streams of its own, graph networks in chunks, layers of experts); which transports work (CUDA IPC, NCCL, symmetric
memory); and how planned times and memory stand against measured ones; what kernels reach, and what backends bring. Each
part is processes of its own with a limit of its own: one that fails, hangs or is killed is a row of the page, and the
others run. With one GPU, ranks that cannot share it (NCCL's) are one.

Writes ``gpu.json``, with its commit, and the page made from it, ``docs/GPU.md``. ``--device cpu`` runs all parts in
small on the CPU with gloo, to show that they work from end to end; its numbers say nothing about a GPU.

    python -m experiments.runtime.gpu [--device cuda|cpu] [--only PART ...] [--limits FACTOR] [--page]

``--limits``: of each part's seconds. ``--page``: only write the page anew from the file.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.lib import gpu_cases
from experiments.lib.provenance import RESULTS, ROOT, Record
from experiments.lib.script import on_ranks, script
from weft.models.hardware.device_files import table_from_json
from weft.runtime.measure.kernels import LAUNCH, MEMORY
from weft.runtime.ranks.children import Start, children
from weft.runtime.ranks.gpus import lacks_gpus
from weft.solver.io.writing import write_atomically

PAGE = ROOT / "docs" / "GPU.md"
TOLERANCE = 1e-8  # in double precision
LOOK = 0.05  # seconds between two looks at a part
CORES = 4  # that a part has for its ranks, where others run beside it


class Part(NamedTuple):
    """``question``: what it answers. ``words``: the module to run and its arguments, with ``{device}`` and the
    ``{file}`` that it writes; ``small``: those on a CPU, ``whole``: those on a GPU. ``limit``: seconds. ``told``: a
    sentence of what it wrote and printed. ``alone``: its times count, so nothing runs beside it."""

    name: str
    question: str
    words: str
    limit: float
    told: Callable[[Any, str], str]
    small: str = ""
    whole: str = ""
    alone: bool = False

    def command(self, device: str, file: Path) -> list[str]:
        """What runs it."""
        words = f"{self.words} {self.small if device == 'cpu' else self.whole}"
        return [sys.executable, "-m", *(word.format(device=device, file=file) for word in shlex.split(words))]


@dataclass(frozen=True)
class Row:
    """What became of a part."""

    name: str
    question: str
    good: bool
    seconds: float
    said: str
    found: Any


# -- the parts ---------------------------------------------------------------------------------------------------------


def _equality_told(found: Any, output: str) -> str:
    worst = max((row[key] for row in found["rows"] for key in ("gradient_error", "weight_error")
                 if row["dtype"] == "fp64"), default=0.0)
    return f"{len(found['rows'])} runs; fp64: gradients and weights within {worst:.1e} of one process"


def _transports_told(found: Any, output: str) -> str:
    rows = json.loads(output)["transports"]

    def names(chosen: Sequence[Mapping[str, Any]]) -> str:
        return ", ".join(f"{row['transport']} ({row['device']})" for row in chosen) or "none"

    lacking = [row for row in rows if not row["works"]]
    return f"work: {names([row for row in rows if row['works']])}" + (f"; not: {names(lacking)}" if lacking else "")


def _calibrate_told(found: Any, output: str) -> str:
    table = table_from_json(found)
    best = {dtype: max(sample.flops / sample.seconds for sample in table.kernels
                       if (sample.dtype, sample.which) == (dtype, "forward") and sample.flops)
            for dtype in ("float32", "bfloat16")}
    carried = max(sample.bytes / sample.seconds for sample in table.kernels if sample.group == MEMORY)
    launch = min(sample.seconds for sample in table.kernels if sample.group == LAUNCH)
    return (f"{len(table.kernels)} kernels; at most {best['bfloat16'] / 1e12:.1f} TFLOP/s in bf16, "
            f"{best['float32'] / 1e12:.1f} in fp32, {carried / 1e9:.0f} GB/s, {launch * 1e6:.1f} us a launch")


def _backends_text(found: Any, output: str) -> str:
    row, = found["rows"]
    return (f"{row['model']}, batch {row['batch']}: over eager {row['over_eager']:.3f}, over the best single backend "
            f"({row['single']}) {row['over_single']:.3f}, of {', '.join(row['backends'])}")


def _foreign_told(found: Any, output: str) -> str:
    good = [row for row in found["rows"] if "error" in row]
    bad = [f"{row['model']}: {row['failed']}" for row in found["rows"] if "failed" in row]
    return (f"{len(good)} models on 2 ranks, 5 steps each, fp64: gradients within "
            f"{max((row['error'] for row in good), default=0.0):.1e}" + "".join(f"; {each}" for each in bad))


def _beside_told(found: Any, output: str) -> str:
    row, = found["rows"]
    return f"{row['model']} on 2 ranks: " + ", ".join(f"{ratio:.3f} of {name}" for name, ratio in row["ratios"].items())


def _planned_told(found: Any, output: str) -> str:
    ratios = [f"{name}: {row[schedule]['time_ratio']:.3f}" for name, row in found.items() if name != "provenance"
              for schedule in ("1F1B", "weft")]
    return f"measured over planned time, 1F1B and weft's: {', '.join(ratios)}"


def _case(name: str, question: str, limit: float = 25) -> Part:
    """One of :data:`experiments.lib.gpu_cases.CASES`."""
    return Part(name, question, f"experiments.runtime.gpu --case '{name}' --device {{device}} --output {{file}}", limit,
                lambda found, output: f"{found['said']}: within {found['error']:.1e}")


PARTS = (
    Part("equality", "Do replays of every pipeline shape train as one process does?",
         "experiments.runtime.equality --ranks 2 --output {file}", 75, _equality_told, "--shapes V --dtypes fp64",
         "--shapes 'V,M head,NN,tied,skip,branches' --dtypes fp64,bf16 --gpu"),
    _case("pipeline", "Does weft.pipeline train as one process does, over CUDA IPC?", 35),
    _case("copies", "Do two copies of a pipeline train as one process does?", 35),
    _case("mesh", "Does a pipeline beside data and tensor parallelism train as one process does, over NCCL?", 75),
    Part("foreign models", "Do models of others train in weft.pipeline as in one process?",
         "experiments.runtime.any_model_ranks --device {device} --layouts 2 --schedules weft --dtypes fp64 "
         "--recompute 0 --output {file}", 100, _foreign_told, "--only GPT-2",
         "--only GPT-2 Llama T5 ViT ResNet-50 Mixtral Mamba 'U-Net (torch)'"),
    _case("plan", "Does a plan by hand compute what torch does?"),
    _case("program", "Does a program of communication compute what its interpreter does?"),
    _case("optimizer", "Does the sharded optimizer train as one process does?"),
    _case("offload", "Does what streams carry to the host and back leave gradients as they are?"),
    _case("graph network", "Does a graph network in chunks train as the whole graph does?", 35),
    _case("experts", "Do layers of experts compute what a dense mixture does?"),
    Part("transports", "Which transports work: CUDA IPC, NCCL, symmetric memory?",
         "weft transports --json --sizes 4KiB 16MiB", 75, _transports_told, "--gpus 0", "--gpus 2", True),
    Part("planned", "Are planned times and peaks the measured ones, and do four ranks train on one GPU?",
         "experiments.runtime.gpu_plan --output {file}", 75, _planned_told,
         "--preset tiny --micro-batches 2 --repeats 1 --time-limit 1", "--preset 1.3b --time-limit 10", True),
    Part("calibrate", "What do kernels reach of the device's peaks?",
         "weft calibrate --device {device} --ranks 1 --json --quiet -o {file}", 25, _calibrate_told, "--quick",
         alone=True),
    Part("beside torch", "What does a step take beside PyTorch's pipelining schedules over NCCL?",
         "experiments.runtime.beside_torch --device {device} --only 'five equal blocks' --output {file}", 60,
         _beside_told, "--rounds 1", "--rounds 5", True),
    Part("backends", "What do several backends bring beside eager torch and the best single one?",
         "experiments.runtime.backends --device {device} --output {file}", 120, _backends_text,
         "--only DCGAN --batches 1 --backends eager --measure 10 --seconds 1",
         "--only GPT-2 --batches 8 --measure 25 --seconds 2 --trial 25", True),
)


# -- running them ------------------------------------------------------------------------------------------------------


def ranks_for(case: str, device: str) -> int:
    """Two, where each has what it needs; ``offload`` and ``graph network`` are one rank's own affair."""
    if case in ("offload", "graph network"):
        return 1
    if case in ("copies", "mesh"):
        return 4
    return 2 if device == "cpu" or case == "pipeline" or not lacks_gpus(2) else 1


def run_case(case: str, device: str, output: Path) -> bool:
    """The ranks of one of :data:`~experiments.lib.gpu_cases.CASES`; writes the worst that they found, and says whether
    that is bad."""
    found = max(on_ranks(gpu_cases.told, ranks_for(case, device), case, device, timeout=600),
                key=lambda one: float(one["error"]))
    output.write_text(json.dumps(found))
    return bool(found["error"] > TOLERANCE)


def run_part(part: Part, device: str, factor: float) -> Row:
    """One part, in a process of its own that ends within its limit."""
    began, limit = time.monotonic(), part.limit * factor
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/out", "w+b") as out, open(f"{folder}/err", "w+b"
                                                                                           ) as err:
        file = Path(folder) / "found.json"
        start = Start(part.command(device, file), {**os.environ, "OMP_NUM_THREADS": "1"}, out, err)
        with children([start]) as (process,):
            while process.poll() is None and time.monotonic() - began < limit:
                time.sleep(LOOK)
            code = process.returncode
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
        found = json.loads(file.read_text()) if file.exists() else None
        said = _said(part, code, limit, found, *texts)
    return Row(part.name, part.question, code == 0, round(time.monotonic() - began, 1), said, found)


def _rows(parts: Sequence[Part], device: str, factor: float) -> Iterator[Row]:
    """What becomes of ``parts``: of those whose times do not count as many at once as there are cores for."""
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES)) as pool:
        for begun in as_completed([pool.submit(run_part, part, device, factor) for part in parts if not part.alone]):
            yield begun.result()
    yield from (run_part(part, device, factor) for part in parts if part.alone)


def _said(part: Part, code: int | None, limit: float, found: Any, output: str, errors: str) -> str:
    """What a row says: the part's own sentence, or why there is none."""
    if code is None:
        return f"not done within its {limit:g} s"
    try:
        sentence = part.told(found, output)
    except (TypeError, KeyError, ValueError):
        lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
        return f"exit code {code}: {lines[-1][:300] if lines else 'no word'}"
    return sentence if code == 0 else f"exit code {code}; {sentence}"


# -- the page ----------------------------------------------------------------------------------------------------------


def page(content: Mapping[str, Any]) -> str:
    """The page of results, from what the file holds."""
    about = content["provenance"]
    said = ["# On a GPU", "Made from [gpu.json](../experiments/results/gpu.json) by `python -m experiments.runtime."
            "gpu`, "
            "the one command for a machine with CUDA: ten minutes at most, each part in processes of its own, "
            "beside each other where no times count."]
    if content["device"] == "cpu":
        said.append("**These are not numbers of a GPU.** They are those of the dry run on a CPU (`--device cpu`), "
                    "which shows that every part runs from end to end, with gloo and in small.")
    machine = about["machine"]
    limits = f"; limits times {content['limits']:g}" if content["limits"] != 1 else ""
    said.append(f"Commit `{about['commit'][:12]}`{' with changes' if about['dirty'] is True else ''}, {about['date']}, "
                f"{machine.get('gpu', machine['cpu'])}, torch {machine['torch']}{limits}.")
    rows = [f"| {row['name']} | {row['question']} | {'yes' if row['good'] else '**no**'} | {row['seconds']:.0f} s | "
            + row["said"].replace("|", "\\|") + " |" for row in content["parts"]]
    return "\n\n".join(textwrap.fill(each, 118, break_long_words=False, break_on_hyphens=False) for each in said) + (
        "\n\n" + "\n".join(["| part | question | good | took | found |", "|---|---|---|---|---|", *rows]) + "\n")


@script("gpu.json", device="cuda", only=(), limits=1.0, page=False, case="")
def main(options: Namespace, record: Record) -> int:
    if options.device == "cuda" and not options.page and not torch.cuda.is_available():
        print("no CUDA device: this machine has no GPU that torch can use; --device cpu runs all parts in small on the "
              "CPU", file=sys.stderr)
        return 2
    if options.case:
        return run_case(options.case, options.device, options.output)
    if not options.page:
        rows: dict[str, Row] = {}
        chosen = [part for part in PARTS if not options.only or part.name in options.only]
        for row in _rows(chosen, options.device, options.limits):
            rows[row.name] = row
            print(f"{row.name:13} {'good' if row.good else 'NOT GOOD':8} {row.seconds:6.1f} s  {row.said}", flush=True)
            record.write({"device": options.device, "limits": options.limits,
                          "parts": [asdict(rows[part.name]) for part in chosen if part.name in rows]})
    content = json.loads(options.output.read_text())
    if options.output == RESULTS / "gpu.json":
        write_atomically(PAGE, page(content))
    return not all(row["good"] for row in content["parts"])
