"""Device tables: what they say of a device by hand, how they are read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft.models import DEVICES, SpecError, estimate_spec, load_spec
from weft.models.graph.operators import Work
from weft.models.hardware.device_files import (
    LAUNCH,
    MEMORY,
    CollectiveSample,
    DeviceTable,
    KernelSample,
    MessageSample,
    load_device_table,
    save_device_table,
    table_to_json,
)
from weft.models.hardware.device_type import DeviceError, Pass
from weft.models.layers.cluster import model_cluster
from weft.models.layers.collectives import group_time
from weft.models.spec.cluster import Cluster
from weft.models.times.roofline import pass_seconds


def kernel(group: str, which: Pass, seconds: float, flops: float = 0.0, size: int = 0) -> KernelSample:
    return KernelSample(group, which, "float32", "any", flops, size, seconds, 0.1, 7)


TABLE = DeviceTable(
    "test machine", "2.0", 4, 2**30, (0.1, 0.2), 8,
    (kernel(LAUNCH, "forward", 1e-6), kernel(LAUNCH, "backward", 2e-6),
     kernel(MEMORY, "forward", 1e-3, size=10**7),  # 10 GB/s
     kernel("gemm", "forward", 1e-6 + 1e-4, 10**6), kernel("gemm", "forward", 1e-6 + 1e-3, 10**8),  # 10, 100 GFLOP/s
     kernel("gemm", "backward", 4e-6 + 4e-3, 2 * 10**8),  # two products at 50 GFLOP/s
     kernel("norm", "forward", 1e-6 + 1e-3, size=5 * 10**6)),  # half of the memory's rate
    (CollectiveSample("all_reduce", 2, 1000, 1e-4, 0.1, 7), CollectiveSample("all_reduce", 2, 10**6, 1e-3, 0.1, 7)),
    MessageSample(1e-5, 1e-9, 0.0, 2))


def test_a_product_takes_its_launch_and_the_rate_of_its_size() -> None:
    device = TABLE.device_type()

    def seconds(flops: int, which: Pass = "forward") -> float:
        return pass_seconds(device, "linear", Work(flops=flops), "float32", which)

    assert seconds(10**8) == pytest.approx(1e-6 + 1e-3)
    assert seconds(10**5) == pytest.approx(1e-6 + 1e-5)  # the smallest's rate
    assert seconds(10**7) == pytest.approx(1e-6 + 10**7 / 55e9)  # half way between the two
    assert seconds(10**8, "backward") == pytest.approx(2e-6 + 2e-3)
    norm = pass_seconds(device, "layer_norm", Work(bytes_read=10**7), "float32", "forward")
    assert norm == pytest.approx(1e-6 + 2e-3)


def test_where_launches_are_hidden_a_kernel_takes_the_longer_of_its_launch_and_its_work(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    save_device_table(replace(TABLE, hides_launches=True), path)
    device = load_device_table(path).device_type()
    measured = 1e-6 + 1e-3
    assert pass_seconds(device, "linear", Work(flops=10**8), "float32", "forward") == pytest.approx(measured)
    assert pass_seconds(device, "linear", Work(flops=10**9), "float32", "forward") == pytest.approx(10 * measured)
    assert pass_seconds(device, "layer_norm", Work(bytes_read=10), "float32", "forward") == pytest.approx(1e-6)
    path.write_text(json.dumps({**table_to_json(TABLE), "hides_launches": "yes"}))
    with pytest.raises(DeviceError, match="hides_launches is 'yes', it must be true or false"):
        load_device_table(path)


def test_collectives_are_as_measured_and_of_others_as_much_of_the_link(tmp_path: Path) -> None:
    device, path = TABLE.device_type(), tmp_path / "table.json"
    save_device_table(TABLE, path)
    network = model_cluster(Cluster.model_validate({"gpus": 4, "device": str(path)})).network
    assert network.near.seconds(10**6) == pytest.approx(1e-5 + 1e-3)
    assert group_time("all_reduce", 10**6, range(2), network, device).seconds == pytest.approx(1e-3)
    share = 2 * 10**6 / 2 / 1e-3 / 1e9
    ring = 1e-5 + 2 * 3 * 10**6 / 4 / (1e9 * share)
    assert group_time("all_reduce", 10**6, range(4), network, device).seconds == pytest.approx(ring)


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_spec_names_a_table_beside_it(ending: str, tmp_path: Path) -> None:
    found = table_to_json(TABLE)
    (tmp_path / f"here.{ending}").write_text(json.dumps(found) if ending == "json" else yaml.safe_dump(found))
    (tmp_path / "spec.yaml").write_text(
        "model: {family: gpt, layers: 2, hidden: 64, heads: 2, vocabulary: 128, sequence: 32}\n"
        f"cluster: {{gpus: 2, device: here.{ending}}}\ntraining: {{micro_batches: 2}}\n"
        "placement: {shapes: [chain]}\n")
    spec = load_spec(tmp_path / "spec.yaml")
    assert spec.cluster.memory == (2**30,)
    estimate = estimate_spec(spec)
    assert estimate.stages[0].forward > 0 and any("measured by weft calibrate on test machine" in note
                                                  for note in estimate.notes)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_device_table(TABLE, path)
    assert load_device_table(path) == TABLE
    save_device_table(replace(TABLE, collectives=(), messages=None), path)
    alone = load_device_table(path)
    assert alone.messages is None and alone.device_type().peak("float32") == pytest.approx(1e11)
    assert not TABLE.is_busy and replace(TABLE, load=(9.0, 9.0)).is_busy
    assert "busy (load 9.0 on 8 cores)" in replace(TABLE, load=(9.0, 9.0)).device_type().origin


@pytest.mark.parametrize(("change", "words"), [
    ({"format": "weft.device/2"}, "format is 'weft.device/2'"), ({"kernels": []}, "kernels has no forward of class"),
    ({"speed": 3}, "unknown field 'speed'"), ({"ranks": 0}, "ranks is 0"),
    ({"messages": {"latency": -1, "seconds_a_byte": 0, "spread": 0, "pairs": 1}}, "latency is -1.0, it must be 0"),
    ({"collectives": [{"kind": "sum", "ranks": 2, "bytes": 1, "seconds": 1, "spread": 0, "repeats": 1}]},
     "kind is 'sum', it must be one of all_gather")])
def test_tables_that_mean_nothing_are_refused_by_the_spec(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps({**table_to_json(TABLE), **change}))
    with pytest.raises(DeviceError) as refused:
        DEVICES[str(tmp_path / "table.json")]
    assert words in str(refused.value)
    (tmp_path / "spec.yaml").write_text("model: {layers: [{name: a, forward: 1 ms, backward: 1 ms}]}\n"
                                        "cluster: {gpus: 1, device: table.json}\ntraining: {micro_batches: 2}\n")
    with pytest.raises(SpecError, match=r"spec\.yaml.*device"):
        load_spec(tmp_path / "spec.yaml")


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be read"):
        load_device_table(tmp_path / "none.json")
