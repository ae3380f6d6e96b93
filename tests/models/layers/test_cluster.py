"""Transfers between machines cost what the cluster of the spec says, in every shape: against times worked out here."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from weft.models import DEVICES, Spec, SpecError, estimate_spec, parse_spec
from weft.models.candidates.build import candidates
from weft.models.candidates.gpu_costs import family_costs
from weft.models.candidates.placement_sources import spec_problem
from weft.models.layers.cluster import AffineLink, MeasuredLink, model_cluster
from weft.models.layers.collectives import NETWORK_REACHED, Collective, collective_time
from weft.models.tensor_parallel.shapes import shape_candidates
from weft.models.tensor_parallel.space import Space, space_of
from weft.models.times.profiles import MIB
from weft.solver.problem import Problem

LAYERS = "".join(f"    - {{name: l{i}, forward: 1 ms, input_grad: 1 ms, weight_grad: 1 ms, output: {i + 1} MB}}\n"
                 for i in range(8))
CLUSTER = "bandwidth: 10 GB/s, latency: 1 us, gpus_per_machine: 2, machine_bandwidth: 8 Gbit/s, machine_latency: 30 us"


def listed(cluster: str = CLUSTER, more: str = "", gpus: int = 4) -> Spec:
    return parse_spec(f"name: a\nmodel:\n  layers:\n{LAYERS}cluster: {{gpus: {gpus}, memory: 8 GiB, {cluster}}}\n"
                      f"training: {{micro_batches: 4}}\n{more}")


def gpt(cluster: str, shapes: str, gpus: int = 4, memory: str = "8 GiB") -> Spec:
    return parse_spec(
        "name: g\nmodel: {family: gpt, layers: 8, hidden: 256, heads: 8, vocabulary: 1024, sequence: 128}\n"
        f"cluster: {{gpus: {gpus}, memory: {memory}, device: v100, {cluster}}}\ntraining: {{micro_batches: 8}}\n"
        f"placement: {{shapes: [{shapes}]}}\n")


def lags(problem: Problem) -> dict[tuple[str, str], float]:
    return {(wait.block, block.name): wait.lag for block in problem.blocks for wait in block.after}


def by_hand(megabytes: int, source: int, target: int, per_machine: int = 2) -> float:
    """Seconds from GPU to GPU of :data:`CLUSTER`: 10 GB/s after 1 us, between machines 1 GB/s after 30 us."""
    if source == target:
        return 0.0
    if source // per_machine == target // per_machine:
        return 1e-6 + megabytes * 1e6 / 10e9
    return 30e-6 + megabytes * 1e6 / 1e9


#: The GPU of each stage, by shape.
WHERE = {"chain": (0, 1, 2, 3), "v": (0, 1, 2, 3, 3, 2, 1, 0), "loop": (0, 1, 2, 3, 0, 1, 2, 3)}


@pytest.mark.parametrize("shape", WHERE)
@pytest.mark.parametrize("backward", ["full", "split"])
def test_stages_on_single_gpus_wait_for_the_link_between_them(shape: str, backward: str) -> None:
    spec = listed(more=f"placement: {{shapes: [{shape}], backward: [{backward}]}}\n")
    where, size = WHERE[shape], 8 // len(WHERE[shape])  # equal layers: equal stages
    gradient = "I" if backward == "split" else "B"
    for candidate in candidates(spec):
        found = lags(candidate.problem)
        assert candidate.stage_device == where
        for s in range(len(where) - 1):
            time = by_hand((s + 1) * size, where[s], where[s + 1])  # stage s ends with layer (s + 1) * size - 1
            assert found[f"F{s}", f"F{s + 1}"] == pytest.approx(time, abs=1e-12), (s, "forward")
            assert found[f"{gradient}{s + 1}", f"{gradient}{s}"] == pytest.approx(time, abs=1e-12), (s, "backward")
    if shape == "loop":
        assert found["F3", "F4"] == pytest.approx(30e-6 + 4e-3)  # from the last GPU back to the first
    if shape == "v":
        assert found["F3", "F4"] == 0.0 and found["F5", "F6"] == pytest.approx(30e-6 + 6e-3)


def test_measured_links_of_several_machines_use_the_measured_network(tmp_path: Path) -> None:
    spec = listed("links: nvlink-v100, gpus_per_machine: 2", "placement: {shapes: [chain], backward: [full]}\n")
    data = ROOT / "weft" / "models" / "data" / "aceso"
    tables = {}
    for name in ("intra", "inter"):
        with open(data / f"p2p_{name}_node.csv", newline="") as file:
            sizes, speeds = [[float(cell) for cell in row] for row in csv.reader(file)]
        tables[name] = {size: size / 1024 / speed for size, speed in zip(sizes, speeds, strict=True)}  # GB/s in GiB
    (candidate, *_) = candidates(spec)
    found = lags(candidate.problem)
    for s, (table, megabytes) in enumerate((("intra", 2), ("inter", 4), ("intra", 6))):
        size = megabytes * 1e6 / MIB
        low = max(known for known in tables[table] if known <= size)
        high = min(known for known in tables[table] if known > size)
        share = (size - low) / (high - low)
        time = tables[table][low] + share * (tables[table][high] - tables[table][low])
        assert found[f"F{s}", f"F{s + 1}"] == pytest.approx(time, rel=1e-5)
    assert found["F1", "F2"] > 5 * found["F0", "F1"]


def test_a_device_brings_its_links_and_its_network() -> None:
    h100 = DEVICES["h100"]
    network = model_cluster(listed("device: h100, gpus_per_machine: 2").cluster).network
    assert network.near == AffineLink(h100.link_latency, h100.link)
    assert network.far == AffineLink(h100.network_latency, h100.network) and network.size == 2
    said = "device: h100, latency: 0, gpus_per_machine: 2, machine_latency: 1 ms"
    partly = model_cluster(listed(said).cluster).network
    assert partly.near == AffineLink(0.0, h100.link) and partly.far == AffineLink(1e-3, h100.network)
    said = "device: h100, bandwidth: 1 GB/s, gpus_per_machine: 2, machine_bandwidth: 2 GB/s"
    given = model_cluster(listed(said).cluster).network
    assert given.near == AffineLink(0.0, 1e9) and given.far == AffineLink(0.0, 2e9)


def test_between_unlike_gpus_the_slower_end_sets_the_pace() -> None:
    text = ("name: g\nmodel: {family: gpt, layers: 8, hidden: 256, heads: 8, vocabulary: 1024, sequence: 128}\n"
            "cluster: {gpus: 4, memory: 8 GiB, device: [v100, h100, h100, h100], gpus_per_machine: MACHINE}\n"
            "training: {micro_batches: 8}\n")
    near, far = (model_cluster(parse_spec(text.replace("MACHINE", str(size))).cluster).network for size in (4, 2))
    v100, h100, size = DEVICES["v100"], DEVICES["h100"], 10**8
    slow, fast = (round(device.link_latency + size / device.link, 9) for device in (v100, h100))
    assert [near.seconds(size, (a,), (b,)) for a, b in ((0, 1), (1, 0), (1, 2), (3, 2))] == [slow, slow, fast, fast]
    slow_far, fast_far = (round(device.network_latency + size / device.network, 9) for device in (v100, h100))
    assert [far.seconds(size, (a,), (b,)) for a, b in ((0, 1), (2, 3), (1, 2), (0, 3))] == [
        slow, fast, fast_far, slow_far]
    assert near.near.seconds(size) == slow and far.far.seconds(size) == slow_far  # who asks for one link: the slowest
    given = model_cluster(parse_spec(text.replace("MACHINE", "4, bandwidth: 1 GB/s")).cluster).network
    assert given.near == AffineLink(0.0, 1e9) and not given.own


def test_groups_wait_for_the_link_between_them() -> None:
    spec = gpt(CLUSTER, "groups, x, m")
    space = _space(spec)
    found, _ = shape_candidates(space, ("groups", "x", "m"), ("full",))
    crossing = 0
    for candidate in found:
        gpus = {part.name: part.gpus for part in candidate.parts}
        for (source, target), lag in lags(candidate.problem).items():
            one, other = gpus[source[1:]], gpus[target[1:]]
            if source[0] != target[0] or set(other) <= set(one):
                continue
            apart = len({gpu // 2 for gpu in (*one, *other)}) > 1
            crossing += apart
            rounds = 2 if len(other) > len(one) else 1
            size = 128 * 256 * 2  # one hidden state of fp16
            once = 30e-6 + size / 1e9 if apart else 1e-6 + size / 10e9
            assert lag == pytest.approx(rounds * once, abs=2e-9), (candidate.title, source, target)
    assert crossing and {candidate.shape for candidate in found} >= {"x", "m"}


def test_groups_that_lie_across_machines_take_the_network_for_their_collectives() -> None:
    slow = _space(gpt(CLUSTER, "tensor"))
    fast = _space(gpt(CLUSTER.replace("8 Gbit/s", "80 Gbit/s").replace("30 us", "3 us"), "tensor"))
    size, v100 = 128 * 256 * 2, DEVICES["v100"]

    def inside(size: int) -> float:  # added up in each machine, of which every GPU has a half, and gathered again
        steps: list[tuple[Collective, int]] = [("reduce_scatter", size), ("all_gather", size // 2)]
        return sum(collective_time(kind, part, 2, v100).seconds for kind, part in steps)

    for space, rate, latency in ((slow, 1e9, 30e-6), (fast, 10e9, 3e-6)):
        across = latency + 2 * (size / 2) / 2 / (rate * NETWORK_REACHED)
        assert space.timer(4)("all_reduce", size) == pytest.approx(inside(size) + across, abs=1e-9)
        assert space.timer(2)("all_reduce", size) == collective_time("all_reduce", size, 2, v100).seconds
    assert slow.costs[4][1].forward > fast.costs[4][1].forward
    assert slow.costs[2][1].forward == fast.costs[2][1].forward
    measured = _space(gpt("links: nvlink-v100, gpus_per_machine: 2", "tensor"))
    far = measured.network.far
    assert isinstance(far, MeasuredLink)
    assert measured.timer(4)("all_reduce", 64 * MIB) == pytest.approx(
        inside(64 * MIB) + 2 * far.seconds(16 * MIB), abs=1e-9)


def test_no_group_lies_across_machines_that_it_could_share() -> None:
    for per_machine, degrees in ((3, (1, 6)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))):
        cluster = CLUSTER.replace("gpus_per_machine: 2", f"gpus_per_machine: {per_machine}")
        assert _space(gpt(cluster, "tensor", gpus=6)).degrees == degrees


def test_placed_operators_pay_for_the_slower_link_and_the_name_says_so() -> None:
    near, far = gpt("bandwidth: 10 GB/s", "chain"), gpt(CLUSTER, "chain")
    size = 128 * 256 * 2  # one hidden state of fp16, there and its gradient back
    assert {tensor.time for tensor in spec_problem(near).tensors} == {2 * round(size / 10e9, 9)}
    assert {tensor.time for tensor in spec_problem(far).tensors} == {2 * round(30e-6 + size / 1e9, 9)}
    assert "every transfer as between machines" in spec_problem(far).name
    assert spec_problem(near).name == "g"


def test_the_estimate_says_what_each_stage_sends_and_how_long_that_takes() -> None:
    estimate = estimate_spec(listed(), "chain")
    assert [stage.transfer for stage in estimate.stages] == pytest.approx(
        [by_hand(2, 0, 1), by_hand(4, 1, 2), by_hand(6, 2, 3), 0.0], abs=1e-12)
    assert estimate.transfer_origin == "given"
    assert estimate_spec(listed("device: h100")).transfer_origin == "modelled"
    assert estimate_spec(listed("links: nvlink-v100, gpus_per_machine: 2")).transfer_origin == "measured"


@pytest.mark.parametrize(("cluster", "words"), [
    ("latency: 1 us", "latency needs bandwidth or device"),
    ("reserve: 0", "give links (such as nvlink-v100), bandwidth"),
    ("bandwidth: 1 GB/s, gpus_per_machine: 2", "4 GPUs stand in 2 machines (gpus_per_machine is 2); give the"),
    ("bandwidth: 1 GB/s, machine_bandwidth: 1 GB/s", "machine_bandwidth is between machines; say how many GPUs"),
    ("bandwidth: 1 GB/s, gpus_per_machine: 2, machine_latency: 1 us", "machine_latency needs machine_bandwidth"),
    ("links: nvlink-v100, latency: 1 us", "give either links (measured) or bandwidth and latency")])
def test_a_cluster_that_says_too_little_is_refused(cluster: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        listed(cluster)
    assert words in str(caught.value)


def _space(spec: Spec) -> Space:
    space = space_of(spec, family_costs(spec))
    assert space is not None
    return space
