"""Configs of published models, as far as they say an architecture: the entries of each model's ``config.json`` that
differ from what transformers takes for its type (and some that do not), from ``experiments/data/model_configs.json``.

By the model's name on its page. Configs of a type alone are transformers' defaults, most of them a published size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from experiments.lib.provenance import DATA

CONFIGS: Mapping[str, Mapping[str, Any]] = json.loads((DATA / "model_configs.json").read_text())
