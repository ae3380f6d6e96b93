"""Tiers that a spec lists: what they mean for transfers and collectives, and what is refused."""

from __future__ import annotations

import pytest

from weft.models import Spec, SpecError, estimate_spec, parse_spec
from weft.models.candidates.build import candidates
from weft.models.layers.cluster import Network, model_cluster
from weft.models.layers.collectives import Collective, group_time

MACHINE = "{name: machine, size: 2, bandwidth: 10 GB/s, latency: 1 us}"
RACK = "{name: rack, size: 4, bandwidth: 1 GB/s, latency: 5 us}"
HALL = "{name: hall, bandwidth: 1 GB/s, latency: 9 us, sharing: 4}"

KINDS: tuple[Collective, ...] = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


def spec_of(cluster: str, gpus: int = 8) -> Spec:
    layers = "".join(f"    - {{name: l{i}, forward: 1 ms, backward: 2 ms, output: 1 MB}}\n" for i in range(8))
    return parse_spec(f"name: a\nmodel:\n  layers:\n{layers}cluster: {{gpus: {gpus}, memory: 8 GiB, {cluster}}}\n"
                      "training: {micro_batches: 4}\nplacement: {shapes: [chain], backward: [full]}\n")


def network_of(*tiers: str, gpus: int = 8, more: str = "") -> Network:
    return model_cluster(spec_of(f"tiers: [{', '.join(tiers)}]{more}", gpus).cluster).network


def test_a_transfer_takes_the_slowest_tier_that_it_crosses() -> None:
    network = network_of(MACHINE, RACK, HALL)
    times = [network.seconds(10**6, (0,), (gpu,)) for gpu in (0, 1, 2, 3, 4, 7)]
    near, rack, hall = 1e-6 + 1e-4, 5e-6 + 1e-3, 9e-6 + 1e-3
    assert times == pytest.approx([0, near, rack, rack, hall, hall])
    assert network.seconds(10**6, (0, 1), (4, 5)) == pytest.approx(9e-6 + 2e-3)  # two share the uplink
    spec = spec_of(f"tiers: [{MACHINE}, {RACK}, {HALL}]")
    (candidate, *_) = candidates(spec)
    lags = [block.after[0].lag for block in candidate.problem.blocks if block.name in [f"F{s}" for s in range(1, 8)]]
    assert lags == pytest.approx([near, rack, near, hall, near, rack, near])
    assert estimate_spec(spec).transfer_origin == "given"


def test_two_tiers_are_machines_with_a_network() -> None:
    flat = model_cluster(spec_of("bandwidth: 10 GB/s, latency: 1 us, gpus_per_machine: 2, machine_bandwidth: 1 GB/s, "
                                 "machine_latency: 5 us").cluster).network
    tiers = network_of(MACHINE, RACK.replace("size: 4, ", ""))
    for group in (range(2), range(8), range(0, 8, 2), range(1, 4), range(0, 8, 4)):
        for kind in KINDS:
            assert group_time(kind, 10**6, group, flat) == group_time(kind, 10**6, group, tiers)
    assert flat.seconds(10**6, (1,), (2,)) == tiers.seconds(10**6, (1,), (2,))


@pytest.mark.parametrize(("cluster", "words"), [
    (f"tiers: [{MACHINE}, {{name: rail}}]", "tiers[1].bandwidth is missing: rail has no rate; give it"),
    ("device: h100, tiers: [{name: machine, size: 4}, {name: rail}]", "tiers[1].bandwidth is missing: rail"),
    ("tiers: [{name: machine}]", "tiers[0].bandwidth is missing: machine has no rate; give it, such as"),
    ("tiers: [{name: machine, size: 4, bandwidth: 0}]", "bandwidth"),
    (f"tiers: [{MACHINE.replace('size: 2, ', '')}, {RACK}]", "tiers[0].size is missing: how many GPUs has one"),
    (f"tiers: [{MACHINE}, {RACK.replace('4', '5')}]", "tiers[1].size is 5, but rack holds whole tiers of 2 GPUs"),
    (f"tiers: [{MACHINE}, {RACK}]", "tiers end with rack, of 4 GPUs, but gpus is 8"),
    (f"gpus_per_machine: 2, tiers: [{MACHINE}]", "tiers and gpus_per_machine both say what joins the GPUs"),
    (f"tiers: [{MACHINE.replace('1 us', '1 us, sharing: 0.5')}]", "sharing"),
    ("tiers: []", "tiers"),
])
def test_tiers_that_mean_nothing_are_refused(cluster: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_of(cluster)
    assert words in str(refused.value) and "cluster" in str(refused.value)
