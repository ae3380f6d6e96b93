"""The README's picture and table, by the command the README shows.

    python -m experiments.weft.readme

Runs ``weft demo``, which ends after a fixed amount of work, and writes its picture, numbers and table to
experiments/results/readme/ and the table into README.md, between its markers; with another ``--output`` the rest is
beside that, and the table in ``--readme``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

import weft
from experiments.lib.provenance import RESULTS, ROOT, Record
from experiments.lib.script import script
from weft.cli.lib.progress import ProgressLine
from weft.solver.io.writing import write_atomically

USUAL = RESULTS / "readme" / "comparison.json"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


@script("readme/comparison.json", effort=float, readme=Path)
def main(options: Namespace, record: Record) -> None:
    with tempfile.TemporaryDirectory() as folder, ProgressLine() as progress:
        shown = weft.demo(folder, effort=options.effort, on_progress=progress)
        shutil.copyfile(Path(folder) / "schedule.png", options.output.with_name("schedule.png"))
        schedule = json.loads((Path(folder) / "schedule.json").read_text())
    schedule["solver"]["provenance"] = record.provenance
    write_atomically(options.output.with_name("schedule.json"), json.dumps(schedule) + "\n")
    record.write(shown.comparison.to_json())
    table = "\n".join(line.rstrip() for line in str(shown).splitlines())
    write_atomically(options.output.with_name("table.txt"), table + "\n")
    if readme := options.readme or (ROOT / "README.md" if options.output == USUAL else None):
        before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
        _, after = rest.split(END)
        write_atomically(readme, f"{before}{BEGIN}```\n{table}\n```\n{END}{after}")
    print(table)
