"""The families of transformers as sections of a spec: decoders, mixtures of experts, encoders, both, and two towers.

The properties of layers are defined once (:class:`TransformerModel`); the fields' defaults are those of GPT-2 and
GPT-3.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from weft.models.spec.base import Layers, Pixels, Section, Tokens, Vocabulary, Width, divides, refuse


class LatentAttention(Section):
    """Keys and values made from one small vector a token (DeepSeek-V2)."""

    query_rank: Width | None = Field(default=None, description="Width of the vector that queries are made from. "
                                     "Default: they are made from the hidden state.")
    key_rank: Width = Field(description="Width of the vector that keys and values are made from.", examples=[512])
    plain: Width = Field(description="Width of a head's queries and keys without positions.", examples=[128])
    rotary: Width = Field(description="Width of their rotated part; that of keys is shared by all heads.",
                          examples=[64])
    value: Width = Field(description="Width of a head's values.", examples=[128])


class TransformerModel(Section):
    """``layers`` equal transformer layers, and what they are like."""

    layers: Layers = Field(description="Number of transformer layers.", examples=[24])
    hidden: Width = Field(description="Width of the hidden state.", examples=[2048])
    heads: Width = Field(description="Attention heads.", examples=[32])
    feed_forward: Width | None = Field(default=None, description="Width inside the feed-forward part. Default "
                                     "4 times hidden.")
    kv_heads: Width | None = Field(default=None, description="Heads of keys and values, shared by groups of "
                                 "queries. Default heads.")
    head_size: Width | None = Field(default=None, description="Width of one head. Default hidden / heads.")
    positions: Literal["learned", "rotary", "none"] = Field(
        default="learned", description="How a token's place is told: a learned table, a rotation of queries and keys, "
        "or nothing that costs (ALiBi). Default learned.")
    max_positions: Tokens | None = Field(default=None, description="Rows of the learned table. Default sequence.")
    norm: Literal["layer_norm", "rms_norm", "plain"] = Field(default="layer_norm", description="plain: a layer norm "
                                                             "without parameters. Default layer_norm.")
    norm_place: Literal["before", "after", "output", "both"] = Field(
        default="before", description="before attention and feed-forward part; after their residuals (BERT); on their "
        "output, before it is added (OLMo 2); both before and on the output (Gemma 2). Default before.")
    norm_bias: bool | None = Field(default=None, description="Biases of layer norms, where that differs from bias.")
    final_norm: bool = Field(default=True, description="Whether a norm follows the last layer. Default true.")
    activation: Literal["gelu", "relu", "swiglu", "geglu"] = Field(default="gelu", description="Default gelu.")
    bias: bool = Field(default=True, description="Whether linear layers and layer norms have biases. Default true.")
    attention_bias: bool | None = Field(default=None, description="Biases of the projections to queries, keys and "
                                        "values, where that differs from bias.")
    out_bias: bool | None = Field(default=None, description="Bias of attention's output projection, where that differs "
                                  "from bias.")
    mlp_bias: bool | None = Field(default=None, description="Biases of feed-forward parts, where that differs from "
                                  "bias.")
    qk_norm: Literal["head", "heads", "width"] | None = Field(
        default=None, description="Queries and keys are normalised: head: each by one scale for all heads (Qwen3). "
        "heads: by one for each head (Command R+). width: over all heads together (OLMo 2). Default not.")
    window: Tokens | None = Field(default=None, description="Tokens that each token sees at most; costs of fused "
                                  "attention follow. Default all.")
    windowed: tuple[bool, ...] | None = Field(
        default=None, strict=False, min_length=1, max_length=1024, description="Which layers have the window, a "
        "pattern that repeats. Default all.", examples=[[True, False]])
    sinks: bool = Field(default=False, description="A learned logit a head beside the scores (gpt-oss). Default false.")
    latent: LatentAttention | None = Field(default=None, description="Keys and values made from latent vectors.")
    parallel: bool = Field(default=False, description="Attention and feed-forward side by side on one residual, as "
                           "GPT-NeoX has them. Default false.")
    one_norm: bool = Field(default=False, description="parallel behind one norm in place of two (GPT-J). Default "
                           "false.")
    embedding_norm: bool = Field(default=False, description="Whether a norm follows the embedding. Default false.")
    attention: Literal["unfused", "fused"] = Field(default="unfused", description="fused: one kernel that does not "
                                                   "keep the scores (FlashAttention). Default unfused.")
    dropout: bool = Field(default=True, description="Whether training drops out. Default true.")

    @model_validator(mode="after")
    def _check(self) -> TransformerModel:
        if self.head_size is None and self.latent is None:
            divides(self.heads, self.hidden, "heads", "hidden")
        divides(self.kv_heads or self.heads, self.heads, "kv_heads", "heads")
        if self.one_norm and not self.parallel:
            refuse("one_norm is for attention and feed-forward parts side by side; give parallel: true")
        if self.windowed is not None and self.window is None:
            refuse("windowed says which layers have a window; give window, its tokens")
        return self


class GptModel(TransformerModel):
    """A GPT: an embedding, ``layers`` equal transformer layers, and a head (final norm, logits, loss).

    The defaults are GPT-2's and GPT-3's; rotary positions, RMS norm, a gated activation and grouped queries make it a
    LLaMA, parallel attention a GPT-NeoX.
    """

    family: Literal["gpt"] = Field(description="The model family.")
    vocabulary: Vocabulary = Field(description="Entries of the vocabulary, padding included.", examples=[51200])
    sequence: Tokens = Field(description="Tokens in a sequence.", examples=[2048])
    tied: bool = Field(default=True, description="Whether the head shares the embedding's table. Default true.")
    head_bias: bool = Field(default=False, description="Whether the head's logits have biases. Default false.")
    embedding_width: Width | None = Field(default=None, description="Width of the embedding's and the head's table, "
                                          "mapped to hidden and back (OPT-350M). Default hidden.")
    predict: int = Field(default=0, ge=0, le=16, description="Layers behind the last that predict one more token each "
                         "(multi-token prediction, DeepSeek-V3). Default 0.")


class MoeModel(GptModel):
    """A GPT whose feed-forward parts are mixtures of experts (GShard, Switch Transformer, Mixtral)."""

    family: Literal["moe"] = Field(description="The model family.")  # type: ignore[assignment]
    experts: Width = Field(description="Experts in a layer.", examples=[8])
    active: Width = Field(default=2, description="Experts that each token goes to. Default 2.")
    density: float | None = Field(default=None, ge=1, le=2**20, description="Experts that a token goes to on average, "
                                  "in place of active, where tokens differ. Default active.", examples=[2.5])
    every: Width = Field(default=1, description="Every how many layers one has experts, the last of them. "
                       "Default 1.")
    dense_first: int = Field(default=0, ge=0, le=1024, description="Layers at the start without experts. Default 0.")
    expert_feed_forward: Width | None = Field(default=None, description="Width inside an expert. Default feed_forward.")
    shared: int = Field(default=0, ge=0, le=2**20, description="Width inside an expert that every token goes to "
                        "beside its own. Default 0: none.")
    shared_gate: bool = Field(default=False, description="Whether a learned gate scales the shared expert. Default "
                              "false.")
    router_bias: bool = Field(default=False, description="Whether the router's logits have biases. Default false.")
    capacity_factor: float = Field(default=1.0, ge=0.1, le=100.0, description="Room of an expert, in multiples of an "
                                   "even share of the tokens. Default 1.")

    @model_validator(mode="after")
    def _check_experts(self) -> MoeModel:
        if self.active > self.experts:
            refuse(f"active is {self.active}, but there are {self.experts} experts")
        if self.density is not None and self.density > self.experts:
            refuse(f"density is {self.density:g}, but there are {self.experts} experts")
        if self.every > self.layers:
            refuse(f"every is {self.every}, but there are {self.layers} layers")
        if self.dense_first >= self.layers:
            refuse(f"dense_first is {self.dense_first}, but there are {self.layers} layers")
        return self


class EncoderModel(TransformerModel):
    """Transformer layers over a text (BERT) or an image (ViT), every token seeing all."""

    family: Literal["encoder"] = Field(description="The model family.")
    vocabulary: Vocabulary | None = Field(default=None, description="Entries of the vocabulary, for texts.",
                                          examples=[30522])
    sequence: Tokens | None = Field(default=None, description="Tokens of a text.", examples=[512])
    types: int = Field(default=0, ge=0, le=1024, description="Kinds of tokens that have an embedding. Default 0.")
    image: Pixels | None = Field(default=None, description="Height and width of an image, for images.",
                                 examples=[224])
    patch: Pixels = Field(default=16, description="Height and width of a patch. Default 16.")
    channels: Width = Field(default=3, description="Channels of an image. Default 3.")
    patch_bias: bool = Field(default=True, description="Whether the map of patches has a bias. Default true.")
    head: Literal["masked", "classes", "none"] = Field(
        default="masked", description="masked: a dense layer, a norm and logits over the vocabulary, tied to the "
        "embedding. classes: logits from the first token. none: the hidden states. Default masked.")
    classes: Width = Field(default=1000, description="Classes to tell apart. Default 1000.")

    @model_validator(mode="after")
    def _check_input(self) -> EncoderModel:
        if (self.vocabulary is None) == (self.image is None):
            refuse("give either vocabulary, for texts, or image")
        if self.image is not None:
            divides(self.patch, self.image, "patch", "image")
        elif self.sequence is None:
            refuse("sequence is missing: the tokens of a text")
        if self.head == "masked" and self.vocabulary is None:
            refuse("head is masked, which is for texts; give classes or none")
        return self


class ClipModel(Section):
    """Two towers, text and image, whose first tokens are compared (CLIP, Radford et al., ICML 2021)."""

    family: Literal["clip"] = Field(description="The model family.")
    text: EncoderModel = Field(description="The text's tower, an encoder.")
    image: EncoderModel = Field(description="The image's tower, an encoder.")
    projection: Width = Field(description="Width in which both are compared.", examples=[512])

    @model_validator(mode="after")
    def _check(self) -> ClipModel:
        if self.text.vocabulary is None or self.image.image is None:
            refuse("text is an encoder with a vocabulary, image one with an image")
        return self


class T5Model(Section):
    """An encoder and a decoder: T5 and mT5, and with other norms and positions BART and Whisper.

    The defaults are T5's: RMS norm, no biases, relative positions learned by the first layer of each side, a head tied
    to the embedding, one embedding for both sides. mT5 (and T5 1.1) has ``activation: geglu`` and ``tied: false``.
    """

    family: Literal["t5"] = Field(description="The model family.")
    encoder_layers: Layers = Field(description="Layers of the encoder.", examples=[24])
    decoder_layers: Layers = Field(description="Layers of the decoder.", examples=[24])
    hidden: Width = Field(description="Width of the hidden state.", examples=[1024])
    heads: Width = Field(description="Attention heads.", examples=[16])
    feed_forward: Width = Field(description="Width inside the feed-forward part.", examples=[4096])
    vocabulary: Vocabulary = Field(description="Entries of the vocabulary, padding included.", examples=[32128])
    sequence: Tokens = Field(description="Tokens that the encoder reads.", examples=[512])
    target: Tokens | None = Field(default=None, description="Tokens that the decoder writes. Default sequence.")
    head_size: Width | None = Field(default=None, description="Width of one head. Default hidden / heads.")
    mels: int = Field(default=0, ge=0, le=1024, description="Of speech: bins of the spectrogram, whose frames, two a "
                      "token, the encoder reads through two convolutions, at fixed positions. Default 0: a text.")
    positions: Literal["relative", "learned", "apart"] = Field(
        default="relative", description="learned: one table for both sides. apart: one for each. Default relative.")
    max_positions: Tokens | None = Field(default=None, description="Rows of learned positions of the encoder. Default "
                                         "as many as tokens.")
    max_target: Tokens | None = Field(default=None, description="Rows of learned positions of the decoder, if apart. "
                                      "Default as many as tokens.")
    buckets: Width = Field(default=32, description="Buckets of relative distance. Default 32.")
    every_bias: bool = Field(default=False, description="Whether every layer learns relative positions of its own "
                             "(umT5). Default false.")
    norm: Literal["layer_norm", "rms_norm"] = Field(default="rms_norm", description="Default rms_norm.")
    norm_place: Literal["before", "after"] = Field(default="before", description="after: behind the residuals (BART). "
                                                   "Default before.")
    embedding_norm: bool = Field(default=False, description="Whether a norm follows the embeddings. Default false.")
    final_norm: bool = Field(default=True, description="Whether a norm ends each side. Default true.")
    activation: Literal["gelu", "relu", "geglu", "swiglu"] = Field(default="relu", description="Default relu.")
    bias: bool = Field(default=False, description="Whether linear layers and layer norms have biases. Default false.")
    key_bias: bool = Field(default=True, description="Whether projections to keys have biases too, if others have. "
                           "Default true.")
    tied: bool = Field(default=True, description="Whether the head shares the embedding's table. Default true.")
    attention: Literal["unfused", "fused"] = Field(default="unfused", description="fused: see gpt; relative positions "
                                                   "need unfused. Default unfused.")
    dropout: bool = Field(default=True, description="Whether training drops out. Default true.")

    @model_validator(mode="after")
    def _check(self) -> T5Model:
        if self.head_size is None:
            divides(self.heads, self.hidden, "heads", "hidden")
        if self.mels and self.positions != "apart":
            refuse("mels is for speech, whose positions are fixed on the encoder's side; give positions: apart")
        return self
