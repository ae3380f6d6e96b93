"""The README's picture and table, by the command the README shows.

    python -m experiments.readme

Runs ``weft demo`` and writes its picture and numbers to experiments/readme/ and its table into README.md, between the
table's markers.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import weft
from solver.entries import write_atomically
from weft.progress import ProgressLine

HOME = Path(__file__).resolve().parent
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def main() -> None:
    target = HOME / "readme"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ProgressLine() as progress:
        shown = weft.demo(folder, on_progress=progress)
        for name in ("schedule.png", "schedule.json"):
            shutil.copyfile(Path(folder) / name, target / name)
    write_atomically(target / "comparison.json", json.dumps(shown.comparison.to_json(), indent=1) + "\n")
    readme = HOME.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = "\n".join(line.rstrip() for line in str(shown.comparison).splitlines())
    write_atomically(readme, f"{before}{BEGIN}```\n{table}\n```\n{END}{after}")
    print(table)


if __name__ == "__main__":
    main()
