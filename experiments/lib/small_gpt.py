"""A small GPT over bytes, cut into stages, and the standard library's sources as its text.

``torchrun --standalone --nproc-per-node=4 -m weft replay plan.json --stages experiments.lib.small_gpt:training`` trains
  it by any plan of a training pipeline with at most ten stages.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.runtime import Boundary, Plan, Training

#: Long modules that every Python has; their text differs a little from version to version.
SOURCES = ("argparse.py", "ast.py", "datetime.py", "decimal.py", "difflib.py", "doctest.py", "inspect.py", "pickle.py",
           "subprocess.py", "tarfile.py", "typing.py", "zipfile.py", "zipfile/__init__.py")


@dataclass(frozen=True)
class Config:
    """Sizes, and the seed of the first weights and of the choice of text; a micro-batch is ``sequences`` texts."""

    width: int = 64
    heads: int = 4
    blocks: int = 8
    length: int = 64
    sequences: int = 2
    seed: int = 20
    vocabulary: int = 256  # scores; the text is bytes


class Embedding(nn.Module):
    """Bytes to vectors: what the byte is plus where it stands."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.byte = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.length, config.width)

    def forward(self, text: Tensor) -> Tensor:
        x: Tensor = self.byte(text) + self.place(torch.arange(text.shape[1], device=text.device))
        return x


class Block(nn.Module):
    """Causal self-attention, then a multi-layer perceptron, each on a normed copy and added."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.mix = nn.Linear(config.width, config.width)
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm_mlp(x))))
        return y


class Head(nn.Module):
    """Vectors to the scores of the next byte."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm, self.score = nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.score(self.norm(x))
        return scores


def layers(config: Config, dtype: torch.dtype) -> list[nn.Module]:
    """Embedding, blocks, head; the same weights for the same ``config`` up to rounding to ``dtype``."""
    torch.manual_seed(config.seed)
    return [layer(config, i).to(dtype) for i in range(config.blocks + 2)]


def layer(config: Config, number: int) -> nn.Module:
    """One of the layers, with weights of its own."""
    return Embedding(config) if number == 0 else Head(config) if number == config.blocks + 1 else Block(config)


def cut(config: Config, stages: int) -> list[range]:
    """Which layers each stage has: blocks spread evenly, the embedding in the first stage, the head in the last."""
    if not 1 <= stages <= config.blocks + 2:
        raise ValueError(f"a model of {config.blocks + 2} layers has 1 to {config.blocks + 2} stages, not {stages}")
    ends = [round(s * (config.blocks + 2) / stages) for s in range(stages + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


@cache
def text() -> Tensor:
    """The sources as bytes."""
    library = Path(sysconfig.get_paths()["stdlib"])
    data = b"".join((library / name).read_bytes() for name in SOURCES if (library / name).is_file())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def batch(config: Config, step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    """Text and its next bytes, each of shape (sequences, length); the same for the same arguments."""
    chance = torch.Generator().manual_seed(config.seed + 1_000_003 * step + micro_batch)
    source = text()
    starts = torch.randint(len(source) - config.length - 1, (config.sequences, 1), generator=chance)
    places = starts + torch.arange(config.length)
    return source[places], source[places + 1]


def loss(scores: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per byte."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def training(plan: Plan, rank: int, config: Config | None = None, dtype: torch.dtype = torch.float32,
             steps: int = 12) -> Training:
    """Rank ``rank``'s part: plain SGD with momentum. (Adam divides by the size of a gradient, so it would blow up the
    rounding of gradients that are zero in exact arithmetic, such as those of the attention's key biases.)"""
    config = config or Config()
    assert plan.stage_ranks is not None
    everything, ranges = layers(config, dtype), cut(config, len(plan.stage_ranks))
    stages = {s: nn.Sequential(*(everything[i] for i in ranges[s]))
              for s, where in enumerate(plan.stage_ranks) if where == rank}
    boundary = Boundary((config.sequences, config.length, config.width), dtype)
    parameters = [parameter for stage in stages.values() for parameter in stage.parameters()]
    return Training(stages, [boundary] * (len(ranges) - 1), inputs=lambda step, m: batch(config, step, m)[0],
                    targets=lambda step, m: batch(config, step, m)[1], loss=loss, steps=steps,
                    optimizer=torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
