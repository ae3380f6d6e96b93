"""Foreign models captured, cut between operators and run back stage by stage: how exact their gradients are.

    python -m experiments.runtime.any_model [--only NAME ...]

Each model is tiny, with random weights. It is exported and cut into two and three stages at operators (thirds of the
row, moved to the next place where a cut may be). One micro-batch then goes forward and back through the stages in one
process, with nothing between two stages but the values of their ports; whole backwards, split ones, and split ones in
which all weight gradients wait that can (those of norms, scales and biases too). Told are the
operators, the values that cross, the largest relative error of a gradient in fp64 (fp32 where the model has operators
that take no fp64), and the share of parameters whose gradient waits for W. Models of
transformers are left out where it is not installed, with that reason. Writes ``any_model.json``; exits with 1 where a
gradient is not the model's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.lib.provenance import RESULTS, Record
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import BATCH, Cut, crossings
from weft.runtime.captured.loss import LOSS, LossStage, loss_of
from weft.runtime.captured.purity import Purity
from weft.runtime.train.stage import StageRunner, deferred_parameters

__all__ = ["MODELS", "Result", "main", "measured"]

#: Largest relative errors of a gradient that count as none, in fp64 and in fp32.
EXACT, CLOSE = 1e-12, 1e-5


class Model(NamedTuple):
    """A model, what it is called with, and the type its numbers have."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012
    dtype: torch.dtype = torch.float64


class Result(NamedTuple):
    """What was found of one cut of one model."""

    dtype: str
    operators: int
    stages: int
    backward: str
    crossing: tuple[int, ...]
    error: float
    loss_error: float
    waits: float
    seconds: float


def _ids(words: int = 97, rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(3, words, (rows, length))


def _causal(kind: str, **settings: Any) -> Callable[[], Model]:
    def make() -> Model:
        import transformers

        dtype = settings.pop("dtype", torch.float64)
        config = getattr(transformers, f"{kind}Config")(vocab_size=97, use_cache=False, **settings)
        module = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
        ids = _ids()
        return Model(module, (), {"input_ids": ids, "labels": ids}, dtype)

    return make


_WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}


def _bert() -> Model:
    from transformers import BertConfig, BertForMaskedLM

    ids = _ids()
    return Model(BertForMaskedLM(BertConfig(vocab_size=97, **_WIDTHS)), (), {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})


def _t5() -> Model:
    from transformers import T5Config, T5ForConditionalGeneration

    ids = _ids()
    config = T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, use_cache=False,
                      decoder_start_token_id=0, dropout_rate=0.0)
    return Model(T5ForConditionalGeneration(config), (), {"input_ids": ids, "labels": ids, "use_cache": False})


def _vit() -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=16, patch_size=4, num_labels=5, **_WIDTHS)
    return Model(ViTForImageClassification(config), (), {
        "pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(5, (2,))})


def _resnet() -> Model:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 24, 32, 40], depths=[3, 4, 6, 3], num_labels=5)
    return Model(ResNetForImageClassification(config), (), {
        "pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(5, (4,))})


def _clip() -> Model:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(text_config={"vocab_size": 97, "max_position_embeddings": 16, "eos_token_id": 2, **_WIDTHS},
                        vision_config={"image_size": 16, "patch_size": 4, **_WIDTHS}, projection_dim=16)
    return Model(CLIPModel(config), (), {"input_ids": _ids(), "pixel_values": torch.randn(2, 3, 16, 16),
                                         "return_loss": True})


def _mamba() -> Model:
    from transformers import MambaConfig, MambaForCausalLM

    ids = _ids(length=6)
    return Model(MambaForCausalLM(MambaConfig(vocab_size=97, hidden_size=16, state_size=4, num_hidden_layers=2,
                                              use_cache=False)), (), {"input_ids": ids, "labels": ids})


def _wav2vec() -> Model:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
                            num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, num_labels=3,
                            classifier_proj_size=16, mask_time_prob=0.0, layerdrop=0.0, attention_dropout=0.0,
                            **_WIDTHS)
    return Model(Wav2Vec2ForSequenceClassification(config), (), {
        "input_values": torch.randn(2, 800), "labels": torch.randint(3, (2,))})


def _plain() -> Model:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 3)
            self.head = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x)).square().mean()  # type: ignore[no-any-return]

    return Model(Classifier(), (torch.randn(2, 8, 16),))


class _Block(nn.Module):
    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, channels), nn.Conv2d(channels, to, 3, padding=1)
        self.time = nn.Linear(8, to)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.conv(nn.functional.silu(self.norm(x))) + self.time(t)[:, :, None, None]  # type: ignore[no-any-return]


def _unet() -> Model:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
            self.down, self.middle, self.up = _Block(8, 16), _Block(16, 16), _Block(32, 8)

        def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
            angles = t[:, None] * torch.arange(4, dtype=x.dtype)
            time = torch.cat([angles.sin(), angles.cos()], -1)
            early = self.down(self.into(x), time)
            deep = nn.functional.interpolate(self.middle(nn.functional.avg_pool2d(early, 2), time), scale_factor=2.0)
            return nn.functional.mse_loss(self.out(self.up(torch.cat([deep, early], 1), time)), noise)

    return Model(UNet(), (torch.randn(2, 3, 8, 8), torch.rand(2), torch.randn(2, 3, 8, 8)))


