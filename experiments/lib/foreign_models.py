"""Models that others wrote, tiny and with random weights: ten kinds of transformers, and some of plain torch.

Each is made for a batch of any number of rows, and gives its own loss. Dropout is off, so that there is one right
gradient. :class:`Model` is what :func:`weft.pipeline` is called with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
_TEXT = {"vocab_size": 97, "use_cache": False}
_PICTURE = {"image_size": 16, "patch_size": 4}
_IMAGE = 3  # the word that an image's parts stand for


class Model(NamedTuple):
    """A model and what it is called with, in a batch of some rows; ``settings``: what else :func:`weft.pipeline` must
    be told."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    settings: dict[str, Any]

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Model:
        """The same module, with other tensors."""
        def of(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        return self._replace(args=tuple(map(of, self.args)), kwargs={n: of(value) for n, value in self.kwargs.items()})

    def part(self, i: int, count: int) -> Model:
        """One of ``count`` equal parts of the batch."""
        return self.mapped(lambda tensor: tensor.chunk(count)[i])

    def to(self, device: str) -> Model:
        """The same on ``device``, the module in place."""
        return self.mapped(lambda tensor: tensor.to(device))._replace(module=self.module.to(device))

    def typed(self, dtype: torch.dtype) -> Model:
        """The same with numbers of this type, in place."""
        return self.mapped(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)._replace(
            module=self.module.to(dtype))


def made(name: str, rows: int, dtype: torch.dtype, seed: int = 0) -> Model:
    """The model called ``name``, always with the same weights, and a batch of ``rows`` that ``seed`` draws.

    Raises ``ImportError`` where its package is missing.
    """
    torch.manual_seed(0)
    module = MODELS[name].module(dtype)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    torch.manual_seed(1 + seed)
    found = MODELS[name].batch(rows)
    args, kwargs = ((), found) if isinstance(found, dict) else (found, {})
    return Model(module, args, kwargs, MODELS[name].settings).typed(dtype)


class _Double(ModuleType):
    """torch, but that its single precision is the double one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, "float64" if name in ("float", "float32") else name)


@contextmanager
def precision(name: str, dtype: torch.dtype) -> Iterator[None]:
    """What the model called ``name`` computes inside is of ``dtype`` throughout. In fp64, transformers would otherwise
    round norms, angles and losses to fp32, and two orders of one sum would differ by as much.

    Raises ``ImportError`` where its package is missing.
    """
    MODELS[name].module(dtype)  # imports the modules that round
    single, double = Tensor.float, _Double("torch")
    rounding = [module for path, module in sys.modules.items() if dtype == torch.float64
                and path.startswith("transformers.") and module.__dict__.get("torch") is torch]
    for module in rounding:
        module.__dict__["torch"] = double
    if rounding:
        Tensor.float = Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.float = single  # type: ignore[method-assign]
        for module in rounding:
            module.__dict__["torch"] = torch


def _ids(rows: int, length: int = 12, first: int = 4) -> Tensor:
    return torch.randint(first, 97, (rows, length))


def _words(rows: int) -> dict[str, Any]:
    ids = _ids(rows)
    return {"input_ids": ids, "labels": ids}


def _labelled(name: str, *shape: int, labels: int) -> Callable[[int], dict[str, Any]]:
    return lambda rows: {name: torch.randn(rows, *shape), "labels": torch.randint(labels, (rows,))}


def _of(kind: str, task: str, **settings: Any) -> Callable[[torch.dtype], nn.Module]:
    """A model of transformers by its own configuration."""
    def make(dtype: torch.dtype) -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**settings)
        if dtype == torch.float64 and any("experts" in name for name in settings):
            config._experts_implementation = "batched_mm"  # grouped products take no fp64
        found: nn.Module = getattr(transformers, f"{kind}{task}")(config)
        return found

    return make


def _masked_words(rows: int) -> dict[str, Any]:
    ids = _ids(rows)
    keep = torch.ones_like(ids)
    keep[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": keep, "labels": ids}


def _illustrated(rows: int) -> dict[str, Any]:
    ids = torch.cat([_ids(rows, 2), torch.full((rows, 16), _IMAGE), _ids(rows, 6)], 1)  # 16 patches amid the text
    return {"input_ids": ids, "pixel_values": torch.randn(rows, 3, 16, 16),
            "labels": ids.masked_fill(ids == _IMAGE, -100)}


def _few_words(rows: int) -> dict[str, Any]:
    ids = _ids(rows, 6)
    return {"input_ids": ids, "labels": ids}


class Residual(nn.Module):
    """``inner``, added to its input or to ``way`` of that."""

    def __init__(self, inner: nn.Module, way: nn.Module | None = None, act: bool = True) -> None:
        super().__init__()
        self.inner, self.way, self.act = inner, way or nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) + self.way(x)
        return nn.functional.relu(y) if self.act else y


def perceptron(width: int) -> nn.Module:
    """A feed-forward block with a residual."""
    return Residual(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                  nn.Linear(4 * width, width)), act=False)


class _Block(nn.Module):
    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, channels), nn.Conv2d(channels, to, 3, padding=1)
        self.time = nn.Linear(8, to)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.conv(nn.functional.silu(self.norm(x))) + self.time(t)[:, :, None, None]  # type: ignore[no-any-return]


class _UNet(nn.Module):
    """The noise in pictures that a diffusion of ``t`` steps has put there: what is seen early is read late."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down, self.middle, self.up = _Block(8, 16), _Block(16, 16), _Block(32, 8)

    def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        angles = t[:, None] * torch.arange(4, dtype=x.dtype, device=x.device)
        time = torch.cat([angles.sin(), angles.cos()], -1)
        early = self.down(self.into(x), time)
        deep = nn.functional.interpolate(self.middle(nn.functional.avg_pool2d(early, 2), time), scale_factor=2.0)
        return nn.functional.mse_loss(self.out(self.up(torch.cat([deep, early], 1), time)), noise)


def _noisy(rows: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, 3, 8, 8), torch.rand(rows), torch.randn(rows, 3, 8, 8)


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 3)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)).square().mean()  # type: ignore[no-any-return]


