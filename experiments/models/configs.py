"""Are the parameters of models read from Hugging Face configs those that transformers itself makes of them?

Every config of :mod:`experiments.lib.model_configs` is built by transformers on the meta device, without memory, and
read by weft. Counted are trained parameters, a tied one once. What transformers leaves out of its model and weft counts
is said apart: the layers of multi-token prediction (``predict``), and the head of a T5 whose config says that it is not
tied (``head``; transformers 5 ties the head of every T5 that it makes of a config, published weights have both).
Without transformers its counts are those of the file that was written before. Writes ``configs.json``; ``--defaults``
writes ``models/data/config_defaults.json``, what transformers takes for the keys that weft reads.

    python -m experiments.models.configs
"""

from __future__ import annotations

import ast
import json
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from experiments.lib.model_configs import CONFIGS
from experiments.lib.provenance import RESULTS, ROOT, Record
from experiments.lib.script import script
from weft.models.spec.config_types import TYPES
from weft.models.spec.huggingface import known_types, model_of_config
from weft.models.zoo.graphs import model_graph
from weft.solver.io.writing import write_atomically

OUTPUT, DEFAULTS = RESULTS / "configs.json", ROOT / "models" / "data" / "config_defaults.json"
#: The class that a type's published config names, where it is not the causal language model.
_CLASSES = {**dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "distilbert"), "AutoModelForMaskedLM"),
            **dict.fromkeys(("vit", "swin", "resnet"), "AutoModelForImageClassification"),
            **dict.fromkeys(("t5", "mt5", "umt5", "bart", "mbart"), "AutoModelForSeq2SeqLM"),
            "clip": "AutoModel", "flava": "AutoModel", "whisper": "AutoModelForSpeechSeq2Seq"}
#: Parts of configs that have types of their own.
_PARTS = ("flava_text_model", "flava_image_model", "flava_multimodal_model")
#: Types whose ``tie_word_embeddings`` transformers 5 overrides.
_TIED_BY_FORCE = ("t5", "mt5", "umt5")
#: Whose keys the reader asks for.
_READERS = ("config_types.py", "config_values.py", "huggingface.py")


def _row(config: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Weft's count beside transformers'."""
    parameters = model_graph(model_of_config(config, sequence=None if config["model_type"] in (
        "vit", "swin", "resnet") else 16)).parameters
    apart = {"predict": sum(p.count for name, p in parameters.items() if "predict" in name),
             "head": parameters["head.logits.weight"].count if config["model_type"] in _TIED_BY_FORCE
             and "head.logits.weight" in parameters else 0}
    count = sum(p.count for p in parameters.values()) - sum(apart.values())
    return {"type": config["model_type"], "class": reference["class"], "transformers": reference["transformers"],
            "not_trained": reference["not_trained"], "weft": count, "equal": count == reference["transformers"],
            **{part: own for part, own in apart.items() if own}}


def _reference(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' own model has, on the meta device."""
    import torch
    import transformers

    made = transformers.CONFIG_MAPPING[config["model_type"]](
        **{key: value for key, value in config.items() if key != "model_type"})
    with torch.device("meta"):
        model = getattr(transformers, _CLASSES.get(config["model_type"], "AutoModelForCausalLM")).from_config(made)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"class": type(model).__name__, "transformers": trained,
            "not_trained": sum(p.numel() for p in model.parameters()) - trained}


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _defaults_text() -> str:
    """By type, what transformers' class takes for each key that the reader asks for; one line a type."""
    import transformers

    keys = {node.value for name in _READERS
            for node in ast.walk(ast.parse((ROOT / "models" / "spec" / name).read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    lines = []
    for kind in sorted({*TYPES, *known_types(), *_PARTS} - {"flava"}):
        made = transformers.CONFIG_MAPPING[kind]
        raw = {name: getattr(made, name, None) for name in getattr(made, "__dataclass_fields__", {})}
        left_out = {"model_type", "id2label", *(("tie_word_embeddings",) if kind in _TIED_BY_FORCE else ())}
        shown: dict[str, Any] = {}
        with suppress(TypeError):  # some cannot be made without arguments
            shown = made().to_dict()
        found = {key: value for key, value in {**shown, **raw}.items()
                 if key in keys - left_out and isinstance(value, bool | int | float | str | list | tuple | None)}
        lines.append(f'  {json.dumps(kind)}: {json.dumps(found, sort_keys=True)}')
    source = f"the configuration classes of transformers {_version()}; written by experiments/models/configs.py"
    return (f'{{\n "source": {json.dumps(source)},\n "types": {{\n' + ",\n".join(lines) + "\n }\n}\n")


@script("configs.json", only="", defaults=False)
def main(options: Namespace, record: Record) -> bool:
    if options.defaults:
        write_atomically(DEFAULTS, _defaults_text())
        return False
    kept = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {"transformers": None, "models": {}}
    here = find_spec("transformers") is not None
    rows = {name: _row(config, _reference(config) if here else kept["models"][name])
            for name, config in CONFIGS.items() if options.only in name}
    unequal = [name for name, row in rows.items() if not row["equal"]]
    print(f"{len(rows)} configs, of which other numbers of parameters have: {', '.join(unequal) or 'none'}")
    record.write({"transformers": _version() if here else kept["transformers"], "configs": len(rows),
                  "equal": len(rows) - len(unequal), "types": len({row["type"] for row in rows.values()}),
                  "known": len(known_types()), "models": rows})
    return bool(unequal)
