"""What each rank of a test of planned transfers runs: it counts what one takes.

``python -m tests.support.count_ranks SIZE ...`` under two ranks; rank 0 prints what was found, by size and method.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple

from experiments.runtime.transports import COUNTED, counts
from weft.runtime.ranks.session import join


def main() -> None:
    with join(30) as session:
        session.watch.begin()
        found = {size: {name: astuple(counts(session, name, int(size))) for name in COUNTED} for size in sys.argv[1:]}
    if session.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
