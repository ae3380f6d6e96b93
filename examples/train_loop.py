"""A training loop with what a Trainer has, as a pipeline: written once, it runs on one process and on many.

    torchrun --standalone --nproc-per-node=2 examples/train_loop.py FOLDER
    torchrun --standalone --nproc-per-node=4 examples/train_loop.py FOLDER --data 2     # two copies of two stages

``Accelerated`` takes the places that ``accelerate.Accelerator`` and a Trainer's inner loop have: accumulation,
clipping, a warm-up of the learning rate, lengths in buckets, a smaller last batch, evaluation, checkpoints that the
script goes on from when it is started again. Nothing in it knows of stages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import weft

if TYPE_CHECKING:
    from weft.app.pipeline.run.pipe import PipelineEngine

sys.path.insert(0, str(Path(__file__).parent))
from train_gpt import GPT, LENGTH

ROWS = 16


def loss_fn(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the labels that count, and how many these are: batches and micro-batches may have any number."""
    total = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return total, (labels != -100).sum()


@dataclass(frozen=True)
class Texts:
    """``count`` texts, of which those of one bucket are padded to one length: each copy reads its share of a batch."""

    count: int
    seed: int

    def batches(self, copy: int, copies: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Each text says what its next word is. The last batch is a smaller one."""
        generator = torch.Generator().manual_seed(self.seed)
        for begin in range(0, self.count, ROWS * copies):
            rows = min(ROWS * copies, self.count - begin)
            length = (LENGTH, LENGTH // 2)[begin // (ROWS * copies) % 2]  # of the bucket
            first = torch.randint(12, (rows, 1), generator=generator)
            text = (first + 5 * torch.arange(length + 1)) % 12
            labels = text[:, 1:].clone()
            for row in range(rows):
                labels[row, length - row % 4:] = -100  # padding
            share = slice(copy * rows // copies, (copy + 1) * rows // copies)
            yield text[share, :-1], labels[share]


class Accelerated:
    """A loop over batches: two are one step of the optimizer."""

    def __init__(self, pipe: PipelineEngine, folder: Path, batches: int = 2) -> None:
        self.pipe, self.folder, self.batches = pipe, folder, batches
        self.optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 5))
        self.behind = pipe.resume(folder, self.optimizer, extra={"rate": self.rate})

    def train(self, texts: Texts, epochs: int) -> None:
        """Go on to the end of that many epochs, with a checkpoint and an evaluation after each."""
        copy, copies = self.pipe.session.replica, self.pipe.session.replicas
        for epoch in range(epochs):
            batches = list(texts.batches(copy, copies))
            if self.behind >= (epoch + 1) * len(batches):
                continue  # it was done before the checkpoint
            for begin in range(0, len(batches), self.batches):
                group = batches[begin:begin + self.batches]
                with self.pipe.accumulate(len(group)):
                    losses = [self.pipe.step(ids, target=labels) for ids, labels in group]
                torch.nn.utils.clip_grad_norm_(self.pipe.parameters(), 1.0)
                self.optimizer.step()
                self.rate.step()
                self.optimizer.zero_grad()
            ids, labels = next(Texts(ROWS * copies // 2, seed=99).batches(copy, copies))
            found = self.pipe.eval_step(ids, target=labels)
            path = self.pipe.save(self.folder, self.optimizer, keep=2, extra={"rate": self.rate})
            if self.pipe.rank == copy == 0:
                print(f"epoch {epoch + 1}  loss {losses[-1]:.4f}  evaluation {found:.4f}  saved {path.name}")


def main() -> None:
    """What each rank does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    torch.manual_seed(0)
    ids, labels = next(Texts(ROWS * asked.data, seed=1).batches(0, asked.data))
    with weft.pipeline(GPT(), (ids,), loss=loss_fn, target=labels, micro_batches=4, data=asked.data,
                       time_limit=2.0) as pipe:
        Accelerated(pipe, asked.folder).train(Texts(74 * asked.data, seed=1), asked.epochs)


if __name__ == "__main__":
    main()
