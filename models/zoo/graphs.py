"""The operator graph of any family of the zoo: the registry of families."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.models.graph.operators import OperatorGraph
from weft.models.spec import families
from weft.models.spec.base import Section
from weft.models.zoo.dlrm import dlrm_graph
from weft.models.zoo.encoder import clip_graph, encoder_graph
from weft.models.zoo.evoformer import evoformer_graph
from weft.models.zoo.flava import flava_graph
from weft.models.zoo.gpt import gpt_graph
from weft.models.zoo.mmt import mmt_graph
from weft.models.zoo.resnet import resnet_graph
from weft.models.zoo.swin import swin_graph
from weft.models.zoo.t5 import t5_graph
from weft.models.zoo.uno import uno_graph

#: The graph of each family by the class of its sizes: called with them, the samples of a micro-batch, ``dtype`` and
#: ``training``.
GRAPHS: Mapping[type[Section], Callable[..., OperatorGraph]] = {
    families.GptModel: gpt_graph,
    families.MoeModel: gpt_graph,
    families.T5Model: t5_graph,
    families.EncoderModel: encoder_graph,
    families.ClipModel: clip_graph,
    families.FlavaModel: flava_graph,
    families.MmtModel: mmt_graph,
    families.SwinModel: swin_graph,
    families.EvoformerModel: evoformer_graph,
    families.DlrmModel: dlrm_graph,
    families.UnoModel: uno_graph,
    families.ResNetModel: resnet_graph,
}


def model_graph(model: Section, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` samples of ``model``, with activations and parameters in ``dtype``.

    Raises ``TypeError`` for a section that is no family of the zoo.
    """
    graph = GRAPHS.get(type(model))
    if graph is None:
        raise TypeError(f"{type(model).__name__} is no family of the zoo")
    return graph(model, batch, dtype=dtype, training=training)
