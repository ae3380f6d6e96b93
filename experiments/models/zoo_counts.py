"""Published against counted parameters for every published model of the zoo, with its graph's size and work.

Operations (of the forward) and bytes (kept in training) are for one sample of the model's own sequence or image,
with activations in fp16. Writes ``zoo_counts.json``.

    python -m experiments.models.zoo_counts
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.lib.provenance import RESULTS, Record
from weft.models.zoo.graphs import model_graph
from weft.models.zoo.published import EXACT, PUBLISHED, ROUNDED


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS / "zoo_counts.json")
    options = parser.parse_args(arguments)
    record, rows = Record(options.output), []
    print(f"{'model':18}{'published':>20}{'counted':>18}{'operators':>11}{'forward GFLOP':>15}{'kept MiB':>11}")
    for name, model in ((name, model) for name, model in PUBLISHED.items() if options.only in name):
        graph = model_graph(model)
        counted = graph.parameter_count()
        published = EXACT.get(name) or ROUNDED.get(name, (None,))[0]
        shown = "-" if published is None else f"{published:,.0f}" if name in EXACT else f"{published / 1e6:,.0f} M"
        flops = sum(operator.forward.flops for operator in graph.operators)
        print(f"{name:18}{shown:>20}{counted:>18,}{len(graph.operators):>11}{flops / 1e9:>15,.1f}"
              f"{graph.saved_bytes() / 2**20:>11,.0f}")
        rows.append({"model": name, "published": published, "exact": name in EXACT, "counted": counted,
                     "operators": len(graph.operators), "forward_flops": flops, "saved_bytes": graph.saved_bytes()})
    record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    main()