class Maker(NamedTuple):
    """What makes a model for a type of numbers, and batches of some rows; ``settings``: what else
    :func:`weft.pipeline` must be told."""

    module: Callable[[torch.dtype], nn.Module]
    batch: Callable[[int], dict[str, Any] | tuple[Tensor, ...]]
    settings: dict[str, Any] = {}  # noqa: RUF012


#: By name; the last is no kind of its own beside the others, but the shortest way to a transformer in torch.
MODELS: dict[str, Maker] = {
    "GPT-2": Maker(_of("GPT2", "LMHeadModel", n_positions=32, n_embd=32, n_layer=3, n_head=4, attn_pdrop=0.0,
                       embd_pdrop=0.0, resid_pdrop=0.0, **_TEXT), _words),
    "Llama": Maker(_of("Llama", "ForCausalLM", num_key_value_heads=2, max_position_embeddings=32, **_TEXT, **_WIDTHS),
                   _words),
    "BERT": Maker(_of("Bert", "ForMaskedLM", vocab_size=97, **_WIDTHS), _masked_words),
    "T5": Maker(_of("T5", "ForConditionalGeneration", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                    decoder_start_token_id=0, dropout_rate=0.0, **_TEXT),
                lambda rows: {**_words(rows), "use_cache": False}),
    "ViT": Maker(_of("ViT", "ForImageClassification", num_labels=5, **_PICTURE, **_WIDTHS),
                 _labelled("pixel_values", 3, 16, 16, labels=5)),
    "ResNet-50": Maker(_of("ResNet", "ForImageClassification", embedding_size=8, hidden_sizes=[16, 24, 32, 40],
                           depths=[3, 4, 6, 3], num_labels=5), _labelled("pixel_values", 3, 64, 64, labels=5)),
    "Mixtral": Maker(_of("Mixtral", "ForCausalLM", num_key_value_heads=2, num_local_experts=4, **_TEXT, **_WIDTHS),
                     _words),
    "Qwen2-MoE": Maker(_of("Qwen2Moe", "ForCausalLM", num_key_value_heads=2, num_experts=4, moe_intermediate_size=24,
                           shared_expert_intermediate_size=24, **_TEXT, **_WIDTHS), _words),
    "CLIP": Maker(_of("CLIP", "Model", vision_config={**_PICTURE, **_WIDTHS}, projection_dim=16, text_config={
        "vocab_size": 97, "max_position_embeddings": 16, "eos_token_id": 2, **_WIDTHS}), lambda rows: {
            "input_ids": _ids(rows), "pixel_values": torch.randn(rows, 3, 16, 16), "return_loss": True}),
    "LLaVA": Maker(_of("Llava", "ForConditionalGeneration", image_token_index=_IMAGE, image_seq_length=16,
                       use_cache=False, vision_config={"model_type": "clip_vision_model", **_PICTURE, **_WIDTHS},
                       text_config={"model_type": "llama", "num_key_value_heads": 2, "max_position_embeddings": 64,
                                    **_TEXT, **_WIDTHS}),
                   _illustrated, {"allow_unread": True}),  # it reads the last vision layer but one
    "Mamba": Maker(_of("Mamba", "ForCausalLM", hidden_size=16, state_size=4, num_hidden_layers=2, **_TEXT), _few_words),
    "Wav2Vec2": Maker(_of("Wav2Vec2", "ForSequenceClassification", conv_dim=(16, 16), conv_stride=(5, 2),
                          conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
                          num_conv_pos_embedding_groups=2, num_labels=3, classifier_proj_size=16, mask_time_prob=0.0,
                          layerdrop=0.0, attention_dropout=0.0, **_WIDTHS),
                      _labelled("input_values", 800, labels=3)),
    "U-Net (torch)": Maker(lambda dtype: _UNet(), _noisy),
    "Transformer (torch)": Maker(lambda dtype: _Classifier(), lambda rows: (torch.randn(rows, 8, 16),))}
