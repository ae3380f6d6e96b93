"""Every experiment that keeps a file: what it runs, and how to try it in small."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, ROOT

HOME = ROOT / "experiments"


@dataclass(frozen=True)
class Experiment:
    """``name`` is its file's, without ``.json``; ``arguments`` are those of the numbers that are kept, ``smoke`` those
    of a run of seconds, ``check`` those of a run of a minute or so whose figures are some of those that are kept, where
    they do not depend on the machine. ``quiet``: it takes times of the clock, which need a machine with nothing else to
    do. ``slow``: its smoke run takes more than some seconds; ``rare``: so long that the suite leaves it out (``python
    -m pytest -m rare`` runs these). ``gpu``: its numbers are those of a GPU; its smoke run takes the CPU."""

    name: str
    module: str
    smoke: str
    arguments: str = ""
    check: str | None = None
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
        """The first paragraph of its script, or the first sentence that it says of the first argument."""
        tree = ast.parse((HOME / self.script).read_text(encoding="utf-8"))
        first, *rest = (ast.get_docstring(tree) or "").replace("\n\n", "\0").replace("\n", " ").split("\0")
        flag = f"``{self.arguments.partition(' ')[0]}``: "
        for part in rest:
            if found := re.match(rf"{flag}(\w)(.*?[.?])( |$)", part):
                return (found[1].upper() + found[2]).rstrip(".")
        return first.rstrip(".")


EXPERIMENTS = {entry.name: entry for entry in (
    Experiment("readme/comparison", "weft.readme", "--effort 0.02", check="", slow=True),
    Experiment("never_worse/suite", "step.never_worse", "--count 2 --effort 0.02 --processes 1",
               check="--count 3", slow=True),
    Experiment("never_worse_sample", "step.never_worse", "--count 1 --effort 0.02 --processes 1",
               arguments="--every 45 --effort 0.2 --processes 1 --output experiments/results/never_worse_sample.json"),
    Experiment("never_worse_wide", "step.never_worse", "--family wide --count 2 --effort 0.02 --processes 1",
               arguments="--family wide", check="--family wide --count 3", slow=True),
    Experiment("published_costs", "step.never_worse", "--family costs --count 1 --effort 0.02 --processes 1",
               arguments="--family costs", check="--family costs --count 2", slow=True),
    Experiment("rivals", "step.never_worse", "--family shapes --count 2 --effort 0.02 --processes 1",
               arguments="--family shapes", check="--family shapes --count 12"),
    Experiment("streams", "step.streams", "--grids 3 --slots 2 4 --seconds 0.5", check="--grids 2 3 --slots 2 3"),
    Experiment("cut_search", "models.cut_search", "--count 1 --effort 0.5", check="--count 1", slow=True),
    Experiment("cut_ablation", "models.cut_search",
               "--ablation --only 'random 3' --parts carrying tries --effort 0.05", arguments="--ablation --effort 8",
               check="--ablation --effort 8 --only 'random 3' --parts carrying", slow=True),
    Experiment("tessel_search", "period.scale", "--tessel --first 2 --effort 0.02", arguments="--tessel",
               check="--tessel --first 4"),
    Experiment("scale", "period.scale", "--devices 4 --shapes V --caps 1.5 --seconds 2",
               arguments="--devices 8,16,32,64,128", check="--devices 8 --shapes V --caps 1.5,2.0", quiet=True),
    Experiment("ablation", "step.ablation", "--only 'stream of 3' --effort 0.05 --parts Moves 'fixed starts'",
               arguments="--effort 0.1", check="--only 'stream of 3' --parts Moves 'fixed starts'", slow=True),
    Experiment("ablation_period", "step.ablation", "--period --only 'suite' --every 200 --effort 0.05 --parts v-shape",
               arguments="--period --effort 1", slow=True),
    Experiment("annealer", "step.annealer", "--every 270 --weft 0.3 --seconds 0.2", slow=True),
    Experiment("roofline", "models.roofline", "--fit", check="--fit"),
    Experiment("configs", "models.configs", "--only gpt2", check=""),
    Experiment("collectives", "models.collectives", "", check=""),
    Experiment("grids", "models.grids", "--only 22B --seconds 0", arguments="--seconds 15", quiet=True),
    Experiment("tessel_evaluation", "weft.tessel_evaluation",
               "--only '24.24x1024|197, batch 1$' --sizes 8 --effort 0.02", check="--only ', batch 1$'", slow=True),
    Experiment("placement", "placement.placement", "--only 'inception, 6'", check="--only 'inception, 6'", slow=True),
    Experiment("offload", "placement.offload", "--sizes 1 --samples 4 --effort 0.02", check="--sizes 1", slow=True),
    Experiment("overlap_modelled", "models.overlap_modelled", "--only tensor --models GPT --effort 0.3",
               check="--only tensor --models GPT", slow=True),
    Experiment("share", "step.share", "--effort 0.05 --only 'two inferences, one'",
               check="--only 'two inferences, one'"),
    Experiment("annotations", "models.annotations", "--only 'U-Net (torch)'",
               check="--only 'U-Net (torch)' 'Transformer (torch)'"),
    Experiment("plans_found", "models.plans_found", "--only co-shard sharded-optimizer --effort 0.05",
               check="--only co-shard sharded-optimizer", slow=True),
    Experiment("family", "models.family", "--only '80 GiB' --seconds 0.5", quiet=True, slow=True),
    Experiment("switching", "models.family", "--emulated --solve 1 --step 0.5", arguments="--emulated", quiet=True,
               rare=True),
    Experiment("graph_network", "models.graph_network",
               "--scale 0.02 --data . --chunks 4 --loads 1 --repeats 1 --seconds 1", quiet=True, slow=True),
    Experiment("experts", "runtime.experts", "--steps 25 --seeds 1", slow=True),
    Experiment("backends", "runtime.backends", "--only DCGAN --backends eager --measure 1", quiet=True, rare=True),
    Experiment("equality", "runtime.equality", "--shapes V --ranks 2 --dtypes fp64",
               check="--shapes V --ranks 2 --dtypes fp64", slow=True),
    Experiment("any_model_ranks", "runtime.any_model_ranks", "--only 'U-Net (torch)' --layouts 2 --dtypes fp64",
               arguments="--dtypes fp64", quiet=True, rare=True),
    Experiment("model_types_ranks", "runtime.any_model_ranks",
               "--types --only 'bert (MaskedLM)' --layouts 2 --dtypes fp64 --schedules 1f1b --recompute 0",
               arguments="--types --dtypes fp64 --schedules 1f1b --recompute 0 --layouts 2x2 2 3", rare=True),
    Experiment("captured_costs", "runtime.captured_costs", "--only perceptron", quiet=True, rare=True),
    Experiment("overhead", "runtime.beside_torch", "--tiny --rounds 1", arguments="--tiny", quiet=True, rare=True),
    Experiment("beside_torch", "runtime.beside_torch", "--only 'five equal blocks' --rounds 1", quiet=True, rare=True),
    Experiment("overlap_sums", "runtime.overlap_sums", "--steps 1", quiet=True, rare=True),
    Experiment("gpu_plan", "runtime.gpu_plan", "--preset tiny --micro-batches 2 --repeats 1 --time-limit 1 --no-shared",
               arguments="--preset 1.3b 2.7b --optimizer adam adama", quiet=True, slow=True, gpu=True),
    Experiment("equality_gpu", "runtime.equality", "--shapes V --ranks 2 --dtypes fp32", rare=True, gpu=True,
               arguments="--gpu --shapes 'V,M head,NN,tied,skip,branches' "
                         "--output experiments/results/equality_gpu.json"),
    Experiment("gpu_layers", "runtime.gpu_layers", "--models gpt2 --tokens 64", rare=True, gpu=True),
    Experiment("gpu", "runtime.gpu", "--device cpu --only offload plan --limits 4", rare=True, gpu=True),
)}
