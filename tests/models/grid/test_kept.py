"""What is kept where cheap operators run again, and in 8 bits: counted by hand."""

from __future__ import annotations

from dataclasses import replace

from tests.models.grid.test_rank import FREE, MOE, links
from weft.models.grid.degrees import Degrees
from weft.models.grid.rank import GridRanks, RankLayer, kept_otherwise
from weft.models.spec.transformers import LatentAttention
from weft.models.times.roofline import Roofline
from weft.models.zoo.gpt import gpt_graph

MODEL = MOE.model_copy(update={"bias": False, "norm": "rms_norm", "activation": "swiglu", "expert_feed_forward": 512})
#: Bytes of one number a token of a micro-batch, in 16 bits.
TOKENS = 2 * 2048


def layer(model: object = MODEL, which: int = 3, **degrees: object) -> RankLayer:
    return GridRanks(model, links()).of(replace(Degrees(), **degrees))[which]  # type: ignore[arg-type]


def test_light_recomputation_keeps_what_norms_and_activations_read() -> None:
    none, light = (layer(recompute=way).cost for way in ("none", "light"))
    # The results of both norms, and of the activation of 2 experts of 512 a token; what they read is kept anyway.
    assert none.activation_bytes - light.activation_bytes == TOKENS * (2 * 1024 + 2 * 512)
    assert light.forward == none.forward and none.backward < light.backward < none.backward + none.forward / 4
    assert light.weight_grad_bytes == none.weight_grad_bytes and light.weight_grad == none.weight_grad


def test_latent_attention_runs_again_from_its_latent_vectors() -> None:
    latent = LatentAttention(query_rank=256, key_rank=128, plain=64, rotary=32, value=64)
    model = MODEL.model_copy(update={"latent": latent})
    none, light = (layer(model, recompute=way).cost for way in ("none", "light"))
    of_heads = 16 * (2 * (64 + 32) + 64)  # queries, keys and values of all heads
    assert none.activation_bytes - light.activation_bytes == TOKENS * (
        2 * 1024 + 2 * 512 + of_heads + 256 + 128)  # the keys' latent vector is a view of what its norm keeps


def test_in_8_bits_each_product_keeps_a_copy_of_its_own() -> None:
    half, eighth = (layer(which=1, precision=bits).cost for bits in ("bf16", "fp8"))  # a dense layer
    # Of both norms' results and of what is between the products half is left; of attention's, which attention keeps
    # too, there is half more.
    assert half.activation_bytes - eighth.activation_bytes == TOKENS // 2 * (1024 + 1024 + 4 * 1024 - 1024)


def test_slices_are_gathered_in_what_they_are_kept_in() -> None:
    for way in ("none", "light"):
        half, eighth = (GridRanks(MODEL, FREE).of(Degrees(tensor=2, recompute=way, precision=bits))[3].cost
                        for bits in ("bf16", "fp8"))
        assert 0 < half.activation_bytes - eighth.activation_bytes < half.activation_bytes / 2
        assert (eighth.activation_bytes + eighth.workspace_backward
                <= half.activation_bytes + half.workspace_backward)
    whole, sliced = (GridRanks(MODEL, FREE).of(Degrees(tensor=t, recompute="light"))[3].cost for t in (1, 2))
    assert sliced.activation_bytes < 0.6 * whole.activation_bytes


def test_nothing_changes_where_nothing_is_picked() -> None:
    graph = gpt_graph(MODEL, 1)
    times = Roofline(links().device).times(graph)
    assert kept_otherwise(graph, times, lambda _: False, lambda _: False) == (graph, times)