MODELS: dict[str, Callable[[], Model]] = {
    "GPT-2": _causal("GPT2", n_positions=32, n_embd=32, n_layer=3, n_head=4, attn_pdrop=0.0, embd_pdrop=0.0,
                     resid_pdrop=0.0),
    "Llama": _causal("Llama", num_key_value_heads=2, max_position_embeddings=32, **_WIDTHS),
    "BERT": _bert, "T5": _t5, "ViT": _vit, "ResNet-50": _resnet,
    "Mixtral": _causal("Mixtral", num_key_value_heads=2, num_local_experts=4, dtype=torch.float32, **_WIDTHS),
    "Qwen2-MoE": _causal("Qwen2Moe", num_key_value_heads=2, num_experts=4, moe_intermediate_size=24,
                         shared_expert_intermediate_size=24, dtype=torch.float32, **_WIDTHS),
    "CLIP": _clip, "Mamba": _mamba, "Wav2Vec2": _wav2vec, "U-Net (torch)": _unet, "Transformer (torch)": _plain}


def measured(name: str) -> list[Result]:
    """What stages of the model called ``name`` give, in two and three stages, with whole and split backwards.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where it cannot be captured, ``ImportError`` where its
    package is missing.
    """
    torch.manual_seed(0)
    model = MODELS[name]()
    module = model.module.to(model.dtype)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    args, kwargs = _typed(model.args, model.dtype), dict(zip(model.kwargs, _typed(model.kwargs.values(), model.dtype),
                                                             strict=True))
    buffers = {buffer: buffer.clone() for buffer in module.buffers()}
    loss = loss_of(module(*args, **kwargs))
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    begun = time.perf_counter()
    captured = Captured.of(module, args, kwargs)
    seconds = time.perf_counter() - begun
    purity = Purity(captured)
    found = []
    for count in (2, 3):
        for backward in ("whole", "split", "split all"):
            split = backward != "whole"
            cut = Cut(captured, _places(captured, purity, count), Purity(captured, light=backward == "split all"))
            module.zero_grad()
            with torch.no_grad():
                for buffer, value in buffers.items():
                    buffer.copy_(value)
            its_loss, waits = _through(cut, [*args, *kwargs.values()], split)
            gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            error = float("inf")  # where a gradient is missing
            if gradients.keys() >= wanted.keys():
                error = max(float((gradients[n] - g).norm() / g.norm()) for n, g in wanted.items()
                            if float(g.norm()) > 1e-12)
            found.append(Result(str(model.dtype).removeprefix("torch."), len(captured.calls), count,
                                backward,
                                tuple(len(cut.takes[s]) for s in range(1, count)), error,
                                float((its_loss - loss).detach().abs() / loss.detach().abs()), waits, seconds))
    return found


def _typed(values: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for v in values)


def _places(captured: Captured, purity: Purity, count: int) -> list[int]:
    between = crossings(captured, purity)
    first = next(i for i, node in enumerate(captured.calls) if any(
        arg.op == "get_attr" and isinstance(captured.attribute(arg), nn.Parameter) for arg in node.all_input_nodes))
    allowed = [i for i, crossing in enumerate(between) if i > first and crossing.refused is None and crossing.values]
    return sorted({min((i for i in allowed if i >= len(between) * k // count), default=allowed[-1])
                   for k in range(1, count)})


def _through(cut: Cut, leaves: Sequence[Any], split: bool) -> tuple[Tensor, float]:
    """One micro-batch through the stages and back: its loss, and the share of parameters whose gradient waited."""
    stages, last = cut.stages(), cut.count - 1
    modules: dict[int, nn.Module] = dict(stages.modules)
    modules[last] = LossStage(modules[last], cut.captured.out_spec, stages.results, None)
    values = {BATCH + node.name: leaf for node, leaf in zip(cut.captured.inputs, leaves, strict=True)}
    runners = {s: StageRunner(module, split=split, constant=[
        i for i, n in enumerate(stages.ports[s].takes) if n.startswith(BATCH)]) for s, module in modules.items()}
    for s, runner in runners.items():
        gives = (LOSS,) if s == last else stages.ports[s].gives
        values.update(zip(gives, runner.forward(0, *(values[n] for n in stages.ports[s].takes)), strict=True))
    gradients: dict[str, Tensor] = {LOSS: torch.ones_like(values[LOSS])}
    for s, runner in reversed(runners.items()):
        gives = (LOSS,) if s == last else stages.ports[s].gives
        run = runner.input_grad if split else runner.backward
        for n, gradient in zip(stages.ports[s].takes, run(0, *(gradients.get(n) for n in gives)), strict=True):
            if gradient is not None:
                gradients[n] = gradients[n] + gradient if n in gradients else gradient
    for runner in runners.values():
        if split:
            runner.weight_grad(0)
        runner.close()
    every = {p for module in modules.values() for p in module.parameters() if p.requires_grad}
    waiting = {p for module in modules.values() for p in deferred_parameters(module)}
    return values[LOSS], sum(p.numel() for p in every & waiting) / sum(p.numel() for p in every)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model and cut, and write them; 1 if a gradient is not the model's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=MODELS, help="these models")
    parser.add_argument("--output", type=Path, default=RESULTS / "any_model.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    print("model                operators  export s  stages  backward  crossing   gradient error  loss error  "
          "waits for W")
    for name in options.only or MODELS:
        try:
            found = measured(name)
        except (CaptureError, ImportError) as error:
            left_out.append({"model": name, "why": str(error).splitlines()[0]})
            print(f"{name:19}  left out: {left_out[-1]['why']:.200}", flush=True)
            continue
        for result in found:
            rows.append({"model": name, **result._asdict()})
            print(f"{name:19}  {result.operators:9d}  {result.seconds:8.2f}  {result.stages:6d}  {result.backward:8}  "
                  f"{'+'.join(map(str, result.crossing)):9}  {result.error:14.1e}  {result.loss_error:10.1e}  "
                  f"{result.waits:11.0%}", flush=True)
    record.write({"rows": rows, "left_out": left_out}, part=bool(options.only))
    return int(any(row["error"] > (EXACT if row["dtype"] == "float64" else CLOSE) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
