"""A ``config.json`` of an unsupported type, captured from its transformers model."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from weft.models.capture.capture import capture_module
from weft.models.capture.exported import ExportFault
from weft.models.graph.operators import OperatorGraph

#: Default tokens of a sequence, if the model supports more.
_SEQUENCE = 4096


@lru_cache(maxsize=4)
def capture_config(path: Path, batch: int, sequence: int | None, dtype: str, training: bool) -> OperatorGraph:
    """One micro-batch of ``batch`` texts through transformers' model of a config, which has no weights (device meta)
    and comes only from the installed library: no code named by the config is run.

    ``sequence``: tokens, by default the model's maximum, 4096 at most. Raises
    :class:`~weft.models.capture.exported.ExportFault` if transformers has no such model, or it is not a text model.
    """
    import transformers

    values = json.loads(path.read_text(encoding="utf-8"))
    try:
        config: Any = transformers.AutoConfig.for_model(**values)
        config.use_cache = False
        named = [getattr(transformers, str(name), None) for name in values.get("architectures") or ()]
        with torch.device("meta"):
            made = next((kind for kind in named if kind is not None), None)
            model = made._from_config(config) if made else transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:  # any error that a config causes in the library
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ExportFault(f"{path}: transformers {transformers.__version__} makes no model of it: {first:.200}; export "
                          "the model with torch.export and capture it (weft capture model.pt2)") from None
    tokens = sequence or min(getattr(config, "max_position_embeddings", None) or _SEQUENCE, _SEQUENCE)
    ids = torch.zeros(batch, tokens, dtype=torch.long, device="meta")
    model = model.to(getattr(torch, dtype)).train(training)
    given = {"input_ids": ids, **({"labels": ids} if training else {})}
    return capture_module(model, (), given, str(values["model_type"]))
