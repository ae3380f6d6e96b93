"""The operator graph of any family of the zoo."""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph
from weft.models.spec.base import Section
from weft.models.spec.families import (
    DlrmModel,
    EvoformerModel,
    FlavaModel,
    GptModel,
    MmtModel,
    ResNetModel,
    SwinModel,
    T5Model,
    UnoModel,
)
from weft.models.zoo.dlrm import dlrm_graph, uno_graph
from weft.models.zoo.evoformer import evoformer_graph
from weft.models.zoo.gpt import gpt_graph
from weft.models.zoo.multimodal import flava_graph, mmt_graph
from weft.models.zoo.resnet import resnet_graph
from weft.models.zoo.swin import swin_graph
from weft.models.zoo.t5 import t5_graph

__all__ = ["model_graph"]


def model_graph(model: Section, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` samples of ``model``, with activations and parameters in ``dtype``.

    Raises ``TypeError`` for a section that is no family of the zoo.
    """
    match model:
        case GptModel():  # mixtures of experts included
            return gpt_graph(model, batch, dtype=dtype, training=training)
        case T5Model():
            return t5_graph(model, batch, dtype=dtype, training=training)
        case FlavaModel():
            return flava_graph(model, batch, dtype=dtype, training=training)
        case MmtModel():
            return mmt_graph(model, batch, dtype=dtype, training=training)
        case SwinModel():
            return swin_graph(model, batch, dtype=dtype, training=training)
        case EvoformerModel():
            return evoformer_graph(model, batch, dtype=dtype, training=training)
        case DlrmModel():
            return dlrm_graph(model, batch, dtype=dtype, training=training)
        case UnoModel():
            return uno_graph(model, batch, dtype=dtype, training=training)
        case ResNetModel():
            return resnet_graph(model, batch, dtype=dtype, training=training)
    raise TypeError(f"{type(model).__name__} is no family of the zoo")
