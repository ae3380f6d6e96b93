"""Every experiment that keeps a file: what it runs, what it measures, and how to try it in small.

``measures`` are the files and folders whose changes make the numbers old (``:(exclude)`` before one takes it out); the
problems an experiment draws itself count, the script that prints them does not. ``minutes`` is a guess until a run has
recorded its own.
"""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from pathlib import Path

from experiments.house.imports import ROOMS
from experiments.lib.provenance import RESULTS, ROOT

__all__ = ["EXPERIMENTS", "HOME", "Experiment"]

HOME = ROOT / "experiments"
_SEARCH = ("solver", ":(exclude)solver/placement")
_PLACEMENT = ("solver/placement", "solver/cpsat/solve.py")
_OPERATOR_GRAPHS = (*_PLACEMENT, "models/graph/formats.py", "experiments/lib/placement_graphs.py")
_PLANS = (*_SEARCH, "models", "weft")
_EXECUTOR = ("runtime", ":(exclude)runtime/export")


@dataclass(frozen=True)
class Experiment:
    """``name`` is its file's, without ``.json``; ``arguments`` are those of the numbers that are kept, ``smoke`` those
    of a run of seconds. ``quiet``: it takes times of the clock, which need a machine with nothing else to do.
    ``slow``: its smoke run takes more than some seconds; ``rare``: so long that the suite leaves it out
    (``python -m pytest -m rare`` runs these). ``gpu``: its numbers are those of a GPU; its smoke run
    takes the CPU."""

    name: str
    module: str
    measures: tuple[str, ...]
    minutes: float
    smoke: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    quiet: bool = False
    slow: bool = False
    rare: bool = False
    gpu: bool = False

    @property
    def file(self) -> Path:
        """Where its numbers are."""
        return RESULTS / f"{self.name}.json"

    @property
    def script(self) -> str:
        """Its file, in this folder."""
        return f"{self.module.replace('.', '/')}.py"

    @property
    def command(self) -> str:
        """What makes the numbers."""
        return f"python -m experiments.{self.module} {shlex.join(self.arguments)}".strip()

    @property
    def title(self) -> str:
        """The first sentence of its script."""
        tree = ast.parse((HOME / self.script).read_text(encoding="utf-8"))
        return (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")


EXPERIMENTS = {entry.name: entry for entry in (
    Experiment("ablation", "step.ablation", (*_SEARCH, "experiments/lib/generated.py", "experiments/lib/extended.py",
               "experiments/period/scale.py"), 300,
               ("--only", "stream of 3", "--effort", "0.05", "--parts", "Moves", "fixed starts")),
    Experiment("activation_choices", "step.activation_choices", (*_SEARCH, "models/candidates"), 10,
               ("--caps", "9", "--rows", "recompute", "--effort", "0.05")),
    Experiment("adama", "runtime.adama", (*_PLANS, *_EXECUTOR), 25,
               ("--steps", "2", "--seeds", "1", "--effort", "0.02", "--caps"), slow=True),
    Experiment("annotations", "models.annotations", ("models/transform", "models/capture",
               "experiments/lib/foreign_models.py"), 3, ("--only", "U-Net (torch)")),
    Experiment("any_model", "runtime.any_model", (*_EXECUTOR, "experiments/lib/foreign_models.py"), 2,
               ("--only", "U-Net (torch)"), slow=True),
    Experiment("any_model_ranks", "runtime.any_model_ranks",
               (*_EXECUTOR, *_PLANS, "experiments/lib/foreign_models.py"), 15,
               ("--only", "U-Net (torch)", "--ranks", "2", "--dtypes", "fp64"),
               arguments=("--dtypes", "fp64"), quiet=True, rare=True),
    Experiment("bounds", "step.bounds", (*_SEARCH, "experiments/lib/generated.py"), 5,
               ("--every", "180", "--windows", "0.05"), slow=True),
    Experiment("captured_costs", "runtime.captured_costs", (*_EXECUTOR, *_PLANS, "experiments/lib/foreign_models.py"),
               6, ("--only", "perceptron"), quiet=True, rare=True),
    Experiment("co_shard", "models.co_shard", _PLANS, 5, ("--tokens", "16384", "--effort", "0.02"), slow=True),
    Experiment("co_shard_run", "runtime.co_shard_run", ("runtime/by_hand", "models/transform", "models/layouts",
               "weft/app/plans"), 0.3, ("--layers", "1", "--parts", "2"), slow=True),
    Experiment("collectives", "models.collectives", ("models",), 0.1, ()),
    Experiment("cut_ablation", "models.cut_ablation", ("models/cuts", "solver/variants", "weft/app/cuts",
               "experiments/models/cut_search.py"), 12,
               ("--only", "random 3", "--parts", "carrying", "tries", "--effort", "0.05"), slow=True),
    Experiment("cut_search", "models.cut_search", ("models/cuts", "solver/variants", "weft/app/cuts"), 30,
               ("--count", "1", "--effort", "0.5"), slow=True),
    Experiment("equality", "runtime.equality", (*_EXECUTOR, *_SEARCH), 6,
               ("--shapes", "V", "--ranks", "2", "--dtypes", "fp64"), slow=True),
    Experiment("equality_gpu", "runtime.equality", (*_EXECUTOR, *_SEARCH), 3,
               ("--shapes", "V", "--ranks", "2", "--dtypes", "fp32"), rare=True, gpu=True,
               arguments=("--gpu", "--shapes", "V,M head,NN,tied,skip,branches", "--output",
                          "experiments/results/equality_gpu.json")),
    Experiment("executed_memory", "runtime.executed_memory", (*_PLACEMENT, *_EXECUTOR, "weft/app/pipeline",
               "experiments/lib/executed.py", "experiments/lib/memory_rivals.py"), 5,
               ("--only", "residual convolutions", "--most", "4"), quiet=True, rare=True),
    Experiment("faults", "runtime.faults", _EXECUTOR, 2, ("--only", "world"), quiet=True, slow=True),
    Experiment("gpu", "runtime.gpu", (*_EXECUTOR, *_PLANS), 10,
               ("--device", "cpu", "--only", "offload", "plan", "--limits", "4"), rare=True, gpu=True),
    Experiment("gpu_plan", "runtime.gpu_plan", (*_EXECUTOR, *_SEARCH), 6,
               ("--preset", "tiny", "--micro-batches", "2", "--repeats", "1", "--time-limit", "1", "--no-shared"),
               arguments=("--preset", "1.3b", "2.7b", "--optimizer", "adam", "adama"), quiet=True, slow=True, gpu=True),
    Experiment("graph_pipeline_steps", "placement.graph_pipeline_steps",
               ("solver", "models", "experiments/placement/graph_pipeline_cases.py"), 20,
               ("--models", "mmt", "--devices", "2", "--memory", "1", "--effort", "0.5"), slow=True),
    Experiment("graph_pipelines", "placement.graph_pipelines",
               (*_PLACEMENT, "models", "experiments/lib/piper_program.py"), 60,
               ("--models", "mmt", "--devices", "2", "--replicate", "no", "--part", "table"), slow=True),
    Experiment("heavy_head", "runtime.heavy_head", (*_EXECUTOR, *_PLANS), 15,
               ("--rounds", "2", "--repeats", "2", "--micro-batches", "2", "--seconds", "1"), quiet=True, rare=True),
    Experiment("house", "house.measures", (*ROOMS, "tests"), 0.5, ("--before", ".", "--after", "."), slow=True),
    Experiment("killed_jobs", "runtime.killed_jobs", (*_EXECUTOR, "tests/support/shared_mixes.py"), 2,
               ("--runs", "killed"), quiet=True, rare=True),
    Experiment("large_specs", "models.large_specs", _PLANS, 5, ("--only", "128", "--seconds", "12"), rare=True),
    Experiment("layouts", "models.layouts", ("models/layouts", "models/transform", "tests/oracles/layouts.py",
               "tests/support/programs.py"), 3, ("--devices", "2", "3", "--plans", "2"), slow=True),
    Experiment("lengths", "step.lengths", _PLANS, 12, ("--draws", "1", "--seconds", "10", "--memories", "40GiB",
               "--micro-batches", "2"), ("--seconds", "40"), slow=True),
    Experiment("memory_plan", "placement.memory_plan", ("solver/placement", "models"), 40,
               ("--only", "GPT-1.3B", "--devices", "4", "--largest", "1", "--time-limit", "5"), slow=True),
    Experiment("mutants", "house.mutants", ("solver/judge", "solver/bounds", "solver/period/refuters", "solver/choices",
                                            "solver/variants", "models/cuts", "weft/app/cuts", "tests"), 40,
               ("--room", "judge", "--sample", "1"), arguments=("--sample", "18"), slow=True),
    Experiment("never_worse/suite", "step.never_worse",
               (*_SEARCH, "weft/app/compare.py", "experiments/lib/generated.py"), 35,
               ("--count", "2", "--effort", "0.02", "--processes", "1"), slow=True),
    Experiment("never_worse_wide", "step.never_worse_wide",
               (*_SEARCH, "experiments/lib/generated.py", "experiments/lib/extended.py"), 25,
               ("--count", "2", "--effort", "0.02", "--processes", "1"), slow=True),
    Experiment("objectives", "step.objectives", _SEARCH, 5,
               ("--only", "V, F, I, W = 1, 1, 1", "--memories", "1", "--effort", "0.02"), slow=True),
    Experiment("offload", "placement.offload", (*_PLANS, "solver/placement"), 3,
               ("--sizes", "1", "--samples", "4", "--effort", "0.02"), slow=True),
    Experiment("open_gaps", "step.open_gaps", (*_SEARCH, "experiments/lib/generated.py"), 10,
               ("--every", "90", "--effort", "0.02"), arguments=("--every", "12"), slow=True),
    Experiment("overhead", "runtime.overhead", _EXECUTOR, 2, ("--rounds", "1"), quiet=True, rare=True),
    Experiment("overlap", "runtime.overlap", (*_EXECUTOR, "models/communication", "weft/app/communication",
               "tests/support/communication_ranks.py"), 2,
               ("--repeats", "1", "--counts", "1", "8", "--parts", "real", "--shape", "64", "64", "64"), quiet=True,
               slow=True),
    Experiment("overlap_programs", "models.overlap_programs", (*_SEARCH, "models/communication",
               "tests/support/communication.py"), 3, ("--only", "updates", "values", "--most", "16384",
               "--optimizers", "sgd", "--ranks", "2")),
    Experiment("overlap_modelled", "models.overlap_modelled", _PLANS, 1.5,
               ("--only", "tensor", "--models", "GPT", "--effort", "0.3"), slow=True),
    Experiment("placement", "placement.placement", _OPERATOR_GRAPHS, 3, ("--only", "inception, 6"), slow=True),
    Experiment("placement_ablation", "placement.placement", _OPERATOR_GRAPHS, 20,
               ("--ablation", "--only", "inception, 6", "--limit", "0.2"), arguments=("--ablation",), slow=True),
    Experiment("plans_found", "models.plans_found", (*_PLANS, "experiments/lib/published_plans.py"), 1,
               ("--only", "co-shard", "sharded-optimizer", "--effort", "0.05"), slow=True),
    Experiment("published_costs", "step.published_costs", _SEARCH, 30,
               ("--models", "1.5B", "--shapes", "chain", "--memory", "1", "--effort", "0.02"), slow=True),
    Experiment("readme/comparison", "weft.readme", _PLANS, 1, ("--effort", "0.02"), slow=True),
    Experiment("recompute_classes", "step.recompute_classes", _PLANS, 8, ("--seconds", "2", "--caps", "14"), slow=True),
    Experiment("replay_emulated", "runtime.replay_emulated", _EXECUTOR, 6,
               ("--only", "GPipe", "--repeats", "1"), quiet=True, rare=True),
    Experiment("replay_gpt", "runtime.replay_gpt", (*_EXECUTOR, *_SEARCH), 2,
               ("--ranks", "2", "--dtypes", "fp64", "--only", "GPipe"), rare=True),
    Experiment("rivals", "step.rivals", (*_SEARCH, "models/candidates/sequence_chunks.py"), 6,
               ("--devices", "2", "--shapes", "wave 3", "chain, 2 sequence chunks", "--effort", "0.02"), slow=True),
    Experiment("roofline", "models.roofline", ("models",), 3, ("--fit",)),
    Experiment("scale", "period.scale", _SEARCH, 90,
               ("--devices", "4", "--shapes", "V", "--caps", "1.5", "--seconds", "2"),
               arguments=("--devices", "8,16,32,64,128"), quiet=True),
    Experiment("share", "step.share", (*_PLANS, "tests/support/sharing.py"), 15,
               ("--sets", "3", "--effort", "0.05", "--only", "none"), slow=True),
    Experiment("shared_jobs", "runtime.shared_jobs", (*_EXECUTOR, "tests/support/shared_ranks.py"), 2,
               ("--repeats", "1"), quiet=True, rare=True),
    Experiment("shared_kinds", "step.shared_kinds", (*_PLANS, "experiments/step/share.py"), 5,
               ("--effort", "0.05", "--only", "two inferences, one")),
    Experiment("shared_periods", "step.shared_periods", (*_PLANS, "tests/oracles/shared.py"), 4,
               ("--sets", "5", "--ratios", "1"), slow=True),
    Experiment("signals", "step.signals", ("weft", "solver"), 12, ("--moments", "1", "--only", "solve"), quiet=True,
               slow=True),
    Experiment("small_problems", "step.small_problems", (*_SEARCH, "experiments/step/small_problems.py"), 1,
               ("--count", "12")),
    Experiment("streams", "step.streams", (*_SEARCH, "tests/oracles/streams.py"), 5,
               ("--grids", "3", "--slots", "2", "4", "--seconds", "0.5")),
    Experiment("sweep_gpt/sweep", "weft.sweep_gpt", _PLANS, 5,
               ("--gib", "24", "--micro-batches", "8", "--effort", "0.02", "--workers", "1"), rare=True),
    Experiment("tessel_evaluation", "weft.tessel_evaluation", _PLANS, 20,
               ("--only", "24.24x1024|197, batch 1$", "--sizes", "8", "--effort", "0.02"), slow=True),
    Experiment("tessel_search", "period.tessel_search", (*_SEARCH, "models/zoo/tessel_shapes.py"), 2,
               ("--first", "2", "--effort", "0.02")),
    Experiment("time_limit", "step.time_limit", _PLANS, 5, ("--only", "everywhere", "--cpu"), quiet=True, slow=True),
    Experiment("transfers", "step.transfers", _SEARCH, 5,
               ("--cases", "not counted", "--micro-batches", "4", "--effort", "0.02"), slow=True),
    Experiment("transfers_balanced", "step.transfers", _SEARCH, 5,
               ("--head", "1", "--cases", "not counted", "--micro-batches", "4", "--effort", "0.02"),
               arguments=("--head", "1", "--effort", "0.5", "--output", "experiments/results/transfers_balanced.json"),
               slow=True),
    Experiment("transports", "runtime.transports", ("runtime/transports", "runtime/ranks/session.py",
                                                           "runtime/measure/transport_methods.py"), 2,
               ("--rounds", "1", "--sizes", "1024"), quiet=True, rare=True),
    Experiment("unequal_gpus", "models.unequal_gpus", ("models/candidates",), 1, ("--count", "6")),
    Experiment("wide_random", "step.wide_random", (*_SEARCH, "tests/support/alternatives.py",
                                                   "tests/support/wide_problems.py"), 15, ("--count", "2")),
    Experiment("worked_examples", "step.worked_examples", _SEARCH, 0.1, ()),
    Experiment("zoo_counts", "models.zoo_counts", ("models/zoo", "models/spec/families.py"), 0.5, ("--only", "gpt")),
)}
