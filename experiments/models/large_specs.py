"""Large models on many GPUs, groups and chunks open: how soon there is a schedule, and how close it is proven to be.

Each case is solved like ``weft solve`` does, on modelled costs, all cases at once, and counts seconds of CPU time since
its process began, import included, so that other work on the machine counts little. A gap is to the bound over any
placement of layers on groups of GPUs (:mod:`weft.models.tensor_parallel.bound.any_placement`); beside it stands what
the work of all layers alone says, each at the number of GPUs where it costs least. Writes ``large_specs.json``.

    python -m experiments.models.large_specs [--only Llama] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.lib.provenance import RESULTS, Record
from weft.models.spec.sections import Spec

__all__ = ["CASES", "one"]

_LLAMA = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
          "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "hidden_act": "silu",
          "max_position_embeddings": 8192, "attention_bias": False, "tie_word_embeddings": False}
_GPT3 = ("{family: gpt, layers: 96, hidden: 12288, heads: 96, vocabulary: 50257, sequence: 2048, attention: fused, "
         "tied: false}")
_SPEC = """
name: {name}
model: {model}
costs: roofline
cluster: {{gpus: {gpus}, memory: 80 GiB, device: h100, gpus_per_machine: 8}}
training: {{micro_batches: {micro_batches}}}
"""
#: By name: the model, GPUs in machines of eight H100, and micro-batches of one sequence.
CASES = {"Llama-3-70B on 64 GPUs": ("{config: llama.json}", 64, 512),
         "Llama-3-70B on 64 GPUs, few micro-batches": ("{config: llama.json}", 64, 64),
         "GPT-3 175B on 64 GPUs": (_GPT3, 64, 512),
         "GPT-3 175B on 128 GPUs": (_GPT3, 128, 512)}
#: A process whose clock is its CPU time.
_BY_CPU = ("import sys, time; time.monotonic = time.process_time; "
           "from experiments.models.large_specs import one; one(sys.argv[1], float(sys.argv[2]))")
#: The gap that is to be reached.
_CLOSE = 0.1


def one(name: str, seconds: float) -> None:
    """Solve a case in ``seconds`` and print what came when, as JSON. The clock is the process's."""
    from weft.app.lib.options import SearchOptions
    from weft.app.opening import solve_source
    from weft.models.spec.spec import load_spec
    from weft.solver.step.search import Progress

    model, gpus, micro_batches = CASES[name]
    options = SearchOptions(seconds, started=0.0)
    found: list[tuple[float, float]] = []

    def heard(progress: Progress) -> None:
        if not found or progress.best.makespan < found[-1][1]:
            found.append((round(time.monotonic(), 2), progress.best.makespan))

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "llama.json").write_text(json.dumps(_LLAMA), encoding="utf-8")
        spec = Path(folder) / "spec.yaml"
        spec.write_text(_SPEC.format(name=name, model=model, gpus=gpus, micro_batches=micro_batches), encoding="utf-8")
        best = solve_source(spec, None, options, heard)
        least = _least_work(load_spec(spec)) * micro_batches
    bound = best.solver.get("bound_over_any_placement", best.makespan_bound)
    gaps = [(at, makespan / bound - 1) for at, makespan in found]
    print(json.dumps({
        "case": name, "gpus": gpus, "micro_batches": micro_batches, "placements": best.solver.get("placements", 1),
        "seconds_to_first": gaps[0][0], "first_gap": gaps[0][1],
        "seconds_to_close": next((at for at, gap in gaps if gap < _CLOSE), None),
        "makespan": best.makespan, "bound": bound, "gap": best.makespan / bound - 1,
        "gap_to_least_work": best.makespan / least - 1, "gap_of_placement": best.gap,
        "placement": best.solver.get("placement"), "found": found}))


def _least_work(spec: Spec) -> float:
    """Seconds of a micro-batch's work over all GPUs, each layer at the degree where it is least."""
    from weft.models.candidates.family_costs import family_costs
    from weft.models.tensor_parallel.space import space_of

    space = space_of(spec, family_costs(spec))
    assert space is not None
    work = [min(degree * (costs[layer].forward + costs[layer].backward) for degree, costs in space.costs.items())
            for layer in range(len(space.layers))]
    return sum(work) / space.gpus


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of a solve")
    parser.add_argument("--output", type=Path, default=RESULTS / "large_specs.json")
    options = parser.parse_args(arguments)
    record, rows = Record(options.output), []
    runs = [subprocess.Popen([sys.executable, "-c", _BY_CPU, name, str(options.seconds)], stdout=subprocess.PIPE,
                             text=True) for name in CASES if options.only in name]
    for run in runs:
        told, _ = run.communicate()
        if run.returncode:
            return run.returncode
        rows.append(json.loads(told))
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "found"}), flush=True)
    record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    main()
