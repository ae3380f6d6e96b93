"""One small input of every kind that the commands read, made in a folder.

``tests/data/kinds/operators.json`` is what ``weft capture`` wrote of four linear layers with tanh in between.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.builders import chain, pipeline
from tests.support.paths import DATA
from weft.solver.io.problem_files import problem_to_json
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem, per_class

_LAYERS = """model:
  layers:
    - {name: embedding, forward: 1 ms, input_grad: 0 ms, weight_grad: 2 ms, activation_memory: 50 MiB,
       weight_grad_memory: 50 MiB, parameters: 1000000, output: 8 MiB}
    - {name: block, repeat: 2, forward: 6 ms, input_grad: 6 ms, weight_grad: 5 ms, activation_memory: 700 MiB,
       weight_grad_memory: 300 MiB, parameters: 5000000, output: 8 MiB}
    - {name: head, forward: 9 ms, input_grad: 10 ms, weight_grad: 10 ms, activation_memory: 400 MiB,
       weight_grad_memory: 200 MiB, parameters: 1000000}
"""
_FAMILY = "model: {family: gpt, layers: 2, hidden: 256, heads: 4, vocabulary: 4096, sequence: 256}\n"
_GIVEN = "cluster: {gpus: 2, memory: 8 GiB, bandwidth: 36 GB/s, latency: 10 us}\n"
_MODELLED = "cluster: {gpus: 2, memory: 8 GiB, device: v100, bandwidth: 36 GB/s, latency: 10 us}\n"
_TRAINING = "training: {micro_batches: 3, micro_batch_size: 1}\n"
_NETWORK = """model:
  family: graph-network
  graph: {vertices: 20, edges: 80, skewed: true}
  features: 8
  chunks: [1, 2]
  layers: [{layer: gcn, width: 8}]
