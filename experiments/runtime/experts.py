"""What a dense-to-sparse gate, Switch and the best two experts take to the same validation loss, in a small model.

A transformer of characters with experts in place of its feed-forward parts learns the pages of ``docs``, with three
seeds of each gate. All are compared at the loss that the worst of the runs reaches at best: steps, and floating-point
operations of the experts and of all else, forward and backward. The dense-to-sparse gate is evaluated with one expert.
Beside it, how often a monitor switches whose density is noisy, with hysteresis and without. Writes ``experts.json``.

    python -m experiments.runtime.experts
"""

from __future__ import annotations

import random
import statistics
from argparse import Namespace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.lib.provenance import ROOT, Record, Row
from experiments.lib.script import script
from weft.runtime.experts.gate import DensityMonitor, Gate, GateKind, GateTemperature
from weft.runtime.experts.layer import ExpertLayer, ExpertPlacement, experts_in

GATES: tuple[GateKind, ...] = ("dts", "switch", "top2")
EXPERTS, HIDDEN, INNER, HEADS, LAYERS, LENGTH, BATCH = 8, 64, 128, 4, 2, 64, 16
#: Steps between two evaluations.
EVERY = 25
#: Weight of the auxiliary loss, and the rate of AdamW.
BALANCE, RATE = 0.01, 3e-3


class Characters(nn.Module):
    """A decoder over ``vocabulary`` characters."""

    def __init__(self, vocabulary: int, kind: GateKind, steps: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.attention = nn.ModuleList(nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2 * LAYERS + 1))
        temperature = GateTemperature(2.0, 0.1, max(1, steps // 2))
        self.experts = nn.ModuleList(ExpertLayer(
            Gate(HIDDEN, EXPERTS, kind, temperature=temperature, hard_at=steps * 2 // 3), HIDDEN, INNER,
            ExpertPlacement.even(EXPERTS, 1)) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, vocabulary)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight
        for i, (attention, experts) in enumerate(zip(self.attention, self.experts, strict=True)):
            y = self.norms[2 * i](x)
            x = x + attention(y, y, y, attn_mask=self.future, need_weights=False)[0]
            x = x + experts(self.norms[2 * i + 1](x))
        found: Tensor = self.head(self.norms[-1](x))
        return found

    @property
    def flops(self) -> float:
        """Of the last batch's forward and backward, products only: three times the forward."""
        tokens = BATCH * LENGTH
        dense = LAYERS * (8 * HIDDEN**2 + 4 * LENGTH * HIDDEN) + 2 * HIDDEN * self.head.out_features
        return 3.0 * (tokens * dense + sum(layer.entries for layer in experts_in(self).values()) * 4 * HIDDEN * INNER)


def text() -> tuple[Tensor, Tensor, int]:
    """Characters to learn from, those held back (the last tenth), and how many there are."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    known = sorted(set(pages))
    ids = torch.tensor([known.index(letter) for letter in pages])
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:], len(known)


def batch(ids: Tensor, draw: torch.Generator) -> Tensor:
    """Sequences with the character behind each."""
    at = torch.randint(len(ids) - LENGTH - 1, (BATCH,), generator=draw)
    return torch.stack([ids[i:i + LENGTH + 1] for i in at.tolist()])


def loss_of(model: Characters, rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def run(kind: GateKind, seed: int, steps: int, data: tuple[Tensor, Tensor, int]) -> Row:
    """One training: at each evaluation the step, the loss, operations so far and the density."""
    train, held, vocabulary = data
    torch.manual_seed(seed)
    model = Characters(vocabulary, kind, steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    draw = torch.Generator().manual_seed(1000 + seed)
    fixed = torch.Generator().manual_seed(7)
    tests = [batch(held, fixed) for _ in range(8)]
    flops, points = 0.0, []
    for step in range(steps):
        model.train()
        for layer in experts_in(model).values():
            layer.gate.step = step
        loss = loss_of(model, batch(train, draw))
        total = loss + BALANCE * sum(layer.loss for layer in experts_in(model).values())
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        flops += model.flops
        if (step + 1) % EVERY == 0:
            density = statistics.mean(layer.density for layer in experts_in(model).values())
            model.eval()
            with torch.no_grad():
                found = statistics.mean(float(loss_of(model, rows)) for rows in tests)
            points.append({"step": step + 1, "loss": round(found, 4), "gflops": round(flops / 1e9, 2),
                           "density": round(density, 3)})
    print(kind, seed, points[-1], flush=True)
    return {"gate": kind, "seed": seed, "best": min(point["loss"] for point in points), "points": points}


def reached(row: Row, loss: float) -> Row:
    """When a run first has ``loss``."""
    return next({"step": point["step"], "gflops": point["gflops"]} for point in row["points"] if point["loss"] <= loss)


def switches(noise: float, seed: int) -> dict[str, int]:
    """Of a density that falls from 8 to 1 in 2000 steps with this relative noise, past three borders."""
    draw = random.Random(seed)
    densities = [(8 - 7 * i / 2000) * (1 + draw.gauss(0, noise)) for i in range(2001)]
    found = {}
    borders = [6.0, 4.0, 2.0]
    for name, monitor in (("with", DensityMonitor(borders)),
                          ("without", DensityMonitor(borders, margin=0.0, share=1.0))):
        phases = [0, *(monitor.update(density) for density in densities)]
        found[name] = sum(before != after for before, after in pairwise(phases))
    return found


@script("experts.json", steps=900, seeds=3)
def main(options: Namespace, record: Record) -> None:
    torch.set_num_threads(1)
    data = text()
    rows = [run(kind, seed, options.steps, data) for seed in range(options.seeds) for kind in GATES]
    target = max(row["best"] for row in rows)
    summary = {}
    for kind in GATES:
        mine = [row for row in rows if row["gate"] == kind]
        own = [reached(row, target) for row in mine]
        summary[kind] = {"steps": round(statistics.mean(entry["step"] for entry in own), 1),
                         "gflops": round(statistics.mean(entry["gflops"] for entry in own), 1),
                         "best": round(statistics.mean(row["best"] for row in mine), 4)}
    monitor = [{"noise": noise, "seed": seed, **switches(noise, seed)}
               for noise in (0.05, 0.1, 0.2) for seed in range(3)]
    record.write({"steps": options.steps, "seeds": options.seeds, "loss": target, "gates": summary,
                  "monitor": monitor, "rows": rows})
    print(target, summary)
