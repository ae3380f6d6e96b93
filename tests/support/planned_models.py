"""Whole models of plain torch, in fp64, for plans: a GPT, a vision transformer, convolutions, a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Block(nn.Module):
    """A pre-norm transformer block of which queries, keys and values are one projection."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        seen = f.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(f.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Tokens and places, blocks, a head, the loss of the next token."""

    def __init__(self, vocabulary: int = 24, length: int = 8, width: int = 16, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads, causal=True) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor, target: Tensor) -> Tensor:
        x = self.tokens(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return f.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


class Vision(nn.Module):
    """Patches by a convolution, a token for the class, blocks, classes."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.ModuleList([Block(width, heads, causal=False)])
        self.head = nn.Linear(width, 8)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return f.cross_entropy(self.head(x[:, 0]), target)


class Convolutions(nn.Module):
    """Two stages of convolutions with batch norm, a skip connection, groups and pooling; statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.groups, self.head = nn.GroupNorm(4, 8), nn.Linear(8 * 4, 8)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = f.max_pool2d(f.relu(self.norm(self.stem(image))), 2)
        x = f.relu(x + self.groups(self.two(f.relu(self.one(x)))))
        return f.cross_entropy(self.head(f.adaptive_avg_pool2d(x, 2).flatten(1)), target)


class Experts(nn.Module):
    """Each token through its two best experts, weighted by the gate: experts are one weight of three dimensions."""

    def __init__(self, width: int = 8, count: int = 4, hidden: int = 16) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(count, width, hidden)), nn.Parameter(
            torch.randn(count, hidden, width))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores, best = self.gate(x).softmax(-1).topk(2, -1)
        weights = torch.zeros_like(x[..., :self.up.shape[0]]).scatter(-1, best, scores)
        every = x.flatten(0, 1).expand(self.up.shape[0], -1, -1)
        every = torch.einsum("ebf,efw->ebw", f.silu(torch.einsum("ebw,ewf->ebf", every, self.up)), self.down)
        mixed = torch.einsum("ebw,be->bw", every, weights.flatten(0, 1))
        return f.mse_loss(mixed, target.flatten(0, 1))


def _images() -> tuple[Tensor, ...]:
    return torch.randn(4, 3, 8, 8), torch.randint(8, (4,))


def _words() -> tuple[Tensor, ...]:
    return torch.randint(24, (4, 8)), torch.randint(24, (4, 8))


#: By name: the module, and what it is called with.
CAPTURED: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gpt": (Gpt, _words), "vision": (Vision, _images), "convolutions": (Convolutions, _images),
    "experts": (Experts, lambda: (torch.randn(4, 4, 8), torch.randn(4, 4, 8)))}


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model of that name and an input, always with the same numbers, in fp64."""
    torch.manual_seed(0)
    module, example = CAPTURED[name][0]().double(), CAPTURED[name][1]()
    return module, tuple(one.double() if one.is_floating_point() else one for one in example)
