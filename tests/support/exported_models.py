"""Small models of the kinds people export, with inputs for them; each is new at every call, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.models.capture.capture import save_exported


class Attention(nn.Module):
    """A pre-norm transformer block of its own code, heads cut out of one projection as views."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return y


class Residual(nn.Module):
    """A convolutional network with batch norm, a skip connection and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        x = self.branch(x).add_(x).relu_()
        y: Tensor = self.head(nn.functional.max_pool2d(x, 2).flatten(1))
        return y


class Tied(nn.Module):
    """An embedding whose table is the head's weight too; gives the loss and the scores."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList([Attention() for _ in range(blocks)])
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, text: Tensor, target: Tensor) -> dict[str, Tensor]:
        x = self.table(text)
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten()), "scores": scores}


class TiedByView(nn.Module):
    """The table is read as ``x @ table.t()``."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)

    def forward(self, text: Tensor) -> Tensor:
        x = torch.tanh(self.table(text))
        y: Tensor = x @ self.table.weight.t()
        return y.log_softmax(-1)


class Towers(nn.Module):
    """Two towers that meet in a concatenation; one layer is frozen, one part runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 8))
        self.right = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 8))
        self.top = nn.Linear(16, 3)
        self.right[2].weight.requires_grad_(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            scale = a.abs().mean(-1, keepdim=True) + self.left[0](a).amax(-1, keepdim=True)
        x = torch.cat([self.left(a) * scale, self.right(b)], -1)
        y: Tensor = self.top(x).softmax(-1)
        return y


class Written(nn.Module):
    """Writes into parts of a tensor that is read later by its old name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) * 2
        y[:, 0].mul_(3.0)
        left, right = y.chunk(2, -1)
        z: Tensor = self.b(y).sigmoid() + torch.cat([right, left], -1)
        return z


class Applied(nn.Module):
    """``function(parts, *inputs)`` as a module."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.parts, *inputs)


def _written(p: nn.ModuleList, x: Tensor) -> Tensor:
    zero: Tensor = torch.zeros(6, 4) + p[0](x)
    zero.narrow(0, 0, 2).copy_(p[0](x)[:2])
    return zero.cos()


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1), 2,
                                 enable_nested_tensor=False)


def _text(*shape: int) -> Tensor:
    return torch.randint(32, shape)


#: Name -> how to make the module, and its inputs.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)),
            lambda: (torch.randn(5, 8),)),
    "attention": (Attention, lambda: (torch.randn(2, 12, 16),)),
    "encoder": (_encoder, lambda: (torch.randn(3, 7, 16),)),
    "encoder without dropout": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0),
                                lambda: (torch.randn(3, 7, 16),)),
    "residual": (Residual, lambda: (torch.randn(2, 3, 8, 8),)),
    "tied": (Tied, lambda: (_text(2, 12), _text(2, 12))),
    "tied by view": (TiedByView, lambda: (_text(3, 5),)),
    "towers": (Towers, lambda: (torch.randn(4, 6), torch.randn(4, 5))),
    "masked attention": (
        lambda: Applied(lambda p, x, m: functional.scaled_dot_product_attention(p[0](x), x, x, attn_mask=m),
                        nn.Linear(8, 8)),
        lambda: (torch.randn(2, 4, 6, 8), torch.ones(6, 6).tril().bool())),
    "attention of torch": (lambda: Applied(lambda p, x: p[0](x, x, x)[0], nn.MultiheadAttention(8, 2)),
                           lambda: (torch.randn(2, 5, 8),)),
    "groups": (lambda: Applied(lambda p, x: functional.silu(p[1](p[0](x))), nn.Conv2d(4, 8, 3, groups=2),
                               nn.GroupNorm(2, 8)), lambda: (torch.randn(2, 4, 8, 8),)),
    "transposed": (lambda: Applied(lambda p, x: functional.leaky_relu(p[0](x), 0.1, inplace=True).mean((2, 3)),
                                   nn.ConvTranspose2d(4, 8, 3, stride=2)), lambda: (torch.randn(2, 4, 8, 8),)),
    "two types": (lambda: Applied(lambda p, x: p[0](x.bfloat16()).float().softmax(-1), nn.Linear(4, 4).bfloat16()),
                  lambda: (torch.randn(3, 4),)),
    "indices": (lambda: Applied(lambda p, x, i: p[0](x)[i] * p[0](x).gather(1, i[:, None]).exp(), nn.Linear(6, 6)),
                lambda: (torch.randn(6, 6), torch.tensor([1, 0, 2, 5, 5, 1]))),
    "bag": (lambda: Applied(lambda p, i: p[0](i).topk(2)[0].relu(), nn.EmbeddingBag(9, 4, mode="sum")),
            lambda: (torch.randint(9, (3, 5)),)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), lambda: (torch.randn(6, 4),)),
    "sum of products": (lambda: Applied(lambda p, x: torch.einsum("bij,bkj->bik", p[0](x), p[1](x)), nn.Linear(4, 6),
                                        nn.Linear(4, 6)), lambda: (torch.randn(2, 5, 4),)),
    "written by copy": (lambda: Applied(_written, nn.Linear(4, 4)), lambda: (torch.randn(6, 4),)),
    "written in place": (Written, lambda: (torch.randn(4, 6),)),
}


def made(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model, and what it is called with."""
    torch.manual_seed(3)
    module, inputs = MODELS[name]
    return module(), inputs()


def saved_model(name: str, folder: Path) -> Path:
    """A model as ``torch.export`` writes it, in ``folder``."""
    save_exported(*made(name), folder / "model.pt2")
    return folder / "model.pt2"
