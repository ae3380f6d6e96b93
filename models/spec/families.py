"""The model families of the zoo as sections of a spec: their sizes, and the consistency of sizes.

How a family's operator graph is built from them is in :mod:`weft.models.zoo`. The names and meanings of the fields are
the field's own; published sizes are in :mod:`weft.models.zoo.published`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Discriminator, Field, model_validator

from weft.models.files.limits import MAX_WIDTH
from weft.models.spec.base import Layers, Pixels, Rows, Section, Tokens, Vocabulary, Width, divides, refuse
from weft.models.spec.transformers import ClipModel, EncoderModel, GptModel, MoeModel, T5Model

__all__ = ["FAMILIES", "ClipModel", "DlrmModel", "EncoderModel", "EvoformerModel", "FamilyModel", "FlavaModel",
           "GptModel", "MmtModel", "MoeModel", "ResNetModel", "SwinModel", "T5Model", "UnoModel"]


class FlavaModel(Section):
    """Two towers, text and image, and a fusion transformer over both (FLAVA, Singh et al., CVPR 2022)."""

    family: Literal["flava"] = Field(description="The model family.")
    text_layers: Layers = Field(description="Layers of the text tower.", examples=[12])
    image_layers: Layers = Field(description="Layers of the image tower.", examples=[12])
    fusion_layers: Layers = Field(description="Layers over both.", examples=[6])
    hidden: Width = Field(description="Width of the hidden state.", examples=[768])
    heads: Width = Field(description="Attention heads.", examples=[12])
    feed_forward: Width | None = Field(default=None, description="Width inside the feed-forward part. Default "
                                     "4 times hidden.")
    vocabulary: Vocabulary = Field(default=30522, description="Entries of the text vocabulary. Default 30522.")
    sequence: Tokens = Field(default=77, description="Tokens of a text. Default 77.")
    max_positions: Tokens = Field(default=512, description="Rows of the learned positions of texts. Default 512.")
    image: Pixels = Field(default=224, description="Height and width of an image. Default 224.")
    patch: Pixels = Field(default=16, description="Height and width of a patch. Default 16.")
    dropout: bool = Field(default=False, description="Whether training drops out. Default false.")

    @model_validator(mode="after")
    def _check(self) -> FlavaModel:
        divides(self.heads, self.hidden, "heads", "hidden")
        divides(self.patch, self.image, "patch", "image")
        return self


class MmtModel(Section):
    """Equal transformer branches whose outputs are joined at the end: the multimodal transformer of the GraphPipe
    evaluation (Jeon et al., ASPLOS 2025)."""

    family: Literal["mmt"] = Field(description="The model family.")
    branches: int = Field(default=4, ge=1, le=64, description="Branches. Default 4.")
    layers: Layers = Field(default=8, description="Transformer layers of a branch. Default 8.")
    hidden: Width = Field(default=1024, description="Width of the hidden state. Default 1024.")
    heads: Width = Field(default=16, description="Attention heads. Default 16.")
    feed_forward: Width = Field(default=4096, description="Width inside the feed-forward part. Default 4096.")
    sequence: Tokens = Field(default=256, description="Tokens of a branch. Default 256.")
    dropout: bool = Field(default=False, description="Whether training drops out. Default false.")

    @model_validator(mode="after")
    def _check(self) -> MmtModel:
        divides(self.heads, self.hidden, "heads", "hidden")
        return self


class SwinModel(Section):
    """A Swin transformer (Liu et al., ICCV 2021): attention in windows, four stages of falling resolution."""

    family: Literal["swin"] = Field(description="The model family.")
    width: Width = Field(description="Channels of the first stage; each later stage has twice as many.",
                       examples=[96])
    depths: tuple[Layers, ...] = Field(strict=False, min_length=1, max_length=8, description="Layers of each stage.",
                                    examples=[[2, 2, 6, 2]])
    heads: tuple[Width, ...] = Field(strict=False, min_length=1, max_length=8, description="Attention heads of each "
                                   "stage.", examples=[[3, 6, 12, 24]])
    image: Pixels = Field(default=224, description="Height and width of an image. Default 224.")
    patch: Pixels = Field(default=4, description="Height and width of a patch. Default 4.")
    window: Pixels = Field(default=7, description="Height and width of a window, in patches. Default 7.")
    mlp_ratio: Width = Field(default=4, description="Width inside the feed-forward part, in multiples of the "
                           "channels. Default 4.")
    classes: Width = Field(default=1000, description="Classes to tell apart. Default 1000.")

    @model_validator(mode="after")
    def _check(self) -> SwinModel:
        if len(self.heads) != len(self.depths):
            refuse(f"heads lists {len(self.heads)} stages, but depths {len(self.depths)}")
        divides(self.patch, self.image, "patch", "image")
        for stage, heads in enumerate(self.heads):
            side = self.image // self.patch // 2**stage
            if side * 2**stage * self.patch != self.image or side % self.window:
                refuse(f"image is {self.image}: stage {stage} has {self.image / self.patch / 2**stage:g} patches on a "
                       f"side, which must be a multiple of window ({self.window})")
            divides(heads, self.width * 2**stage, f"heads of stage {stage}", f"the width of stage {stage}")
        return self


class EvoformerModel(Section):
    """The Evoformer stack of AlphaFold 2 (Jumper et al., 2021, supplement 1.6), trained with recycling.

    The stack runs ``recycles`` times without gradients and once with them.
    """

    family: Literal["evoformer"] = Field(description="The model family.")
    blocks: Layers = Field(default=48, description="Evoformer blocks. Default 48.")
    msa: Width = Field(default=256, description="Width of the alignment's representation. Default 256.")
    pair: Width = Field(default=128, description="Width of the pairs' representation. Default 128.")
    sequences: Tokens = Field(default=128, description="Sequences in the alignment. Default 128.")
    residues: Tokens = Field(default=256, description="Residues in a crop. Default 256.")
    msa_heads: Width = Field(default=8, description="Heads of attention in the alignment. Default 8.")
    pair_heads: Width = Field(default=4, description="Heads of attention among pairs. Default 4.")
    head_size: Width = Field(default=32, description="Width of one head. Default 32.")
    outer: Width = Field(default=32, description="Width inside the outer product mean. Default 32.")
    triangle: Width = Field(default=128, description="Width inside the triangle multiplications. Default 128.")
    transition: Width = Field(default=4, description="Width inside the transitions, in multiples. Default 4.")
    recycles: int = Field(default=3, ge=0, le=16, description="Forwards without gradients before the one with them. "
                          "Default 3.")


class DlrmModel(Section):
    """A deep learning recommendation model: embedding tables beside dense features, an interaction, a top MLP.

    With one ``dense_branches`` and ``interaction: dot`` it is DLRM (Naumov et al., 2019); several branches joined by
    ``concat`` are the variant of the GraphPipe evaluation.
    """

    family: Literal["dlrm"] = Field(description="The model family.")
    tables: tuple[Rows, ...] = Field(strict=False, min_length=1, max_length=1024, description="Rows of each embedding "
                                    "table.", examples=[[1000000, 1000000]])
    dimension: Width = Field(description="Width of the embeddings.", examples=[128])
    bag: Tokens = Field(default=1, description="Rows that a sample looks up in each table and adds. Default 1.")
    dense: Width = Field(default=13, description="Dense features of a branch. Default 13.")
    dense_branches: int = Field(default=1, ge=1, le=64, description="Branches of dense features. Default 1.")
    bottom: tuple[Width, ...] = Field(strict=False, min_length=1, max_length=64, description="Widths of a dense "
                                      "branch's layers.", examples=[[512, 256, 128]])
    top: tuple[Width, ...] = Field(strict=False, min_length=1, max_length=64, description="Widths of the layers behind "
                                 "the interaction.", examples=[[1024, 1024, 512, 256, 1]])
    interaction: Literal["dot", "concat"] = Field(default="dot", description="dot: products of every two vectors, "
                                                  "beside the dense one. Default dot.")

    @model_validator(mode="after")
    def _check(self) -> DlrmModel:
        if self.interaction == "dot" and self.bottom[-1] != self.dimension:
            refuse(f"bottom ends with {self.bottom[-1]}, but products need vectors of one width ({self.dimension}, "
                   "dimension)")
        return self


class UnoModel(Section):
    """CANDLE-Uno: one tower of dense layers a feature, joined, and a regression behind (ECP-CANDLE Benchmarks)."""

    family: Literal["uno"] = Field(description="The model family.")
    features: tuple[Width, ...] = Field(strict=False, min_length=1, max_length=64, description="Width of each encoded "
                                      "feature: one tower each.", examples=[[942, 5270]])
    plain: int = Field(default=0, ge=0, le=MAX_WIDTH, description="Features that go to the joint layers as they "
                       "are, such as a dose. Default 0.")
    tower: tuple[Width, ...] = Field(default=(1000, 1000, 1000), strict=False, min_length=1, max_length=64,
                                   description="Widths of a tower's layers. Default three of 1000.")
    joint: tuple[Width, ...] = Field(default=(1000, 1000, 1000), strict=False, min_length=1, max_length=64,
                                   description="Widths of the layers behind. Default three of 1000.")


class ResNetModel(Section):
    """A residual network (He et al., 2016), wide with ``width_factor`` 2 (Zagoruyko and Komodakis, 2016)."""

    family: Literal["resnet"] = Field(description="The model family.")
    depths: tuple[Layers, ...] = Field(strict=False, min_length=1, max_length=8, description="Blocks of each stage.",
                                    examples=[[3, 4, 6, 3]])
    bottleneck: bool = Field(default=True, description="Blocks of three convolutions rather than two. Default true.")
    width: Width = Field(default=64, description="Channels of the first stage. Default 64.")
    width_factor: Width = Field(default=1, description="How much wider the inner convolutions of a bottleneck are. "
                              "Default 1.")
    image: Pixels = Field(default=224, description="Height and width of an image. Default 224.")
    classes: Width = Field(default=1000, description="Classes to tell apart. Default 1000.")

    @model_validator(mode="after")
    def _check(self) -> ResNetModel:
        divides(4 * 2 ** (len(self.depths) - 1), self.image, f"4 x 2^{len(self.depths) - 1}", "image")
        if self.width_factor > 1 and not self.bottleneck:
            refuse("width_factor widens bottlenecks; without them give a larger width")
        return self


FamilyModel: TypeAlias = Annotated[
    GptModel | MoeModel | T5Model | EncoderModel | ClipModel | FlavaModel | MmtModel | SwinModel | EvoformerModel
    | DlrmModel | UnoModel | ResNetModel, Discriminator("family")]

#: The families by the name a spec gives them.
FAMILIES: dict[str, type[Section]] = {
    get_args(model.model_fields["family"].annotation)[0]: model for model in get_args(get_args(FamilyModel)[0])}
