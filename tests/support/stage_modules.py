"""The modules that small models are made of. Those with ``share`` can be cut over the ranks of a group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.runtime import ColumnLinear, RowLinear, VocabularyEmbedding, parallel_cross_entropy

WIDTH, INNER, VOCABULARY, LENGTH, BATCH = 8, 12, 13, 5, 2


class Embed(nn.Module):
    """Tokens to vectors; anything else that is taken is handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.words: nn.Module = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, tokens: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        return self.words(tokens), *others

    def share(self, group: dist.ProcessGroup) -> None:
        assert isinstance(self.words, nn.Embedding)
        self.words = VocabularyEmbedding(self.words, group)


class Mix(nn.Module):
    """A perceptron on the sum of what is taken, added to it; ``gives`` values of the same shape."""

    def __init__(self, gives: int = 1) -> None:
        super().__init__()
        self.norm, self.gives = nn.LayerNorm(WIDTH), gives
        self.up: nn.Module = nn.Linear(WIDTH, INNER)
        self.down: nn.Module = nn.Linear(INNER, WIDTH)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        x = xs[0] if len(xs) == 1 else torch.stack(xs).sum(0)
        y = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return tuple(y if i == 0 else torch.tanh(y) * i for i in range(self.gives))

    def share(self, group: dist.ProcessGroup) -> None:
        assert isinstance(self.up, nn.Linear) and isinstance(self.down, nn.Linear)
        self.up, self.down = ColumnLinear(self.up, group), RowLinear(self.down, group)


class Score(nn.Module):
    """A perceptron and a head over the vocabulary: the mean cross-entropy against the last thing taken, after whatever
    else it gives."""

    def __init__(self, gives: int = 1) -> None:
        super().__init__()
        self.mix, self.gives, self.group = Mix(), gives, None
        self.head: nn.Module = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        *xs_, target = xs
        y, = self.mix(*xs_)
        scores = self.head(y)
        loss = (nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten()) if self.group is None
                else parallel_cross_entropy(scores, target, self.group, VOCABULARY))
        return *(torch.sin(y) for _ in range(self.gives - 1)), loss

    def share(self, group: dist.ProcessGroup) -> None:
        assert isinstance(self.head, nn.Linear)
        self.mix.share(group)
        self.head, self.group = ColumnLinear(self.head, group), group  # type: ignore[assignment]


class Both(nn.Module):
    """Embedding, perceptron: the first stage where it is on one rank."""

    def __init__(self, gives: int = 1) -> None:
        super().__init__()
        self.embed, self.mix = Embed(), Mix(gives)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        y: tuple[Tensor, ...] = self.mix(*self.embed(tokens))
        return y
