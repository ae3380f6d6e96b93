"""Every experiment that keeps a file: what it runs, and how to try it in small."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, ROOT

__all__ = ["EXPERIMENTS", "HOME", "Experiment"]

HOME = ROOT / "experiments"


@dataclass(frozen=True)
class Experiment:
    """``name`` is its file's, without ``.json``; ``arguments`` are those of the numbers that are kept, ``smoke`` those
    of a run of seconds. ``quiet``: it takes times of the clock, which need a machine with nothing else to do.
    ``slow``: its smoke run takes more than some seconds; ``rare``: so long that the suite leaves it out
    (``python -m pytest -m rare`` runs these). ``gpu``: its numbers are those of a GPU; its smoke run
    takes the CPU."""

    name: str
    module: str
    smoke: str
    arguments: str = ""
    quiet: bool = False
    slow: bool = False
    rare: bool = False
    gpu: bool = False

    @property
    def file(self) -> Path:
        """Where its numbers are."""
        return RESULTS / f"{self.name}.json"

    @cached_property
    def content(self) -> dict[str, Any]:
        """What its file holds."""
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    @property
    def commit(self) -> str:
        """At which it was measured."""
        return str(self.content["provenance"]["commit"])[:8]

    @property
    def minutes(self) -> float | None:
        """What its last whole run took; ``None`` where that is not recorded."""
        took = self.content["provenance"]["minutes"]["wall"]
        return float(took) if isinstance(took, float | int) else None

    @property
    def script(self) -> str:
        """Its file, in this folder."""
        return f"{self.module.replace('.', '/')}.py"

    @property
    def command(self) -> str:
        """What makes the numbers."""
        return f"python -m experiments.{self.module} {self.arguments}".strip()

    @property
    def title(self) -> str:
        """The first sentence of its script."""
        tree = ast.parse((HOME / self.script).read_text(encoding="utf-8"))
        return (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")


EXPERIMENTS = {entry.name: entry for entry in (
    Experiment("ablation", "step.ablation", "--only 'stream of 3' --effort 0.05 --parts Moves 'fixed starts'"),
    Experiment("activation_choices", "step.activation_choices", "--caps 9 --rows recompute --effort 0.05"),
    Experiment("adama", "runtime.adama", "--steps 2 --seeds 1 --effort 0.02 --caps", slow=True),
    Experiment("annotations", "models.annotations", "--only 'U-Net (torch)'"),
    Experiment("any_model", "runtime.any_model", "--only 'U-Net (torch)'", slow=True),
    Experiment("any_model_ranks", "runtime.any_model_ranks", "--only 'U-Net (torch)' --ranks 2 --dtypes fp64",
               arguments="--dtypes fp64", quiet=True, rare=True),
    Experiment("bounds", "step.bounds", "--every 180 --windows 0.05", slow=True),
    Experiment("captured_costs", "runtime.captured_costs", "--only perceptron", quiet=True, rare=True),
    Experiment("co_shard", "models.co_shard", "--tokens 16384 --effort 0.02", slow=True),
    Experiment("co_shard_run", "runtime.co_shard_run", "--layers 1 --parts 2", slow=True),
    Experiment("collectives", "models.collectives", ""),
    Experiment("cut_ablation", "models.cut_ablation", "--only 'random 3' --parts carrying tries --effort 0.05",
               slow=True),
    Experiment("cut_search", "models.cut_search", "--count 1 --effort 0.5", slow=True),
    Experiment("equality", "runtime.equality", "--shapes V --ranks 2 --dtypes fp64", slow=True),
    Experiment("equality_gpu", "runtime.equality", "--shapes V --ranks 2 --dtypes fp32",
               arguments="--gpu --shapes 'V,M head,NN,tied,skip,branches' "
                         "--output experiments/results/equality_gpu.json",
               rare=True, gpu=True),
    Experiment("executed_memory", "runtime.executed_memory", "--only 'residual convolutions' --most 4", quiet=True,
               rare=True),
    Experiment("faults", "runtime.faults", "--only world", quiet=True, slow=True),
    Experiment("gpu", "runtime.gpu", "--device cpu --only offload plan --limits 4", rare=True, gpu=True),
    Experiment("gpu_plan", "runtime.gpu_plan", "--preset tiny --micro-batches 2 --repeats 1 --time-limit 1 --no-shared",
               arguments="--preset 1.3b 2.7b --optimizer adam adama", quiet=True, slow=True, gpu=True),
    Experiment("graph_pipeline_steps", "placement.graph_pipeline_steps",
               "--models mmt --devices 2 --memory 1 --effort 0.5", slow=True),
    Experiment("graph_pipelines", "placement.graph_pipelines", "--models mmt --devices 2 --replicate no --part table",
               slow=True),
    Experiment("heavy_head", "runtime.heavy_head", "--rounds 2 --repeats 2 --micro-batches 2 --seconds 1", quiet=True,
               rare=True),
    Experiment("house", "house.measures", "--before . --after .", slow=True),
    Experiment("killed_jobs", "runtime.killed_jobs", "--runs killed", quiet=True, rare=True),
    Experiment("large_specs", "models.large_specs", "--only 128 --seconds 12", rare=True),
    Experiment("layouts", "models.layouts", "--devices 2 3 --plans 2", slow=True),
    Experiment("lengths", "step.lengths", "--draws 1 --seconds 10 --memories 40GiB --micro-batches 2",
               arguments="--seconds 40", slow=True),
    Experiment("memory_plan", "placement.memory_plan", "--only GPT-1.3B --devices 4 --largest 1 --time-limit 5",
               slow=True),
    Experiment("mutants", "house.mutants", "--room judge --sample 1", arguments="--sample 18", slow=True),
    Experiment("never_worse/suite", "step.never_worse", "--count 2 --effort 0.02 --processes 1", slow=True),
    Experiment("never_worse_wide", "step.never_worse_wide", "--count 2 --effort 0.02 --processes 1", slow=True),
    Experiment("objectives", "step.objectives", "--only 'V, F, I, W = 1, 1, 1' --memories 1 --effort 0.02", slow=True),
    Experiment("offload", "placement.offload", "--sizes 1 --samples 4 --effort 0.02", slow=True),
    Experiment("open_gaps", "step.open_gaps", "--every 90 --effort 0.02", arguments="--every 12", slow=True),
    Experiment("overhead", "runtime.overhead", "--rounds 1", quiet=True, rare=True),
    Experiment("overlap", "runtime.overlap", "--repeats 1 --counts 1 8 --parts real --shape 64 64 64", quiet=True,
               slow=True),
    Experiment("overlap_programs", "models.overlap_programs",
               "--only updates values --most 16384 --optimizers sgd --ranks 2"),
    Experiment("overlap_modelled", "models.overlap_modelled", "--only tensor --models GPT --effort 0.3", slow=True),
    Experiment("placement", "placement.placement", "--only 'inception, 6'", slow=True),
    Experiment("placement_ablation", "placement.placement", "--ablation --only 'inception, 6' --limit 0.2",
               arguments="--ablation", slow=True),
    Experiment("plans_found", "models.plans_found", "--only co-shard sharded-optimizer --effort 0.05", slow=True),
    Experiment("published_costs", "step.published_costs", "--models 1.5B --shapes chain --memory 1 --effort 0.02",
               slow=True),
    Experiment("readme/comparison", "weft.readme", "--effort 0.02", slow=True),
    Experiment("recompute_classes", "step.recompute_classes", "--seconds 2 --caps 14", slow=True),
    Experiment("replay_emulated", "runtime.replay_emulated", "--only GPipe --repeats 1", quiet=True, rare=True),
    Experiment("replay_gpt", "runtime.replay_gpt", "--ranks 2 --dtypes fp64 --only GPipe", rare=True),
    Experiment("rivals", "step.rivals", "--devices 2 --shapes 'wave 3' 'chain, 2 sequence chunks' --effort 0.02",
               slow=True),
    Experiment("roofline", "models.roofline", "--fit"),
    Experiment("scale", "period.scale", "--devices 4 --shapes V --caps 1.5 --seconds 2",
               arguments="--devices 8,16,32,64,128", quiet=True),
    Experiment("share", "step.share", "--sets 3 --effort 0.05 --only none", slow=True),
    Experiment("shared_jobs", "runtime.shared_jobs", "--repeats 1", quiet=True, rare=True),
    Experiment("shared_kinds", "step.shared_kinds", "--effort 0.05 --only 'two inferences, one'"),
    Experiment("shared_periods", "step.shared_periods", "--sets 5 --ratios 1", slow=True),
    Experiment("signals", "step.signals", "--moments 1 --only solve", quiet=True, slow=True),
    Experiment("small_problems", "step.small_problems", "--count 12"),
    Experiment("streams", "step.streams", "--grids 3 --slots 2 4 --seconds 0.5"),
    Experiment("sweep_gpt/sweep", "weft.sweep_gpt", "--gib 24 --micro-batches 8 --effort 0.02 --workers 1", rare=True),
    Experiment("tessel_evaluation", "weft.tessel_evaluation",
               "--only '24.24x1024|197, batch 1$' --sizes 8 --effort 0.02", slow=True),
    Experiment("tessel_search", "period.tessel_search", "--first 2 --effort 0.02"),
    Experiment("time_limit", "step.time_limit", "--only everywhere --cpu", quiet=True, slow=True),
    Experiment("transfers", "step.transfers", "--cases 'not counted' --micro-batches 4 --effort 0.02", slow=True),
    Experiment("transfers_balanced", "step.transfers", "--head 1 --cases 'not counted' --micro-batches 4 --effort 0.02",
               arguments="--head 1 --effort 0.5 --output experiments/results/transfers_balanced.json", slow=True),
    Experiment("transports", "runtime.transports", "--rounds 1 --sizes 1024", quiet=True, rare=True),
    Experiment("unequal_gpus", "models.unequal_gpus", "--count 6"),
    Experiment("wide_random", "step.wide_random", "--count 2"),
    Experiment("worked_examples", "step.worked_examples", ""),
    Experiment("zoo_counts", "models.zoo_counts", "--only gpt"),
)}
