"""The result of a user's ``setup()`` for ``weft train``: a model, a batch, a loss, an optimizer, data.

Small models with random weights for ``weft train --example``: one of plain torch, the others of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from torch.optim import AdamW, Optimizer

from weft.app.pipeline.lib.options import PipelineOptions
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.errors import raised_at
from weft.runtime.interface.factory import FactoryError, find_function
from weft.runtime.interface.training import Loss

if TYPE_CHECKING:
    from torch import Tensor


#: The names on the command line.
SAID = {"schedule", "memory", "spec", "time_limit", "timeout"}


@dataclass
class Setup:
    """A training setup. ``args`` and ``kwargs``: one whole batch as an example. ``data``: batches, each ``(input,
    target)``, ``(inputs, target)`` with a tuple of inputs, or a mapping of the model's named arguments, in which
    ``target`` is the loss's; without it the example is repeated. A function ``data(needs)`` returns batches on each
    rank that reads part of a batch; ``needs("labels")`` says whether the rank reads that argument, and others may be
    ``None``. ``optimizer`` makes an optimizer from parameters. ``options``: further arguments of :func:`weft.pipeline`,
    by name. ``follow``: ``plans`` that take turns and the steps of their ``switches``, as in
    :meth:`~weft.app.pipeline.run.pipe.Pipeline.follow`."""

    module: nn.Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Loss] | None = None
    target: Any = None
    data: Iterable[Any] | Callable[[Callable[[str], bool]], Iterable[Any]] | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = AdamW
    micro_batches: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    follow: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        known = {entry.name for entry in fields(PipelineOptions)} - {entry.name for entry in fields(self)} - SAID
        if wrong := sorted(map(str, set(self.options) - known)):
            raise CaptureError(f"options of setup gives {wrong[0]!r}, it may give {', '.join(sorted(known))}")
        if self.follow is not None:
            if set(self.follow) != {"plans", "switches"} or not self.follow["plans"]:
                raise CaptureError("follow of setup must have plans, at least one, and switches: a density that "
                                   "decides is measured in Python, with pipe.follow")
            if "plan" in self.options:
                raise CaptureError("follow and options of setup both say which plan runs: leave plan out")


def require_setup(name: str | None, of_example: str | None) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless there is a function, or an example, of that
    name: checked before ranks are started."""
    if (name is None) == (of_example is None):
        raise CaptureError("say what to train: either FILE.py:FUNCTION, or --example NAME")
    if of_example is not None:
        require_example(of_example)
    if name is not None:
        _function(name)


def _function(name: str) -> Callable[..., Any]:
    try:
        return find_function(name, "setup")
    except FactoryError as error:
        raise CaptureError(str(error)) from None


def setup_of(name: str) -> Setup:
    """The result of the function ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``: a :class:`Setup`, or a mapping of its
    fields.

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    function = _function(name)
    try:
        found = function()
    except CaptureError:
        raise
    except Exception as error:  # of many types: the user's own code
        raise CaptureError(f"setup {name} failed: {raised_at(error)}") from error
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
    """The example named ``name`` (:data:`weft.app.train.setup.EXAMPLES`).

    Raises :class:`~weft.runtime.captured.captured.CaptureError`.
    """
    return Setup(**example(name)._asdict())


WORDS, ROWS, LENGTH = 97, 16, 32  # of a vocabulary, of a batch, of a text
_SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
                          "num_attention_heads": 4}


class ExampleModel(NamedTuple):
    """A model and one batch: its arguments, and, unless it computes its own, a loss and its target."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[..., Tensor] | None = None
    target: Tensor | None = None


def require_example(name: str) -> None:
    """Raise :class:`~weft.runtime.captured.captured.CaptureError` unless there is an example named ``name``."""
    if name not in EXAMPLES:
        plain, *others = EXAMPLES
        raise CaptureError(f"--example is {name!r}, it must be {plain}, or with transformers installed one of "
                           f"{', '.join(others)}")


def example(name: str) -> ExampleModel:
    """The example named ``name``, always with the same weights and batch.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if there is none, or its package is missing.
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


def _gpt() -> ExampleModel:
    ids = _ids()
    return ExampleModel(_plain_gpt(), (ids,), {}, _next_word, ids)


def _next_word(scores: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of the next token."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _plain_gpt(width: int = 64, layers: int = 4) -> nn.Module:
    import torch

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


def _gpt2() -> ExampleModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _texts(GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4,
                                             use_cache=False)))


def _llama() -> ExampleModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _texts(LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=LENGTH,
                                               use_cache=False, **_SIZES)))


def _mixtral() -> ExampleModel:
    from transformers import MixtralConfig, MixtralForCausalLM

    return _texts(MixtralForCausalLM(MixtralConfig(
        vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=LENGTH, num_local_experts=4, use_cache=False,
        **_SIZES)))


def _bert() -> ExampleModel:
    from transformers import BertConfig, BertForMaskedLM

    return _texts(BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **_SIZES)))


def _t5() -> ExampleModel:
    from transformers import T5Config, T5ForConditionalGeneration

    return _texts(T5ForConditionalGeneration(T5Config(
        vocab_size=WORDS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False,
        decoder_start_token_id=0)), use_cache=False)


def _vit() -> ExampleModel:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **_SIZES))
    return ExampleModel(model, (), {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": torch.randint(10, (ROWS,))})


def _ids() -> Tensor:
    import torch

    return torch.randint(WORDS, (ROWS, LENGTH))


def _texts(model: nn.Module, **further: Any) -> ExampleModel:
    """A model that returns the loss of texts, which are also its labels."""
    ids = _ids()
    return ExampleModel(model, (), {"input_ids": ids, "labels": ids, **further})


#: By name; the first is plain torch, the others are from transformers.
EXAMPLES: Mapping[str, Callable[[], ExampleModel]] = {
    "gpt": _gpt, "gpt2": _gpt2, "llama": _llama, "bert": _bert, "t5": _t5, "vit": _vit, "mixtral": _mixtral}
