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
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.lib.gpu_cases import CASES
from experiments.lib.provenance import RESULTS, ROOT, Record
from weft.models.hardware.device_files import table_from_json
from weft.runtime.measure.kernels import LAUNCH, MEMORY
from weft.runtime.ranks.children import Start, children
from weft.runtime.ranks.gpus import lacks_gpus
from weft.runtime.ranks.launch import launch_local
from weft.solver.io.writing import write_atomically

PAGE = ROOT / "docs" / "GPU.md"
TOLERANCE = 1e-8  # in double precision
LOOK = 0.05  # seconds between two looks at a part
CORES = 4  # that a part has for its ranks, where others run beside it


class Part(NamedTuple):
    """``question``: what it answers. ``words``: the module to run and its arguments, given the device and the file that
    it writes. ``limit``: seconds. ``told``: a sentence of what it wrote and printed. ``alone``: its times count, so
    nothing runs beside it."""

    name: str
    question: str
    words: Callable[[str, Path], list[str]]
    limit: float
    told: Callable[[Any, str], str]
    alone: bool = False


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


def _equality(device: str, file: Path) -> list[str]:
    small = ["--shapes", "V", "--ranks", "2", "--dtypes", "fp64"]
    shapes = ["--shapes", "V,M head,NN,tied,skip,branches", "--ranks", "2", "--dtypes", "fp64,bf16", "--gpu"]
    return ["experiments.runtime.equality", *(small if device == "cpu" else shapes), "--output", str(file)]


def _equality_told(found: Any, output: str) -> str:
    worst = max((row[key] for row in found["rows"] for key in ("gradient_error", "weight_error")
                 if row["dtype"] == "fp64"), default=0.0)
    return f"{len(found['rows'])} runs; fp64: gradients and weights within {worst:.1e} of one process"


def _case(name: str) -> Callable[[str, Path], list[str]]:
    return lambda device, file: ["experiments.runtime.gpu", "--case", name, "--device", device, "--output", str(file)]


def _case_told(found: Any, output: str) -> str:
    return f"{found['said']}: within {found['error']:.1e}"


def _transports(device: str, file: Path) -> list[str]:
    return ["weft", "transports", "--json", "--gpus", "0" if device == "cpu" else "2", "--sizes", "4KiB", "16MiB"]


def _transports_told(found: Any, output: str) -> str:
    rows = json.loads(output)["transports"]

    def names(chosen: Sequence[Mapping[str, Any]]) -> str:
        return ", ".join(f"{row['transport']} ({row['device']})" for row in chosen) or "none"

    lacking = [row for row in rows if not row["works"]]
    return f"work: {names([row for row in rows if row['works']])}" + (f"; not: {names(lacking)}" if lacking else "")


def _calibrate(device: str, file: Path) -> list[str]:
    return ["weft", "calibrate", "--device", device, "--ranks", "1", "--json", "--quiet", "-o", str(file),
            *(["--quick"] if device == "cpu" else [])]


def _calibrate_told(found: Any, output: str) -> str:
    table = table_from_json(found)
    best = {dtype: max(sample.flops / sample.seconds for sample in table.kernels
                       if (sample.dtype, sample.which) == (dtype, "forward") and sample.flops)
            for dtype in ("float32", "bfloat16")}
    carried = max(sample.bytes / sample.seconds for sample in table.kernels if sample.group == MEMORY)
    launch = min(sample.seconds for sample in table.kernels if sample.group == LAUNCH)
    return (f"{len(table.kernels)} kernels; at most {best['bfloat16'] / 1e12:.1f} TFLOP/s in bf16, "
            f"{best['float32'] / 1e12:.1f} in fp32, {carried / 1e9:.0f} GB/s, {launch * 1e6:.1f} us a launch")


def _backends(device: str, file: Path) -> list[str]:
    small = ["--only", "DCGAN", "--batches", "1", "--backends", "eager", "--measure", "10", "--seconds", "1"]
    shipped = ["--only", "GPT-2", "--batches", "8", "--measure", "25", "--seconds", "2", "--trial", "25"]
    return ["experiments.runtime.backends", "--device", device, *(small if device == "cpu" else shipped), "--output",
            str(file)]


def _backends_told(found: Any, output: str) -> str:
    row, = found["rows"]
    return (f"{row['model']}, batch {row['batch']}: over eager {row['over_eager']:.3f}, over the best single backend "
            f"({row['single']}) {row['over_single']:.3f}, of {', '.join(row['backends'])}")


def _foreign(device: str, file: Path) -> list[str]:
    names = ["GPT-2"] if device == "cpu" else ["GPT-2", "Llama", "T5", "ViT", "ResNet-50", "Mixtral", "Mamba",
                                               "U-Net (torch)"]
    return ["experiments.runtime.any_model_ranks", "--device", device, "--only", *names, "--layouts", "2",
            "--schedules", "weft", "--dtypes", "fp64", "--recompute", "0", "--output", str(file)]


def _foreign_told(found: Any, output: str) -> str:
    good = [row for row in found["rows"] if "error" in row]
    bad = [f"{row['model']}: {row['failed']}" for row in found["rows"] if "failed" in row]
    return (f"{len(good)} models on 2 ranks, 5 steps each, fp64: gradients within "
            f"{max((row['error'] for row in good), default=0.0):.1e}" + "".join(f"; {each}" for each in bad))


def _beside(device: str, file: Path) -> list[str]:
    return ["experiments.runtime.beside_torch", "--device", device, "--only", "five equal blocks",
            "--rounds", "1" if device == "cpu" else "5", "--output", str(file)]


