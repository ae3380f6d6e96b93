"""What several backends for one model bring on this CPU, beside eager torch and beside the best single backend.

Each model is exported, its parts are measured (``weft.place_backends``), and what was chosen is run once more beside
the best single backend, in turn, each beside eager: medians of pairs of one run, on one thread. BERT, GPT-2 and Mixtral
are those of transformers, with few layers; ResNet-50, MobileNet v2, a NASNet cell stack and DCGAN's generator are
written here. Writes ``backends.json``.

    python -m experiments.runtime.backends
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from experiments.lib.foreign_models import Residual
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.app.place.backends import choice_of
from weft.runtime.backends.measuring import Measuring, measuring
from weft.runtime.backends.registry import backends_named
from weft.solver.placement.cover.search import alone

LENGTH, PIXELS, BATCHES = 64, 96, (1, 8)
#: Processes in each of which the choice runs beside eager, and as many beside the best single backend.
PAIRS = 3


def conv(a: int, b: int, size: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """A convolution with batch norm, and a rectifier."""
    return nn.Sequential(nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b),
                         *([nn.ReLU()] if act else []))


def resnet50() -> nn.Module:
    """ResNet-50 (He et al., 2015)."""
    parts: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for i, count in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**i
        for j in range(count):
            stride = 2 if i and not j else 1
            way = None if j else conv(width, 4 * inner, 1, stride, act=False)
            parts.append(Residual(nn.Sequential(conv(width, inner, 1), conv(inner, inner, 3, stride),
                                                conv(inner, 4 * inner, 1, act=False)), way))
            width = 4 * inner
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def mobilenet() -> nn.Module:
    """MobileNet v2 (Sandler et al., 2018)."""
    parts: list[nn.Module] = [conv(3, 32, 3, 2)]
    width = 32
    for factor, out, count, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                      (6, 160, 3, 2), (6, 320, 1, 1)):
        for j in range(count):
            stride, inner = (first if not j else 1), width * factor
            block = nn.Sequential(*([conv(width, inner, 1)] if factor > 1 else []),
                                  conv(inner, inner, 3, stride, inner), conv(inner, out, 1, act=False))
            parts.append(Residual(block, act=False) if j else block)
            width = out
    return nn.Sequential(*parts, conv(width, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class NasCell(nn.Module):
    """Branches as in a NASNet cell (Zoph et al., 2018): separable convolutions, pools and the input, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        quarter = width // 4
        self.into = conv(width, quarter, 1)
        self.wide, self.narrow = (nn.Sequential(conv(quarter, quarter, size, groups=quarter, act=False),
                                                conv(quarter, quarter, 1)) for size in (5, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        mean, most = F.avg_pool2d(y, 3, 1, 1), F.max_pool2d(y, 3, 1, 1)
        return torch.cat([self.wide(y) + y, self.narrow(y) + mean, most + y, self.wide(mean) + self.narrow(most)], 1)


def nasnet() -> nn.Module:
    """Six cells, at two sizes."""
    return nn.Sequential(conv(3, 64, 3, 2), *(NasCell(64) for _ in range(3)), conv(64, 128, 3, 2), *(
        NasCell(128) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000))


def dcgan() -> nn.Module:
    """The generator of DCGAN (Radford et al., 2015), 64 pixels wide."""
    parts: list[nn.Module] = []
    for a, b, stride, padding in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        parts += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


def of_transformers(config: str, model: str, **sizes: Any) -> Callable[[], nn.Module]:
    """A model of transformers whose result is one tensor."""
    def made() -> nn.Module:
        library: Any = import_module("transformers")
        return First(getattr(library, model)(getattr(library, config)(**sizes, attn_implementation="sdpa")))

    return made


class First(nn.Module):
    """The first result of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, use_cache=False, return_dict=False)[0]
        return found


_TEXT = {"vocab_size": 8192}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "DCGAN": (dcgan, lambda n: torch.randn(n, 100, 1, 1)),
    "GPT-2": (of_transformers("GPT2Config", "GPT2LMHeadModel", n_layer=2, n_embd=256, n_head=4, **_TEXT),
              lambda n: torch.randint(8192, (n, LENGTH))),
    "MobileNet v2": (mobilenet, lambda n: torch.randn(n, 3, PIXELS, PIXELS)),
    "BERT": (of_transformers("BertConfig", "BertModel", num_hidden_layers=2, hidden_size=256, num_attention_heads=4,
                             intermediate_size=1024, **_TEXT), lambda n: torch.randint(8192, (n, LENGTH))),
    "NASNet cells": (nasnet, lambda n: torch.randn(n, 3, PIXELS, PIXELS)),
    "Mixtral": (of_transformers("MixtralConfig", "MixtralForCausalLM", num_hidden_layers=2, hidden_size=256,
                                intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
                                num_local_experts=4, experts_implementation="batched_mm", **_TEXT),
                lambda n: torch.randint(8192, (n, LENGTH))),
    "ResNet-50": (resnet50, lambda n: torch.randn(n, 3, PIXELS, PIXELS)),
}


def row(name: str, batch: int, options: Namespace) -> Row:
    """One model at one batch: seconds of a call, by pairs with eager."""
    made, example = MODELS[name]
    began = time.monotonic()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        with torch.no_grad():
            module, inputs = made().eval().to(options.device), (example(batch).to(options.device),)
            torch.export.save(torch.export.export(module, inputs, strict=False), path)
        found = weft.place_backends(path, backends=options.backends, time_limit=options.seconds,
                                    measure_limit=options.measure, trial_limit=options.trial)
        singles = {backend: seconds for backend, seconds in (found.assignment.alone or {}).items()}
        best = min(singles, key=singles.__getitem__)
        usable, _ = backends_named(options.backends, options.device)
        by_itself = alone(found.cover.problem, best)
        is_single, choice = by_itself.chosen == found.cover.chosen, choice_of(found.cover)
        with measuring(path, usable, folder=None, limit=options.trial,
                       shared=options.device == "cuda") as own:
            own_share = statistics.median(ratio(own, choice) for _ in range(PAIRS))
            over_single = 1.0 if is_single else statistics.median(
                ratio(own, choice, choice_of(by_itself)) for _ in range(PAIRS))
    eager = found.assignment.eager or math.nan
    return {"model": name, "batch": batch, "kinds": found.candidates,
            "eager_ms": round(eager * 1e3, 3), "single": best, "single_over_eager": round(own_share / over_single, 4),
            "over_eager": round(own_share, 4), "over_single": round(over_single, 4),
            "predicted_over_measured": round(found.assignment.predicted / (own_share * eager), 4),
            "backends": sorted({part.backend for part in found.assignment.parts}),
            "minutes": round((time.monotonic() - began) / 60, 2)}


def ratio(own: Measuring, choice: Any, beside: Any = ()) -> float:
    """What ``choice`` takes over eager, or what else runs ``beside`` it."""
    found = own.whole(choice, beside)
    return math.inf if found.refused is not None else found.seconds / found.eager


def mean(rows: Sequence[Row], field: str) -> float:
    """The geometric mean of a field."""
    return round(math.exp(statistics.mean(math.log(each[field]) for each in rows)), 4)


@script("backends.json", only="", batches=BATCHES, device="cpu", backends="all", go_on=False, seconds=10.0,
        measure=150.0, trial=120.0)
def main(options: Namespace, record: Record) -> None:
    known: list[Row] = json.loads(options.output.read_text())["rows"] if options.go_on else []
    done = {(each["model"], each["batch"]) for each in known}
    skipped = [] if find_spec("transformers") else ["BERT", "GPT-2", "Mixtral"]
    further = (row(name, batch, options) for batch in options.batches for name in MODELS
               if options.only in name and name not in skipped and (name, batch) not in done)
    record.rows(chain(known, further), lambda rows: {f"mean_{field}": mean(rows, field) for field in (
        "over_eager", "over_single", "predicted_over_measured")}, measure=options.measure, skipped=skipped)