cluster: {gpus: 1, memory: 200 kB, reserve: 0 B, device: cpu, host_bandwidth: 1 GB/s}
training: {micro_batches: 1, parameter_bytes: 4}
"""
#: Other shapes take longer: the kinds layers and graph have them all.
_CHAIN = "placement: {shapes: [chain]}\n"

#: The specs: files by kind.
_SPECS = {
    "layers": _LAYERS + _GIVEN + _TRAINING,
    "family": _FAMILY + _MODELLED + _TRAINING + _CHAIN,
    "config": "model: {config: config.json, sequence: 64}\n" + _MODELLED + _TRAINING + _CHAIN,
    "graph": "model: {graph: operators.json}\n" + _MODELLED + _TRAINING.replace(
        "}", ", parameter_bytes: 4, gradient_bytes: 4}"),
    "lengths": _FAMILY + _MODELLED + "training: {lengths: [256, 64, 128]}\n" + _CHAIN,
    "inference": _LAYERS.replace("input_grad: 0 ms, weight_grad: 2 ms, ", "").replace(
        "input_grad: 6 ms, weight_grad: 5 ms, ", "").replace("input_grad: 10 ms, weight_grad: 10 ms, ", "").replace(
        "weight_grad_memory: 50 MiB, ", "").replace("weight_grad_memory: 300 MiB, ", "").replace(
        "weight_grad_memory: 200 MiB, ", "") + _GIVEN + "inference: {micro_batches: 3, micro_batch_size: 1}\n",
    "open": _LAYERS + _GIVEN.replace("}", ", host_bandwidth: 12 GB/s}") + _TRAINING
            + "placement: {choices: [activations, backward], shapes: [chain]}\n",
    "decide": _FAMILY + _MODELLED.replace("}", ", host_bandwidth: 12 GB/s}") + _TRAINING
              + "placement: {memory: decide, shapes: [chain, m]}\n",
    "grid": _FAMILY + _MODELLED + "training: {global_batch_size: 4}\nparallel: auto\n",
    "degrees": _FAMILY + _MODELLED.replace("gpus: 2", "gpus: 4") + "training: {global_batch_size: 4}\n"
               + "parallel: {tensor: 2, pipeline: 2, virtual: 1, data: 1, context: 1, expert: 1, zero: 0, "
                 "micro_batch: 1, recompute: none}\n",
    "network": _NETWORK,
}
_CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512, "hidden_act": "silu",
           "max_position_embeddings": 128, "tie_word_embeddings": False}
#: What -n says of the kinds that do not say it themselves.
MICRO_BATCHES = {"block": "3", "choices": "3", "jobs": "one=2,two=3", "classes": "short,long,short"}
#: An entry that makes a family of plans of a spec: only one command takes it.
PHASES = "phases: {steps: 10, training.micro_batches: [[0, 2], [4, 3]]}\n"
#: Kinds of input, by the names of their files.
KINDS = {"block": "block.json", "layers": "layers.yaml", "family": "family.yaml", "config": "config.yaml",
         "graph": "graph.yaml", "choices": "choices.json", "jobs": "jobs.json", "classes": "classes.json",
         "lengths": "lengths.yaml", "inference": "inference.yaml", "open": "open.yaml", "decide": "decide.yaml",
         "grid": "grid.yaml", "degrees": "degrees.yaml", "network": "network.yaml"}


def write_inputs(folder: Path) -> None:
    """Write the files of :data:`KINDS` into ``folder``, with those that they read."""
    for kind, text in _SPECS.items():
        (folder / f"{kind}.yaml").write_text(f"name: {kind}\n{text}")
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    for name, problem in (("block", pipeline(chain(2), split=(1, 1), memory=3)), ("choices", _choices()),
                          ("jobs", jobs()), ("classes", classes())):
        (folder / f"{name}.json").write_text(json.dumps(problem_to_json(problem)))
    shutil.copy(DATA / "kinds" / "operators.json", folder)


def _choices() -> Problem:
    """A chain of two whose first stage may recompute."""
    keep, again = {"first": "keep"}, {"first": "recompute"}
    return Problem("choices", (Device("gpu0", 4), Device("gpu1", 4)), (
        Block("F0 kept", BlockKind.FORWARD, (0,), 2, (2,), when=keep),
        Block("F0 dropped", BlockKind.FORWARD, (0,), 2, (1,), when=again),
        Block("F1", BlockKind.FORWARD, (1,), 2, (1,), after=(Dependency("F0 kept"),
                                                                Dependency("F0 dropped"))),
        Block("B1", BlockKind.BACKWARD, (1,), 3, (-1,), after=(Dependency("F1"),)),
        Block("B0 kept", BlockKind.BACKWARD, (0,), 3, (-2,), after=(Dependency("B1"),), when=keep),
        Block("B0 again", BlockKind.BACKWARD, (0,), 5, (-1,), after=(Dependency("B1"),), when=again),
    ), choices={"first": ("keep", "recompute")})


def jobs() -> Problem:
    """Two jobs that compute and then talk, each step after the one before."""
    blocks = []
    for job, compute, network in (("one", 4, 6), ("two", 8, 2)):
        blocks += [Block(f"compute {job}", BlockKind.FORWARD, (0,), compute, (1,), job=job,
                         after=(Dependency(f"talk {job}", distance=1),)),
                   Block(f"talk {job}", BlockKind.OTHER, (1,), network, (-1,), job=job,
                         after=(Dependency(f"compute {job}"),))]
    return Problem("jobs", (Device("gpu"), Device("network", lane_of="gpu")), tuple(blocks))


def classes(stages: int = 2) -> Problem:
    """A chain on which long micro-batches take three times as long."""
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (s,), after=(Dependency(f"F{s - 1}"),) if s else (),
                    **per_class(duration={"short": 1, "long": 3}, memory=(1,))) for s in range(stages)]
    blocks += [Block(f"B{s}", BlockKind.BACKWARD, (s,),
                     after=(Dependency(f"F{s}"), *((Dependency(f"B{s + 1}"),) if s < stages - 1 else ())),
                     **per_class(duration={"short": 2, "long": 6}, memory=(-1,))) for s in reversed(range(stages))]
    return Problem("classes", tuple(Device(f"gpu{s}", 3) for s in range(stages)), tuple(blocks))
