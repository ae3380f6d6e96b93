"""What is said of the machine is read, or refused in one sentence that names file and entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import refusal
from weft.app.pipeline.planning.spec import SpecError, load_machine_spec


def test_a_file_and_a_mapping_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("name: two boxes\ncluster:\n  memory: [2 GiB, 3 GiB]\n  bandwidth: 1 GB/s\n  latency: 10 us\n"
                    "  gpus_per_machine: 1\n  machine_bandwidth: 100 MB/s\nplacement:\n  shapes: [chain, v]\n")
    found = load_machine_spec(path, 2)
    assert found == load_machine_spec({"name": "two boxes", "cluster": {
        "memory": ("2 GiB", "3 GiB"), "bandwidth": "1 GB/s", "latency": "10 us", "gpus_per_machine": 1,
        "machine_bandwidth": "100 MB/s"}, "placement": {"shapes": ["chain", "v"]}}, 2)
    network = found.cluster.network(2)
    assert network is not None and network.seconds(10**6, [0], [1]) == pytest.approx(0.01)
    assert found.placement.backward == ("full", "split")
    empty = load_machine_spec(None, 3)
    assert empty.cluster.network(3) is None and empty.cluster.memory is None and load_machine_spec({}, 3) == empty


@pytest.mark.parametrize(("spec", "said"), [
    ({"cluster": {"memry": 3}}, "spec: cluster: unknown key 'memry'; did you mean 'memory'?; the keys are gpus"),
    ({"cluster": {"memory": "2 pounds"}}, "spec: cluster.memory is '2 pounds', it must be"),
    ({"cluster": {"memory": [1000, 2000, 3000]}}, "spec: cluster.memory lists 3 ranks, but 2 ranks run: start as many"),
    ({"cluster": {"gpus": 4}}, "spec: cluster.gpus is 4, but 2 ranks run: start as many, or describe these"),
    ({"cluster": {"latency": "1 ms"}}, "spec: cluster: latency needs bandwidth or device beside it"),
    ({"cluster": {"links": "nvlink-v100", "bandwidth": 3e9}},
     "spec: cluster: give either links (measured) or bandwidth"),
    ({"placement": {"shapes": ["loop"]}}, r"spec: placement.shapes[0] is 'loop', it must be chain or v"),
    ({"model": {"family": "gpt"}}, "spec: unknown key 'model'; the keys are name, cluster, placement"),
    ({"cluster": object()}, "spec: YAML cannot represent its values"),
    (7, "spec is int, it must be the path of a YAML file, a mapping, or left out"),
    ("nowhere.yaml", "nowhere.yaml: cannot be read")])
def test_a_bad_spec_is_one_sentence(spec: Any, said: str) -> None:
    with pytest.raises(SpecError) as found:
        load_machine_spec(spec, 2)
    assert str(found.value).startswith(said) and "\n" not in str(found.value)


def test_the_command_names_file_and_line_before_any_rank_starts(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("cluster:\n  memory: 2 GiB\n  bandwith: 3\n")
    said = refusal("train", "--example", "gpt", "--spec", path)
    assert f"{path}: line 3: cluster: unknown key 'bandwith'; did you mean 'bandwidth'?" in said
