"""The README's picture and table, by the command the README shows.

    python -m experiments.weft.readme

Runs ``weft demo``, which ends after a fixed amount of work, and writes its picture, numbers and table to
experiments/results/readme/ and the table into README.md, between its markers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import weft
from experiments.lib.provenance import RESULTS, ROOT, Record
from weft.cli.lib.progress import ProgressLine
from weft.solver.io.writing import write_atomically

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; write its picture, its schedule, its numbers and its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--effort", type=float, help="deterministic seconds for the search (default: the demo's)")
    parser.add_argument("--readme", type=Path, help="the file with the table (default: README.md, if --output is)")
    parser.add_argument("--output", type=Path, default=RESULTS / "readme" / "comparison.json",
                        help="the rest is beside it")
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = Record(options.output)
    with tempfile.TemporaryDirectory() as folder, ProgressLine() as progress:
        shown = weft.demo(folder, effort=options.effort, on_progress=progress)
        shutil.copyfile(Path(folder) / "schedule.png", options.output.with_name("schedule.png"))
        schedule = json.loads((Path(folder) / "schedule.json").read_text())
    schedule["solver"]["provenance"] = record.provenance
    write_atomically(options.output.with_name("schedule.json"), json.dumps(schedule) + "\n")
    record.write(shown.comparison.to_json())
    table = "\n".join(line.rstrip() for line in str(shown).splitlines())
    usual = ROOT / "README.md" if options.output == parser.get_default("output") else None
    readme = options.readme or usual
    write_atomically(options.output.with_name("table.txt"), table + "\n")
    if readme is not None:
        before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
        _, after = rest.split(END)
        write_atomically(readme, f"{before}{BEGIN}```\n{table}\n```\n{END}{after}")
    print(table)
    return 0


if __name__ == "__main__":
    main()
