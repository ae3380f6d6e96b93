"""The model families of the zoo as sections of a spec: their sizes, and which sizes belong together.

How a family's operator graph is built from them is in :mod:`models.zoo`. The names and meanings of the fields are the
field's own; published sizes are in :mod:`models.zoo.published`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, model_validator

from models.section import MAX_LAYERS, Section, refuse

__all__ = ["FAMILIES", "DlrmModel", "EvoformerModel", "FamilyModel", "FlavaModel", "GptModel", "MmtModel", "MoeModel",
           "ResNetModel", "SwinModel", "T5Model", "UnoModel"]

def _divides(part: int, whole: int, part_name: str, whole_name: str) -> None:
    if whole % part:
        refuse(f"{whole_name} is {whole}, it must be a multiple of {part_name} ({part})")


class GptModel(Section):
    """A GPT: an embedding, ``layers`` equal transformer layers, and a head (final norm, logits, loss).

    The defaults are GPT-2's and GPT-3's; rotary positions, RMS norm, a gated activation and grouped queries make it a
    LLaMA, parallel attention a GPT-NeoX.
    """

    family: Literal["gpt"] = Field(description="The model family.")
    layers: int = Field(ge=1, le=MAX_LAYERS, description="Number of transformer layers.", examples=[24])
    hidden: int = Field(ge=1, description="Width of the hidden state.", examples=[2048])
    heads: int = Field(ge=1, description="Attention heads.", examples=[32])
    vocabulary: int = Field(ge=1, description="Entries of the vocabulary, padding included.", examples=[51200])
    sequence: int = Field(ge=1, description="Tokens in a sequence.", examples=[2048])
    feed_forward: int | None = Field(default=None, ge=1, description="Width inside the feed-forward part. Default "
                                     "4 times hidden.")
    kv_heads: int | None = Field(default=None, ge=1, description="Heads of keys and values, shared by groups of "
                                 "queries. Default heads.")
    head_size: int | None = Field(default=None, ge=1, description="Width of one head. Default hidden / heads.")
    positions: Literal["learned", "rotary"] = Field(default="learned", description="How a token's place is told: a "
                                                    "learned table or a rotation of queries and keys. Default learned.")
    max_positions: int | None = Field(default=None, ge=1, description="Rows of the learned table. Default sequence.")
    norm: Literal["layer_norm", "rms_norm"] = Field(default="layer_norm", description="Default layer_norm.")
    activation: Literal["gelu", "relu", "swiglu", "geglu"] = Field(default="gelu", description="Default gelu.")
    bias: bool = Field(default=True, description="Whether linear layers and layer norms have biases. Default true.")
    attention_bias: bool | None = Field(default=None, description="Biases of the projections to queries, keys and "
                                        "values, where that differs from bias.")
    parallel: bool = Field(default=False, description="Attention and feed-forward side by side on one residual, as "
                           "GPT-NeoX has them. Default false.")
    tied: bool = Field(default=True, description="Whether the head shares the embedding's table. Default true.")
    attention: Literal["unfused", "fused"] = Field(default="unfused", description="fused: one kernel that does not "
                                                   "keep the scores (FlashAttention). Default unfused.")
    dropout: bool = Field(default=True, description="Whether training drops out. Default true.")

    @model_validator(mode="after")
    def _check(self) -> GptModel:
        if self.head_size is None:
            _divides(self.heads, self.hidden, "heads", "hidden")
        _divides(self.kv_heads or self.heads, self.heads, "kv_heads", "heads")
        return self


class MoeModel(GptModel):
    """A GPT whose feed-forward parts are mixtures of experts (GShard, Switch Transformer, Mixtral)."""

    family: Literal["moe"] = Field(description="The model family.")  # type: ignore[assignment]
    experts: int = Field(ge=1, description="Experts in a layer.", examples=[8])
    active: int = Field(default=2, ge=1, description="Experts that each token goes to. Default 2.")
    every: int = Field(default=1, ge=1, description="Every how many layers one has experts, the last of them. "
                       "Default 1.")
    capacity_factor: float = Field(default=1.0, ge=0.1, le=100.0, description="Room of an expert, in multiples of an "
                                   "even share of the tokens. Default 1.")

    @model_validator(mode="after")
    def _check_experts(self) -> MoeModel:
        if self.active > self.experts:
            refuse(f"active is {self.active}, but there are {self.experts} experts")
        if self.every > self.layers:
            refuse(f"every is {self.every}, but there are {self.layers} layers")
        return self


class T5Model(Section):
    """T5 and mT5: encoder and decoder with one shared embedding.

    The defaults are T5's: RMS norm, no biases, relative positions learned by the first layer of each side, a head tied
    to the embedding. mT5 (and T5 1.1) has ``activation: geglu`` and ``tied: false``.
    """

    family: Literal["t5"] = Field(description="The model family.")
    encoder_layers: int = Field(ge=1, le=MAX_LAYERS, description="Layers of the encoder.", examples=[24])
    decoder_layers: int = Field(ge=1, le=MAX_LAYERS, description="Layers of the decoder.", examples=[24])
    hidden: int = Field(ge=1, description="Width of the hidden state.", examples=[1024])
    heads: int = Field(ge=1, description="Attention heads.", examples=[16])
    feed_forward: int = Field(ge=1, description="Width inside the feed-forward part.", examples=[4096])
    vocabulary: int = Field(ge=1, description="Entries of the vocabulary, padding included.", examples=[32128])
    sequence: int = Field(ge=1, description="Tokens that the encoder reads.", examples=[512])
    target: int | None = Field(default=None, ge=1, description="Tokens that the decoder writes. Default sequence.")
    head_size: int | None = Field(default=None, ge=1, description="Width of one head. Default hidden / heads.")
    positions: Literal["relative", "learned"] = Field(default="relative", description="Default relative.")
    buckets: int = Field(default=32, ge=1, description="Buckets of relative distance. Default 32.")
    norm: Literal["layer_norm", "rms_norm"] = Field(default="rms_norm", description="Default rms_norm.")
    activation: Literal["gelu", "relu", "geglu", "swiglu"] = Field(default="relu", description="Default relu.")
    bias: bool = Field(default=False, description="Whether linear layers and layer norms have biases. Default false.")
    tied: bool = Field(default=True, description="Whether the head shares the embedding's table. Default true.")
    dropout: bool = Field(default=True, description="Whether training drops out. Default true.")

    @model_validator(mode="after")
    def _check(self) -> T5Model:
        if self.head_size is None:
            _divides(self.heads, self.hidden, "heads", "hidden")
        return self


class FlavaModel(Section):
    """Two towers, text and image, and a fusion transformer over both (FLAVA, Singh et al., CVPR 2022)."""

    family: Literal["flava"] = Field(description="The model family.")
    text_layers: int = Field(ge=1, le=MAX_LAYERS, description="Layers of the text tower.", examples=[12])
    image_layers: int = Field(ge=1, le=MAX_LAYERS, description="Layers of the image tower.", examples=[12])
    fusion_layers: int = Field(ge=1, le=MAX_LAYERS, description="Layers over both.", examples=[6])
    hidden: int = Field(ge=1, description="Width of the hidden state.", examples=[768])
    heads: int = Field(ge=1, description="Attention heads.", examples=[12])
    feed_forward: int | None = Field(default=None, ge=1, description="Width inside the feed-forward part. Default "
                                     "4 times hidden.")
    vocabulary: int = Field(default=30522, ge=1, description="Entries of the text vocabulary. Default 30522.")
    sequence: int = Field(default=77, ge=1, description="Tokens of a text. Default 77.")
    max_positions: int = Field(default=512, ge=1, description="Rows of the learned positions of texts. Default 512.")
    image: int = Field(default=224, ge=1, description="Height and width of an image. Default 224.")
    patch: int = Field(default=16, ge=1, description="Height and width of a patch. Default 16.")
    dropout: bool = Field(default=False, description="Whether training drops out. Default false.")

    @model_validator(mode="after")
    def _check(self) -> FlavaModel:
        _divides(self.heads, self.hidden, "heads", "hidden")
        _divides(self.patch, self.image, "patch", "image")
        return self


class MmtModel(Section):
    """Equal transformer branches whose outputs are joined at the end: the multimodal transformer of the GraphPipe
    evaluation (Jeon et al., ASPLOS 2025)."""

    family: Literal["mmt"] = Field(description="The model family.")
    branches: int = Field(default=4, ge=1, le=64, description="Branches. Default 4.")
    layers: int = Field(default=8, ge=1, le=MAX_LAYERS, description="Transformer layers of a branch. Default 8.")
    hidden: int = Field(default=1024, ge=1, description="Width of the hidden state. Default 1024.")
    heads: int = Field(default=16, ge=1, description="Attention heads. Default 16.")
    feed_forward: int = Field(default=4096, ge=1, description="Width inside the feed-forward part. Default 4096.")
    sequence: int = Field(default=256, ge=1, description="Tokens of a branch. Default 256.")
    dropout: bool = Field(default=False, description="Whether training drops out. Default false.")

    @model_validator(mode="after")
    def _check(self) -> MmtModel:
        _divides(self.heads, self.hidden, "heads", "hidden")
        return self


class SwinModel(Section):
    """A Swin transformer (Liu et al., ICCV 2021): attention in windows, four stages of falling resolution."""

    family: Literal["swin"] = Field(description="The model family.")
    width: int = Field(ge=1, description="Channels of the first stage; each later stage has twice as many.",
                       examples=[96])
    depths: tuple[int, ...] = Field(strict=False, min_length=1, max_length=8, description="Layers of each stage.",
                                    examples=[[2, 2, 6, 2]])
    heads: tuple[int, ...] = Field(strict=False, min_length=1, max_length=8, description="Attention heads of each "
                                   "stage.", examples=[[3, 6, 12, 24]])
    image: int = Field(default=224, ge=1, description="Height and width of an image. Default 224.")
    patch: int = Field(default=4, ge=1, description="Height and width of a patch. Default 4.")
    window: int = Field(default=7, ge=1, description="Height and width of a window, in patches. Default 7.")
    mlp_ratio: int = Field(default=4, ge=1, description="Width inside the feed-forward part, in multiples of the "
                           "channels. Default 4.")
    classes: int = Field(default=1000, ge=1, description="Classes to tell apart. Default 1000.")

    @model_validator(mode="after")
    def _check(self) -> SwinModel:
        if len(self.heads) != len(self.depths):
            refuse(f"heads lists {len(self.heads)} stages, but depths {len(self.depths)}")
        if min(self.depths) < 1 or max(self.depths) > MAX_LAYERS:
            refuse(f"depths must be from 1 to {MAX_LAYERS} each")
        if min(self.heads) < 1:
            refuse("heads must be at least 1 each")
        _divides(self.patch, self.image, "patch", "image")
        for stage, heads in enumerate(self.heads):
            side = self.image // self.patch // 2**stage
            if side * 2**stage * self.patch != self.image or side % self.window:
                refuse(f"image is {self.image}: stage {stage} has {self.image / self.patch / 2**stage:g} patches on a "
                       f"side, which must be a multiple of window ({self.window})")
            _divides(heads, self.width * 2**stage, f"heads of stage {stage}", f"the width of stage {stage}")
        return self


class EvoformerModel(Section):
    """The Evoformer stack of AlphaFold 2 (Jumper et al., 2021, supplement 1.6), trained with recycling.

    The stack runs ``recycles`` times without gradients and once with them.
    """

    family: Literal["evoformer"] = Field(description="The model family.")
    blocks: int = Field(default=48, ge=1, le=MAX_LAYERS, description="Evoformer blocks. Default 48.")
    msa: int = Field(default=256, ge=1, description="Width of the alignment's representation. Default 256.")
    pair: int = Field(default=128, ge=1, description="Width of the pairs' representation. Default 128.")
    sequences: int = Field(default=128, ge=1, description="Sequences in the alignment. Default 128.")
    residues: int = Field(default=256, ge=1, description="Residues in a crop. Default 256.")
    msa_heads: int = Field(default=8, ge=1, description="Heads of attention in the alignment. Default 8.")
    pair_heads: int = Field(default=4, ge=1, description="Heads of attention among pairs. Default 4.")
    head_size: int = Field(default=32, ge=1, description="Width of one head. Default 32.")
    outer: int = Field(default=32, ge=1, description="Width inside the outer product mean. Default 32.")
    triangle: int = Field(default=128, ge=1, description="Width inside the triangle multiplications. Default 128.")
    transition: int = Field(default=4, ge=1, description="Width inside the transitions, in multiples. Default 4.")
    recycles: int = Field(default=3, ge=0, le=16, description="Forwards without gradients before the one with them. "
                          "Default 3.")


class DlrmModel(Section):
    """A deep learning recommendation model: embedding tables beside dense features, an interaction, a top MLP.

    With one ``dense_branches`` and ``interaction: dot`` it is DLRM (Naumov et al., 2019); several branches joined by
    ``concat`` are the variant of the GraphPipe evaluation.
    """

    family: Literal["dlrm"] = Field(description="The model family.")
    tables: tuple[int, ...] = Field(strict=False, min_length=1, max_length=1024, description="Rows of each embedding "
                                    "table.", examples=[[1000000, 1000000]])
    dimension: int = Field(ge=1, description="Width of the embeddings.", examples=[128])
    bag: int = Field(default=1, ge=1, description="Rows that a sample looks up in each table and adds. Default 1.")
    dense: int = Field(default=13, ge=1, description="Dense features of a branch. Default 13.")
    dense_branches: int = Field(default=1, ge=1, le=64, description="Branches of dense features. Default 1.")
    bottom: tuple[int, ...] = Field(strict=False, min_length=1, max_length=64, description="Widths of a dense branch's "
                                    "layers.", examples=[[512, 256, 128]])
    top: tuple[int, ...] = Field(strict=False, min_length=1, max_length=64, description="Widths of the layers behind "
                                 "the interaction.", examples=[[1024, 1024, 512, 256, 1]])
    interaction: Literal["dot", "concat"] = Field(default="dot", description="dot: products of every two vectors, "
                                                  "beside the dense one. Default dot.")

    @model_validator(mode="after")
    def _check(self) -> DlrmModel:
        if min((*self.tables, *self.bottom, *self.top)) < 1:
            refuse("tables, bottom and top must be at least 1 each")
        if self.interaction == "dot" and self.bottom[-1] != self.dimension:
            refuse(f"bottom ends with {self.bottom[-1]}, but products need vectors of one width ({self.dimension}, "
                   "dimension)")
        return self


class UnoModel(Section):
    """CANDLE-Uno: one tower of dense layers a feature, joined, and a regression behind (ECP-CANDLE Benchmarks)."""

    family: Literal["uno"] = Field(description="The model family.")
    features: tuple[int, ...] = Field(strict=False, min_length=1, max_length=64, description="Width of each encoded "
                                      "feature: one tower each.", examples=[[942, 5270]])
    plain: int = Field(default=0, ge=0, description="Features that go to the joint layers as they are, such as a "
                       "dose. Default 0.")
    tower: tuple[int, ...] = Field(default=(1000, 1000, 1000), strict=False, min_length=1, max_length=64,
                                   description="Widths of a tower's layers. Default three of 1000.")
    joint: tuple[int, ...] = Field(default=(1000, 1000, 1000), strict=False, min_length=1, max_length=64,
                                   description="Widths of the layers behind. Default three of 1000.")

    @model_validator(mode="after")
    def _check(self) -> UnoModel:
        if min((*self.features, *self.tower, *self.joint)) < 1:
            refuse("features, tower and joint must be at least 1 each")
        return self


class ResNetModel(Section):
    """A residual network (He et al., 2016), wide with ``width_factor`` 2 (Zagoruyko and Komodakis, 2016)."""

    family: Literal["resnet"] = Field(description="The model family.")
    depths: tuple[int, ...] = Field(strict=False, min_length=1, max_length=8, description="Blocks of each stage.",
                                    examples=[[3, 4, 6, 3]])
    bottleneck: bool = Field(default=True, description="Blocks of three convolutions rather than two. Default true.")
    width: int = Field(default=64, ge=1, description="Channels of the first stage. Default 64.")
    width_factor: int = Field(default=1, ge=1, description="How much wider the inner convolutions of a bottleneck are. "
                              "Default 1.")
    image: int = Field(default=224, ge=1, description="Height and width of an image. Default 224.")
    classes: int = Field(default=1000, ge=1, description="Classes to tell apart. Default 1000.")

    @model_validator(mode="after")
    def _check(self) -> ResNetModel:
        if min(self.depths) < 1 or max(self.depths) > MAX_LAYERS:
            refuse(f"depths must be from 1 to {MAX_LAYERS} each")
        _divides(4 * 2 ** (len(self.depths) - 1), self.image, f"4 x 2^{len(self.depths) - 1}", "image")
        if self.width_factor > 1 and not self.bottleneck:
            refuse("width_factor widens bottlenecks; without them give a larger width")
        return self


FamilyModel: TypeAlias = Annotated[
    GptModel | MoeModel | T5Model | FlavaModel | MmtModel | SwinModel | EvoformerModel | DlrmModel | UnoModel
    | ResNetModel, Discriminator("family")]

#: The families by the name a spec gives them.
FAMILIES: dict[str, type[Section]] = {
    "gpt": GptModel, "moe": MoeModel, "t5": T5Model, "flava": FlavaModel, "mmt": MmtModel, "swin": SwinModel,
    "evoformer": EvoformerModel, "dlrm": DlrmModel, "uno": UnoModel, "resnet": ResNetModel}