def _beside_told(found: Any, output: str) -> str:
    row, = found["rows"]
    return f"{row['model']} on 2 ranks: " + ", ".join(f"{ratio:.3f} of {name}" for name, ratio in row["ratios"].items())


def _planned(device: str, file: Path) -> list[str]:
    small = ["--preset", "tiny", "--micro-batches", "2", "--repeats", "1", "--time-limit", "1"]
    return ["experiments.runtime.gpu_plan", *(small if device == "cpu" else ["--preset", "1.3b", "--time-limit", "10"]),
            "--output", str(file)]


def _planned_told(found: Any, output: str) -> str:
    ratios = [f"{name}: {row[schedule]['time_ratio']:.3f}" for name, row in found.items() if name != "provenance"
              for schedule in ("1F1B", "weft")]
    return f"measured over planned time, 1F1B and weft's: {', '.join(ratios)}"


PARTS = (
    Part("equality", "Do replays of every pipeline shape train as one process does?", _equality, 75, _equality_told),
    Part("pipeline", "Does weft.pipeline train as one process does, over CUDA IPC?", _case("pipeline"), 35, _case_told),
    Part("copies", "Do two copies of a pipeline train as one process does?", _case("copies"), 35, _case_told),
    Part("mesh", "Does a pipeline beside data and tensor parallelism train as one process does, over NCCL?",
         _case("mesh"), 75, _case_told),
    Part("foreign models", "Do models of others train in weft.pipeline as in one process?", _foreign, 100,
         _foreign_told),
    Part("plan", "Does a plan by hand compute what torch does?", _case("plan"), 25, _case_told),
    Part("program", "Does a program of communication compute what its interpreter does?", _case("program"), 25,
         _case_told),
    Part("optimizer", "Does the sharded optimizer train as one process does?", _case("optimizer"), 25, _case_told),
    Part("offload", "Does what streams carry to the host and back leave gradients as they are?", _case("offload"), 25,
         _case_told),
    Part("graph network", "Does a graph network in chunks train as the whole graph does?", _case("graph network"), 35,
         _case_told),
    Part("experts", "Do layers of experts compute what a dense mixture does?", _case("experts"), 25, _case_told),
    Part("transports", "Which transports work: CUDA IPC, NCCL, symmetric memory?", _transports, 75, _transports_told,
         True),
    Part("planned", "Are planned times and peaks the measured ones, and do four ranks train on one GPU?", _planned, 75,
         _planned_told, True),
    Part("calibrate", "What do kernels reach of the device's peaks?", _calibrate, 25, _calibrate_told, True),
    Part("beside torch", "What does a step take beside PyTorch's pipelining schedules over NCCL?", _beside, 60,
         _beside_told, True),
    Part("backends", "What do several backends bring beside eager torch and the best single one?", _backends, 120,
         _backends_told, True),
)


# -- running them ------------------------------------------------------------------------------------------------------


def ranks_for(case: str, device: str) -> int:
    """Two, where each has what it needs; ``offload`` and ``graph network`` are one rank's own affair."""
    if case in ("offload", "graph network"):
        return 1
    if case in ("copies", "mesh"):
        return 4
    return 2 if device == "cpu" or case == "pipeline" or not lacks_gpus(2) else 1


def run_case(case: str, device: str, output: Path) -> int:
    """The ranks of one of :data:`~experiments.lib.gpu_cases.CASES`; writes the worst that they found."""
    code = f"import json\nfrom experiments.lib.gpu_cases import told\nprint(json.dumps(told({case!r}, {device!r})))"
    ended = launch_local(ranks_for(case, device), [sys.executable, "-c", code], timeout=600)
    if any(end.code for end in ended):
        bad = next(end for end in ended if end.code)
        sys.stderr.write(bad.errors or f"a rank ended with exit code {bad.code}\n")
        return 1
    found = max((json.loads(end.output.splitlines()[-1]) for end in ended), key=lambda one: float(one["error"]))
    output.write_text(json.dumps(found))
    return 0 if found["error"] <= TOLERANCE else 1


def run_part(part: Part, device: str, factor: float) -> Row:
    """One part, in a process of its own that ends within its limit."""
    began, limit = time.monotonic(), part.limit * factor
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/out", "w+b") as out, open(f"{folder}/err", "w+b"
                                                                                           ) as err:
        file = Path(folder) / "found.json"
        command = [sys.executable, "-m", *part.words(device, file)]
        with children([Start(command, {**os.environ, "OMP_NUM_THREADS": "1"}, out, err)]) as (process,):
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts and write what they found; exits with 1 where one is not good, with 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run in small")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="some of the parts")
    parser.add_argument("--limits", type=float, default=1.0, metavar="FACTOR", help="of each part's seconds")
    parser.add_argument("--page", action="store_true", help="only write the page anew from the file")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.json")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not options.page and not torch.cuda.is_available():
        print("no CUDA device: this machine has no GPU that torch can use; --device cpu runs all parts in small on the "
              "CPU", file=sys.stderr)
        return 2
    if options.case:
        return run_case(options.case, options.device, options.output)
    if not options.page:
        record, rows = Record(options.output), dict[str, Row]()
        chosen = [part for part in PARTS if options.only is None or part.name in options.only]
        for row in _rows(chosen, options.device, options.limits):
            rows[row.name] = row
            print(f"{row.name:13} {'good' if row.good else 'NOT GOOD':8} {row.seconds:6.1f} s  {row.said}", flush=True)
            record.write({"device": options.device, "limits": options.limits,
                          "parts": [asdict(rows[part.name]) for part in chosen if part.name in rows]})
    content = json.loads(options.output.read_text())
    if options.output == RESULTS / "gpu.json":
        write_atomically(PAGE, page(content))
    return 0 if all(row["good"] for row in content["parts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
