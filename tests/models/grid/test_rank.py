"""What a GPU of a grid has of every layer, against published formulas and against the whole model built at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.models.grid.degrees import Degrees
from weft.models.grid.links import GridLinks
from weft.models.grid.rank import GridRanks, RankLayer, kept_otherwise
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, two_tiers
from weft.models.layers.layering import layers_of
from weft.models.spec.families import GptModel, MoeModel
from weft.models.spec.transformers import LatentAttention
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.tensor_parallel.shard import shard
from weft.models.times.roofline import Roofline
from weft.models.zoo.gpt import gpt_graph

H100 = DEVICES["h100"]
GPT = GptModel(family="gpt", layers=5, hidden=1024, heads=16, vocabulary=32000, sequence=2048)
MOE = MoeModel(family="moe", layers=6, hidden=1024, heads=16, vocabulary=32000, sequence=2048, experts=16, active=2,
               dense_first=2, expert_feed_forward=512, attention="fused", tied=False, dropout=False)


def links(*, near: float = 450e9, far: float = 50e9, size: int = 8) -> GridLinks:
    return GridLinks(H100, replace(two_tiers(AffineLink(1e-5, near), AffineLink(2e-5, far), size), stated=True))


#: Links on which nothing takes time.
FREE = GridLinks(H100, replace(two_tiers(AffineLink(0.0, 1e18), AffineLink(0.0, 1e18), 8), stated=True))


@pytest.mark.parametrize("model", [GPT, MOE], ids=["gpt", "moe"])
def test_layers_alike_are_built_once_and_cost_the_same(model: GptModel) -> None:
    own = links()
    graph = gpt_graph(model, 2)
    found = shard(graph, PartTimes(graph, Roofline(H100).times(graph), 2, Roofline(H100)),
                  lambda kind, size: own.collective(kind, size, 2), sliced=True)
    whole = layers_of(found.graph, found.times, training=True)
    assert [layer.cost for layer in GridRanks(model, own).of(Degrees(tensor=2, micro_batch=2))] == whole


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_activations_are_those_of_korthikanti(tensor: int) -> None:
    """s b h (34 + 5 a s / h) / t, 34 s b h / t with selective and 2 s b h / t with full recomputation; the statistics
    of norms and of fused attention are beside them."""
    ranks, unit = GridRanks(GPT, links()), 2048 * 2 * 1024 / tensor
    kept = {way: ranks.of(Degrees(tensor=tensor, micro_batch=2, recompute=way))[2].cost.activation_bytes
            for way in ("none", "selective", "full")}
    statistics = 2 * 2 * 2048 * 2 * 4 / tensor
    assert kept["none"] == unit * (34 + 5 * 16 * 2048 / 1024) + statistics
    assert kept["selective"] == unit * 34 + statistics + 2 * 16 * 2048 * 4 / tensor
    assert kept["full"] == 2 * unit


def test_what_runs_again_is_time_of_the_backward() -> None:
    ranks = GridRanks(GPT, links())
    plain, selective, full = (ranks.of(Degrees(recompute=way))[1].cost
                              for way in ("none", "selective", "full"))
    assert plain.forward == selective.forward == full.forward
    assert plain.backward < selective.backward < full.backward == pytest.approx(plain.backward + plain.forward)
    assert GridRanks(MOE, links()).of(Degrees(recompute="selective")) == GridRanks(MOE, links()).of(Degrees())


def test_context_shares_work_and_passes_keys_and_values_around() -> None:
    ranks = GridRanks(GPT, links())
    one, two = (ranks.of(Degrees(context=c))[1] for c in (1, 2))
    assert two.cost.activation_bytes == pytest.approx(one.cost.activation_bytes / 2, rel=0.01)
    assert two.flops == one.flops
    assert 0.5 * one.cost.forward <= two.cost.forward < 0.65 * one.cost.forward
    slow = GridRanks(GPT, links(near=1e9)).of(Degrees(context=2))[1]
    keys_and_values = 2 * 2 * 1024 * 1024
    assert slow.cost.forward - two.cost.forward > keys_and_values / 1e9 / 2  # as far as attention does not hide it
    assert slow.cost.input_grad is not None and slow.cost.weight_grad is not None
    assert slow.cost.backward == pytest.approx(slow.cost.input_grad + slow.cost.weight_grad)


def test_keys_and_values_are_gathered_before_attention_where_they_do_not_come_by_in_a_ring() -> None:
    own = links(near=1e9)
    none = GridRanks(GPT, FREE).of(Degrees(context=2))[1].cost
    found = GridRanks(GPT, own).of(Degrees(context=2, context_keys="gather"))[1].cost
    part = 2 * 2 * 1024 * 1024
    gathering = own.collective("all_gather", part, 2)
    assert found.forward == pytest.approx(none.forward + gathering, abs=2e-9)
    assert found.backward == pytest.approx(
        none.backward + gathering + own.collective("reduce_scatter", 2 * part, 2), abs=2e-9)
    assert found.workspace_forward == none.workspace_forward + 2 * part
    assert found.workspace_backward == none.workspace_backward + 4 * part


def test_all_to_alls_hide_behind_another_micro_batch() -> None:
    fast, slow = links(), links(near=1e9)
    alone = GridRanks(MOE, FREE).of(Degrees(expert=4))[3].cost
    for own in (fast, slow):
        beside, shown = (GridRanks(MOE, own).of(Degrees(expert=4, overlap_experts=way))[3].cost
                         for way in (True, False))
        sent = own.collective("all_to_all", 2048 * 2 * 1024 * 2, 4)
        assert shown.forward == pytest.approx(alone.forward + 2 * sent, abs=2e-9)
        left = max(0.0, 4 * sent - alone.forward - alone.backward)  # of a forward and a backward together
        assert beside.forward + beside.backward == pytest.approx(
            alone.forward + alone.backward + left, abs=4e-9)


def test_experts_are_dealt_out_and_tokens_sent() -> None:
    ranks = GridRanks(MOE, links())
    whole, dealt = (ranks.of(Degrees(expert=e))[3] for e in (1, 4))
    assert dealt.experts * 4 == whole.experts > 0
    assert dealt.cost.parameters == whole.cost.parameters - whole.experts + dealt.experts
    assert ranks.of(Degrees(expert=4))[1] == ranks.of(Degrees())[1]  # a layer without experts
    sent = links().collective("all_to_all", 2048 * 2 * 1024 * 2, 4)
    compute = GridRanks(MOE, links(near=1e18, far=1e18)).of(Degrees(expert=4))[3]
    assert dealt.cost.forward >= compute.cost.forward
    assert dealt.cost.forward < whole.cost.forward + 2 * sent + 1e-9
    fuller = ranks.of(Degrees(expert=4, imbalance=2.0))[3]
    assert fuller.cost.forward > dealt.cost.forward
    assert fuller.cost.parameters == dealt.cost.parameters


def test_eight_bits_halve_products_and_cost_casts() -> None:
    big = GPT.model_copy(update={"hidden": 8192, "heads": 64})
    half, eighth = (GridRanks(big, links()).of(Degrees(precision=bits))
                    for bits in ("bf16", "fp8"))
    assert 0.5 * half[1].cost.forward < eighth[1].cost.forward < 0.8 * half[1].cost.forward
    assert eighth[1].cost.backward < half[1].cost.backward
    assert eighth[-1] == half[-1]  # the head multiplies in 16 bits


def test_without_sequence_parallelism_each_gpu_sends_its_part() -> None:
    sliced, whole = (GridRanks(GPT, links()).of(replace(Degrees(tensor=4), sequence_parallel=way))[1].cost
                     for way in (True, False))
    assert sliced.output_bytes == whole.output_bytes
    assert whole.activation_bytes == 2048 * 1024 * (10 + 24 / 4 + 5 * 16 * 2048 / (1024 * 4)) + 2 * 2048 * 2 * 4


def test_a_token_crosses_to_each_machine_once_where_that_is_asked_for() -> None:
    own, alone = links(size=2), GridRanks(MOE, FREE).of(Degrees(expert=8))[3].cost
    size = 2048 * 2 * 1024 * 2  # two experts a token
    for machines, copies in ((1, 1 / 2), (2, 3 / 4), (9, 4 * (1 - (3 / 4)**2) / 2)):  # of 4 machines
        sent = (own.collective("all_to_all", round(size * copies), 4, 2) + own.collective("all_to_all", size, 2))
        found = GridRanks(MOE, own).of(Degrees(expert=8, expert_machines=machines))[3].cost
        assert found.forward == pytest.approx(alone.forward + 2 * sent, abs=2e-9)
    within = (GridRanks(MOE, own).of(Degrees(expert=2, expert_machines=most)) for most in (None, 1))
    assert next(within) == next(within)


# -- what is kept where cheap operators run again, and in 8 bits: counted by hand --------------------------------------

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
