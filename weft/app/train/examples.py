"""Small models at random weights for ``weft train --example``: one of plain torch, the others of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.captured.captured import CaptureError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["EXAMPLES", "Example", "example", "require_example"]

WORDS, ROWS, LENGTH = 97, 16, 32  # of a vocabulary, of a batch, of a text
_SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
                          "num_attention_heads": 4}


class Example(NamedTuple):
    """A model and one batch: what it is called with, and, where it does not give its own, a loss and its target."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[..., Tensor] | None = None
    target: Tensor | None = None


def require_example(name: str) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless there is an example called ``name``."""
    if name not in EXAMPLES:
        plain, *others = EXAMPLES
        raise CaptureError(f"--example is {name!r}, it must be {plain}, or with transformers installed one of "
                           f"{', '.join(others)}")


def example(name: str) -> Example:
    """The example called ``name``, always with the same weights and batch.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where there is none, or its package is missing.
    """
    import torch

    require_example(name)
    torch.manual_seed(0)
    try:
        return EXAMPLES[name]()
    except ImportError:
        raise CaptureError(f"--example {name} needs transformers: pip install transformers, or use --example gpt"
                           ) from None


# -- of plain torch ----------------------------------------------------------------------------------------------------


def _gpt() -> Example:
    ids = _ids()
    return Example(_plain_gpt(), (ids,), {}, _next_word, ids)


def _next_word(scores: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of what comes next."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _plain_gpt(width: int = 64, layers: int = 4) -> nn.Module:
    import torch
    from torch import nn

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)])
            self.head = nn.Linear(width, WORDS, bias=False)
            nn.init.normal_(self.words.weight, std=0.02)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            mask = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool, device=ids.device).triu(1)
            x = self.words(ids) + self.places(torch.arange(ids.shape[-1], device=ids.device))
            for layer in self.layers:
                x = layer(x, src_mask=mask)
            return self.head(x)  # type: ignore[no-any-return]

    return GPT()


# -- of transformers ---------------------------------------------------------------------------------------------------


def _gpt2() -> Example:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _texts(GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4,
                                             use_cache=False)))


def _llama() -> Example:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _texts(LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=LENGTH,
                                               use_cache=False, **_SIZES)))


def _mixtral() -> Example:
    from transformers import MixtralConfig, MixtralForCausalLM

    return _texts(MixtralForCausalLM(MixtralConfig(
        vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=LENGTH, num_local_experts=4, use_cache=False,
        **_SIZES)))


def _bert() -> Example:
    from transformers import BertConfig, BertForMaskedLM

    return _texts(BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **_SIZES)))


def _t5() -> Example:
    from transformers import T5Config, T5ForConditionalGeneration

    return _texts(T5ForConditionalGeneration(T5Config(
        vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False,
        decoder_start_token_id=0)), use_cache=False)


def _vit() -> Example:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **_SIZES))
    return Example(model, (), {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": torch.randint(10, (ROWS,))})


def _ids() -> Tensor:
    import torch

    return torch.randint(WORDS, (ROWS, LENGTH))


def _texts(model: nn.Module, **further: Any) -> Example:
    """A model that gives the loss of texts, which are its labels too."""
    ids = _ids()
    return Example(model, (), {"input_ids": ids, "labels": ids, **further})


#: By name; the first is of plain torch, the others are of transformers.
EXAMPLES: Mapping[str, Callable[[], Example]] = {
    "gpt": _gpt, "gpt2": _gpt2, "llama": _llama, "bert": _bert, "t5": _t5, "vit": _vit, "mixtral": _mixtral}
