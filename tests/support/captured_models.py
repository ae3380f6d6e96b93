"""Small models of plain torch, written as one module, that captures are tried on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.attend(self.before(x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
        x = x + self.project(scores.softmax(-1) @ v)
        return x + self.narrow(nn.functional.gelu(self.wide(self.after(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Positions and a mask made of the ids' shape, and a head whose weight is the embedding's."""

    def __init__(self, layers: int = 3, width: int = 16, words: int = 23, length: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        x = self.words(ids) + self.places(torch.arange(length, device=ids.device))
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Counts(nn.Module):
    """A linear layer of a buffer, which each forward writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.bank: Tensor
        self.register_buffer("bank", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.bank.add_(x.mean(0))
        return self.layer(self.bank)  # type: ignore[no-any-return]


class Checkpointed(GPT):
    """Its layers under ``torch.utils.checkpoint``, the last in a call within a call."""

    reentrant = False

    def forward(self, ids: Tensor) -> Tensor:
        def again(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            found: Tensor = checkpoint(run, x, use_reentrant=self.reentrant)
            return found

        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        for layer in self.layers[:-1]:
            x = again(lambda y, layer=layer: layer(y, mask), x)  # type: ignore[misc]
        x = again(lambda y: again(lambda z: self.layers[-1](z, mask), y), x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Skip(nn.Module):
    """What the first layer gives is read by the last one too; it gives a dictionary, and writes in place."""

    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(2 * width, 1)
        self.inner = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, *, factor: float = 1.0) -> dict[str, Any]:
        early = self.first(x)
        y = early
        for layer in self.inner:
            y = torch.relu_(layer(y)) * self.scale
            y += early
        return {"y": self.last(torch.cat([y * factor, early], -1)), "n": 3, "early": early}


class Masked(nn.Module):
    """Whole numbers are made by one part and read by the next: the places of the largest values; and it gives its own
    loss, with running statistics."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.table, self.out = nn.Embedding(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor, labels: Tensor | None = None) -> tuple[Tensor, ...]:
        y = self.norm(self.into(x))
        best = y.argmax(-1)
        high, low = y.split([5, 3], -1)
        z = torch.cat([low, high], -1) + self.table(best)
        z = self.out(z.masked_fill(~keep[:, None], 0.0))
        return (z,) if labels is None else (nn.functional.cross_entropy(z, labels), z)


class Towers(nn.Module):
    """Two rows of layers that do not read each other, joined at the end."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.right = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.join = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.join(torch.cat([self.left(x), self.right(other)], -1))  # type: ignore[no-any-return]


class Thinking(nn.Module):
    """A layer that looks at its numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[x.abs().sum(-1) > 1]  # its shape depends on data
        return (self.one if chosen.mean().item() > 0 else self.other)(x).tanh()  # type: ignore[no-any-return]


class Branches(nn.Module):
    """What ``torch.export`` refuses: Python looks at numbers inside layers and between them. The norm is run in some
    micro-batches and not in others, and the way to it begins in one stage and is taken in all."""

    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, width), nn.Linear(width, 1)
        self.layers, self.norm = nn.ModuleList([Thinking(width) for _ in range(layers)]), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = early = self.into(x) * self.scale
        for i, layer in enumerate(self.layers):
            h = layer(h)
            if i % 2 == 0 and h.mean() > 0:
                h = self.norm(h)
        h = h + early * float((x > 0).double().mean())
        return self.out(h)  # type: ignore[no-any-return]


class Translator(nn.Module):
    """An encoder whose result each layer of the decoder reads."""

    def __init__(self, width: int = 8, words: int = 11, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
                                      for _ in range(layers)])
        self.drop = nn.Dropout(0.1)

    def forward(self, source: Tensor, target: Tensor, *, keep: Tensor) -> dict[str, Tensor]:
        memory = self.drop(self.words(source))
        for layer in self.encoder:
            memory = layer(memory, keep[:, None, :])
        y = self.words(target)
        for layer in self.decoder:
            y = layer(y, memory, memory_key_padding_mask=~keep)
        return {"scores": y @ self.words.weight.T, "memory": memory}


def scores_loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return token_loss(output["scores"], target)


class Adapted(nn.Module):
    """A frozen part that is read twice, a trained part behind it, a frozen head; with dropout in all of them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 64), nn.Dropout(0.2), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                                     nn.Linear(64, width))
        self.adapter, self.drop = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)), nn.Dropout(0.4)
        self.head = nn.Linear(width, 1)
        self.encoder.requires_grad_(False)
        self.head.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        return self.head(self.drop(torch.tanh(self.adapter(x)) + x))  # type: ignore[no-any-return]


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


class LearnedLoss(nn.Module):
    """A loss with a parameter of its own, and a buffer that counts."""

    seen: Tensor

    def __init__(self, words: int = 23) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, words, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.seen += 1
        return token_loss(output * self.scale, target)


def halved(model: nn.Module) -> nn.Module:
    """``model``, where a hook halves the gradient of the first matrix that is no table."""
    next(p for name, p in model.named_parameters() if p.dim() == 2 and name.startswith("layers")).register_hook(
        lambda gradient: gradient / 2)  # type: ignore[no-untyped-call]
    return model


def mean_loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output["y"], target) + 0.1 * output["early"].square().mean()


class Case(NamedTuple):
    """A model, what a batch of ``size`` is, its loss (``None``: its own), and its target."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[..., Tensor] | None
    target: Any


CASES = ("gpt", "skip", "masked", "towers")


def made(name: str, size: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Case:
    """The case called ``name`` for a batch of ``size``: the same model for each size and seed of the data."""
    models: dict[str, Callable[[], nn.Module]] = {
        "gpt": GPT, "short": partial(GPT, 2), "skip": Skip, "masked": Masked, "towers": Towers, "branches": Branches,
        "translator": Translator, "adapted": Adapted}
    torch.manual_seed(7)
    with torch.device(device):
        model = models[name]().to(dtype)
    torch.manual_seed(seed)
    if name in ("gpt", "short"):
        return Case(model, (torch.randint(23, (size, 10)),), {}, token_loss, torch.randint(23, (size, 10)))
    x = torch.randn(size, 8, dtype=dtype)
    if name == "skip":
        return Case(model, (x,), {"factor": 0.5}, mean_loss, torch.randn(size, 1, dtype=dtype))
    if name == "branches":
        return Case(model, (x,), {}, nn.functional.mse_loss, torch.randn(size, 1, dtype=dtype))
    if name == "translator":
        source, target = torch.randint(11, (size, 6)), torch.randint(11, (size, 5))
        return Case(model, (source, target), {"keep": torch.arange(6) < torch.randint(3, 7, (size, 1))}, scores_loss,
                    torch.randint(11, (size, 5)))
    if name == "towers":
        other = torch.randn(size, 8, dtype=dtype)
        return Case(model, (x, other), {}, nn.functional.mse_loss, torch.randn(size, 1, dtype=dtype))
    if name == "adapted":
        return Case(model, (x,), {}, nn.functional.mse_loss, torch.randn(size, 1, dtype=dtype))
    return Case(model, (x, torch.rand(size) > 0.2), {"labels": torch.randint(8, (size,))}, None, None)
