"""ResNet and Wide ResNet as operator graphs (He et al., CVPR 2016; Zagoruyko and Komodakis, BMVC 2016)."""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph, Tensor
from weft.models.spec.families import ResNetModel
from weft.models.zoo.lib.builder import GraphBuilder, cross_entropy, linear, pointwise
from weft.models.zoo.lib.convolutions import batch_norm, convolution, pool


def resnet_graph(model: ResNetModel, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` images: layers ``stem``, ``stage0.block0`` ..., ``head``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=False)
    images = b.input("images", (batch, 3, model.image, model.image))
    labels = b.input("labels", (batch,), "int64")
    with b.layer("stem"):
        x = pool(b, _normed(b, images, model.width, 7, "conv", stride=2), "pool", "max")
    for stage, depth in enumerate(model.depths):
        for i in range(depth):
            with b.layer(f"stage{stage}.block{i}"):
                x = _block(b, x, model, model.width * 2**stage, 2 if stage and not i else 1)
    with b.layer("head"):
        logits = linear(b, pool(b, x, "pool", "mean"), model.classes, "classes")
        return b.graph(cross_entropy(b, logits, labels) if training else logits)


def _block(b: GraphBuilder, x: Tensor, model: ResNetModel, width: int, stride: int) -> Tensor:
    out = 4 * width if model.bottleneck else width
    if model.bottleneck:
        inner = width * model.width_factor
        y = _normed(b, x, inner, 1, "conv1")
        y = _normed(b, y, inner, 3, "conv2", stride=stride)
        y = batch_norm(b, convolution(b, y, out, 1, "conv3"), "conv3.norm")
    else:
        y = _normed(b, x, width, 3, "conv1", stride=stride)
        y = batch_norm(b, convolution(b, y, out, 3, "conv2"), "conv2.norm")
    if stride > 1 or x.shape[1] != out:
        x = batch_norm(b, convolution(b, x, out, 1, "shortcut", stride=stride), "shortcut.norm")
    return pointwise(b, "relu", "relu", [pointwise(b, "add", "add", [y, x])], keeps="output")


def _normed(b: GraphBuilder, x: Tensor, channels: int, kernel: int, name: str, *, stride: int = 1) -> Tensor:
    y = batch_norm(b, convolution(b, x, channels, kernel, name, stride=stride), f"{name}.norm")
    return pointwise(b, "relu", f"{name}.relu", [y], keeps="output")
