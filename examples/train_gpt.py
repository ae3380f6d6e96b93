"""A small GPT trained as a pipeline, by the script that a user writes.

    torchrun --standalone --nproc-per-node=2 examples/train_gpt.py
    weft train examples/train_gpt.py:setup --gpus 2 --steps 20      # the same, started by weft

Nothing in the model knows of stages. Both leave nothing behind; with a folder as its argument the script puts
``gpt.pt`` there, what the plain model loads, and ``run.png``, the measured step under the planned one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import weft

WORDS, LENGTH, WIDTH, ROWS = 97, 32, 64, 16


class GPT(nn.Module):
    """Layers of torch, and a head whose weight is the embedding's."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        x = self.words(ids) + self.places(torch.arange(length, device=ids.device))
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))


def loss_fn(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over the micro-batch."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def batches(count: int, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts of twelve words, in which each says what the next one is."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        first = torch.randint(12, (ROWS, 1), generator=generator)
        text = (first + 5 * torch.arange(LENGTH + 1)) % 12
        yield text[:, :-1], text[:, 1:]


def setup() -> dict[str, object]:
    """What ``weft train`` asks for."""
    torch.manual_seed(0)
    (ids, labels), = batches(1)
    return {"module": GPT(), "args": (ids,), "loss": loss_fn, "target": labels, "data": list(batches(100)),
            "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3), "micro_batches": 4}


def main() -> None:
    """What each rank does."""
    torch.manual_seed(0)
    model, ((ids, labels),) = GPT(), batches(1)
    pipe = weft.pipeline(model, (ids,), loss=loss_fn, target=labels, micro_batches=4)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
    for step, (ids, labels) in enumerate(batches(20)):
        loss = pipe.step(ids, target=labels)
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and step % 5 == 4:
            print(f"step {step + 1}  loss {loss:.4f}")
    state, report = pipe.state_dict(), pipe.report()  # all ranks call these together
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if folder is not None:
        pipe.draw(str(folder / "run.png"))
    if pipe.rank == 0:
        print(report)
        if folder is not None:
            torch.save(state, folder / "gpt.pt")


if __name__ == "__main__":
    main()
