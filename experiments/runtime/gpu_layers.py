"""How far modelled times and activations of published layers are from those of the GPU here.

transformers builds each model with few layers and with more, in bf16 with PyTorch's attention; what the further layers
take longer and keep is theirs alone, without embeddings, head and loss. Its norms, rotations and gates are several
kernels each, which keep more than the fused ones that the model of costs is of. That model counts one GPU of the same
name from its data sheet. Every figure is modelled over measured. Writes ``gpu_layers.json``.

    python -m experiments.runtime.gpu_layers [--models NAME ...]
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.lib.model_configs import CONFIGS
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.app.config_spec import config_specs
from weft.models.candidates.gpu_costs import layer_costs
from weft.models.hardware.devices import DEVICES
from weft.runtime.measure.measure import Timer

#: Models with the sequences of a micro-batch and their tokens.
MODELS: Mapping[str, tuple[int, int]] = {
    "gpt2-xl": (4, 1024), "EleutherAI/gpt-neox-20b": (1, 2048), "meta-llama/Llama-3.2-1B": (1, 8192),
    "Qwen/Qwen3-8B": (1, 8192), "meta-llama/Meta-Llama-3-8B": (1, 8192), "meta-llama/Meta-Llama-3-70B": (1, 8192)}
#: Layers of the smaller and of the larger build; words, which only the head and embeddings have to do with.
FEW, MORE, WORDS = 1, 3, 1024
REPEATS, LEAST = 7, 0.02


class Measured(NamedTuple):
    """Seconds and bytes of a micro-batch."""

    forward: float
    backward: float
    kept: int


def measured(config: Mapping[str, Any], layers: int, batch: int, tokens: int, device: torch.device) -> Measured:
    """The whole model with so many ``layers``."""
    import transformers

    names = {"num_hidden_layers", "n_layer"} & config.keys() or {"num_hidden_layers"}
    found: Any = transformers
    sizes = {**config, **dict.fromkeys(names, layers), "vocab_size": WORDS, "use_cache": False}
    sizes.pop("model_type")
    made = found.AutoConfig.for_model(config["model_type"], **sizes)
    with torch.device(device):
        model = found.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16, attn_implementation="sdpa")
        ids = torch.randint(WORDS, (batch, tokens))
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    timer, kept = Timer(device), 0

    def forward() -> Any:
        return model(input_ids=ids, labels=ids).loss

    def both() -> None:
        forward().backward()
        model.zero_grad(set_to_none=True)

    both()
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        loss = forward()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
        del loss
    ahead = timer.sample(forward, REPEATS, LEAST).seconds
    return Measured(ahead, timer.sample(both, REPEATS, LEAST).seconds - ahead, kept)


def of_a_layer(config: Mapping[str, Any], batch: int, tokens: int, device: torch.device) -> Measured:
    """What one more layer takes."""
    builds = []
    for layers in (FEW, MORE):
        builds.append(measured(config, layers, batch, tokens, device))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    few, more = builds
    return Measured(*((b - a) / (MORE - FEW) for a, b in zip(few, more, strict=True)))  # type: ignore[arg-type]


def modelled(config: Mapping[str, Any], batch: int, tokens: int, device: str) -> Measured:
    """The same by the model of costs: its middle layer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        spec, _ = next(config_specs(path, gpus=1, device=device, micro_batch=batch, sequence=tokens))
        costs = layer_costs(spec)
    layer = costs[len(costs) // 2]
    return Measured(layer.forward, layer.backward, layer.activation_bytes)


def row(name: str, asked: int | None, title: str) -> Row:
    """One model, on the GPU of that ``title``."""
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sheet = next((name for name in DEVICES if name in title.lower() and name != "cpu"), "h200")
    batch, tokens = MODELS.get(name, (1, 4096))
    tokens = asked or tokens
    ours, found = modelled(CONFIGS[name], batch, tokens, sheet), of_a_layer(CONFIGS[name], batch, tokens, where)
    return {"model": name, "batch": batch, "tokens": tokens, "measured": found._asdict(), "modelled": {
        **{key: value / max(getattr(found, key), 1e-12) for key, value in ours._asdict().items()},
        "both": (ours.forward + ours.backward) / (found.forward + found.backward)}}


@script("gpu_layers.json", models=tuple(MODELS), tokens=int)
def main(options: Namespace, record: Record) -> None:
    title = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    record.rows((row(name, options.tokens, title) for name in options.models), lambda rows: {
        "median": statistics.median(row["modelled"]["both"] for row in rows)}, device=title)
