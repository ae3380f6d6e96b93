"""What switching plans brings while costs change, beside the bound and the best single plan.

Each case is a spec with phases: sequences and batches that grow, and mixtures of experts under a dense-to-sparse gate,
modelled. Seconds of a whole training: of the family, of the bound (each part's best plan and free switches), of the
best single plan. Writes ``family.json``.

    python -m experiments.models.family
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import weft
from experiments.lib.provenance import begun
from weft.models.spec.spec import parse_spec

_GATE = ("experts.density: {kind: dts, temperature: {start: 2.0, end: 0.1, decay: 10000}, threshold: 0.001, "
         "hard_at: 15000}")
_MOE = """
model: {{family: moe, layers: 8, hidden: 1024, heads: 16, vocabulary: 32000, sequence: {sequence}, experts: 8,
         active: 8, feed_forward: 4096}}
cluster: {{gpus: 4, device: a100, memory: {memory}}}
training: {{micro_batches: 8, micro_batch_size: {size}}}
placement: {{chunks: 2}}
phases: {{steps: 30000, samples: 3, {phases}}}
"""
CASES = {
    "GPT, sequences grow, 8 A100 of 40 GiB": """
model: {family: gpt, layers: 16, hidden: 2048, heads: 16, vocabulary: 50304, sequence: 512}
cluster: {gpus: 8, device: a100, memory: 40 GiB}
training: {micro_batches: 16}
phases:
  steps: 20000
  sequence: [[0, 512], [8000, 2048], [14000, 8192]]
  micro_batches: [[0, 64], [8000, 32], [14000, 8]]
""",
    "MoE, 8 experts become 1, 4 A100 of 80 GiB": _MOE.format(sequence=1024, size=1, memory="80 GiB", phases=_GATE),
    "MoE, 8 experts become 1, 4 A100 of 24 GiB": _MOE.format(sequence=2048, size=4, memory="24 GiB", phases=_GATE),
    "MoE, 8 experts become 1, 4 A100 of 16 GiB": _MOE.format(sequence=2048, size=4, memory="16 GiB", phases=_GATE),
    "MoE, 8 experts become 1, 8 A100 of 24 GiB": f"""
model: {{family: moe, layers: 14, hidden: 1024, heads: 16, vocabulary: 32000, sequence: 2048, experts: 8, active: 8,
         feed_forward: 4096, attention: fused, dropout: false}}
cluster: {{gpus: 8, device: a100, memory: 24 GiB}}
training: {{micro_batches: 8, micro_batch_size: 4}}
phases: {{steps: 30000, samples: 3, {_GATE}}}
""",
    "MoE, experts and sequences, 4 A100 of 24 GiB": _MOE.format(
        sequence=512, size=4, memory="24 GiB", phases=f"{_GATE}, sequence: [[0, 512], [20000, 2048]]"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write."""
    options, record = begun(__doc__, arguments, "family.json", only="", seconds=8.0)
    rows: list[dict[str, Any]] = []
    for name, text in CASES.items():
        if options.only in name:
            rows.append(_row(name, text, options.seconds))
            record.write({"seconds": options.seconds, "rows": rows})
    return 0


def _row(name: str, text: str, seconds: float) -> dict[str, Any]:
    """One case, in seconds."""
    began = time.process_time()
    found = weft.family(parse_spec(text), time_limit=seconds, cache=None, workers=1)
    best = found.best_fixed
    row = {"case": name, "total": round(found.total, 3), "bound": round(found.bound, 3),
           "above_bound": round(found.total / found.bound - 1, 6), "plans": len(found.plans),
           "alone": None if best is None else found.plans[best].title,
           "alone_total": None if best is None else round(found.fixed[best], 3),
           "saved": None if best is None else round(1 - found.total / found.fixed[best], 5),
           "parts": [{"first": part.first, **part.values, "plan": found.plans[part.plan].title,
                      "step_time": round(part.step_time, 6)} for part in found.parts],
           "switches": [{"step": switch.step, "bytes": switch.bytes, "transfer": switch.seconds}
                        for switch in found.switches],
           "cpu_seconds": round(time.process_time() - began, 1)}
    print(json.dumps({key: value for key, value in row.items() if key != "parts"}), flush=True)
    return row


if __name__ == "__main__":
    main()
