"""What a user's ``setup()`` gives ``weft train``: a model, an example, a loss, an optimizer, data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from weft.runtime.captured.captured import CaptureError
from weft.runtime.interface.factory import FactoryError, find_function

__all__ = ["Setup", "example_setup", "require_setup", "setup_of"]

#: Small models at random weights; all but the first are of transformers.
EXAMPLES = ("gpt", "gpt2", "llama")


@dataclass
class Setup:
    """What is trained. ``args`` and ``kwargs``: one whole batch as an example. ``data``: batches, each ``(input,
    target)``, ``(inputs, target)`` with a tuple of inputs, or a mapping of the model's named arguments, in which
    ``target`` is the loss's; without it the example is used again and again. ``optimizer`` makes one of parameters.
    ``options``: further arguments of :func:`weft.pipeline`, by name (``dtype``, ``state``, ``clip_norm``, ...)."""

    module: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Tensor] | None = None
    target: Any = None
    data: Iterable[Any] | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = AdamW
    micro_batches: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def require_setup(name: str | None, example: str | None) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless there is one function, or one example, of that
    name: before ranks are started for it."""
    if (name is None) == (example is None):
        raise CaptureError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    if example is not None and example not in EXAMPLES:
        raise CaptureError(f"--example is {example!r}, it must be gpt, or with transformers installed gpt2 or llama")
    if name is not None:
        _function(name)


def _function(name: str) -> Callable[..., Any]:
    try:
        return find_function(name, "setup")
    except FactoryError as error:
        raise CaptureError(str(error)) from None


def setup_of(name: str) -> Setup:
    """What the function ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION`` gives: a :class:`Setup`, or a mapping of its
    fields.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    found = _function(name)()
    if isinstance(found, Mapping):
        known = {entry.name for entry in fields(Setup)}
        if unknown := sorted(map(str, set(found) - known)):
            raise CaptureError(f"setup {name} gives {unknown[0]!r}, it may give {', '.join(sorted(known))}")
        if "module" not in found:
            raise CaptureError(f"setup {name} gives no module: put the model there")
        found = Setup(**found)
    if not isinstance(found, Setup):
        raise CaptureError(f"setup {name} gives {type(found).__name__}, it must give a mapping with module, args, "
                           "loss, optimizer and data")
    return found


def example_setup(name: str) -> Setup:
    """A small model at random weights, by name: ``gpt`` of plain torch, ``gpt2`` and ``llama`` of transformers."""
    import torch

    require_setup(None, name)
    torch.manual_seed(0)
    ids = torch.randint(97, (16, 32))
    if name == "gpt":
        return Setup(_gpt(), (ids,), loss=_next_token, target=ids)
    try:
        import transformers
    except ImportError:
        raise CaptureError(f"--example {name} needs transformers: pip install transformers, or use --example gpt"
                           ) from None
    made = {"gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=97, n_positions=32, n_embd=64, n_layer=4, n_head=4, use_cache=False)),
            "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
                vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=32, use_cache=False))}[name]()
    return Setup(made, (), {"input_ids": ids, "labels": ids})


def _next_token(scores: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of what comes next."""
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _gpt(width: int = 64, layers: int = 4, words: int = 97, length: int = 32) -> nn.Module:
    import torch

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)])
            self.head = nn.Linear(width, words, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            mask = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool).triu(1)
            x = self.words(ids) + self.places(torch.arange(ids.shape[-1]))
            for layer in self.layers:
                x = layer(x, src_mask=mask)
            return self.head(x)  # type: ignore[no-any-return]

    return GPT()
