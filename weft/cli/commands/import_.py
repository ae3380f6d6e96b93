"""read another tool's schedule

FILE is a CSV of torch.distributed.pipelining, with or without communication, or a Tessel schedule (.json); or a plan
for the model of the spec --problem: torchtitan's settings (.toml), DeepSpeed's partition (.py), or Megatron-LM's
arguments (.txt, .sh), under the order that the tool runs. It is checked as far as a run depends on it: complete,
runnable, sends and receives in one order. Times are the earliest that its order allows, with the durations of
--problem, or one unit for a forward and for each half of a backward. A CSV does not state the cut of a model's layers:
--problem with the schedule that it was exported from times it on that cut. A schedule that breaks weft's rules is
reported (exit status 1) and written all the same. If it breaks only the order of micro-batches, as PyTorch's LoopedBFS
does, it can be drawn, explained, planned and exported; if it breaks memory, drawn.

example:
  weft import order.csv --problem gpt.yaml -o theirs.json && weft draw theirs.json
"""

from __future__ import annotations

from typing import Annotated

from weft.app.export import import_schedule
from weft.cli.lib.command import GOOD, NO, Call, command, into
from weft.cli.lib.output import JSON, require_output, save, summary


@command(import_schedule)
def run(call: Call, *, output: Annotated[str, into("write the schedule there (format weft.schedule/1)")]) -> int:
    from weft.solver.judge.validate import violations

    require_output(output, "a schedule", JSON, [call.path, call.problem])
    schedule = call()
    save(schedule, output)
    print(summary(schedule))
    faults = violations(schedule)
    for fault in faults:
        print(f"fault     {fault}")
    print(f"written to {output}")
    return NO if faults else GOOD
