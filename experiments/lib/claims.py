"""What the README says of the experiments: every number of it, read from their files.

A claim is a piece of the README's text with gaps, and an expression that fills them from an experiment's JSON, or says
whether a text without gaps holds. ``tests/docs/test_readme_figures.py`` holds the README against them;
docs/EXPERIMENTS.md shows them as results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from experiments.lib.catalogue import EXPERIMENTS
from experiments.lib.readings import (
    ablated,
    against_rpc,
    best_rival,
    buys,
    captured,
    compared,
    demo,
    flava,
    gaps,
    gpus,
    graphs,
    in_chunks,
    layers,
    left_open,
    most,
    offloading,
    on_gpu,
    over_links,
    overlapped,
    percent,
    placed,
    proven_over_links,
    runs,
    runtime,
    scaled,
    searched_plans,
    searches,
    sizes_run,
    small,
    span,
    suite,
    trained,
    trained_on_ranks,
    training,
    unfinished,
    unproven,
)

__all__ = ["CLAIMS", "Claim", "FalseClaimError"]


class FalseClaimError(Exception):
    """A text without numbers does not hold."""


@dataclass(frozen=True)
class Claim:
    """``name`` of the experiment; ``text`` with ``{}`` for what ``read`` takes from its file: the texts for the gaps,
    or whether the text holds."""

    name: str
    text: str
    read: Callable[[Any], tuple[str, ...] | bool]

    def told(self) -> str:
        """The text as the README has to have it; raises :class:`FalseClaimError` where it does not hold."""
        found = self.read(_numbers(self.name))
        if found is False:
            raise FalseClaimError(f"experiments/results/{self.name}.json does not bear out: {self.text}")
        return self.text if found is True else self.text.format(*found)


@cache
def _numbers(name: str) -> Any:
    return json.loads(EXPERIMENTS[name].file.read_text())


_TIED = "10 Gbit/s, links"

CLAIMS = (
    # the demo's table
    Claim("readme/comparison", "come within {} % of weft's schedule in this table", lambda d: (
        most([100 * (demo(d)["v-block"] / demo(d)["weft"] - 1)], 0),)),
    # known schedules
    Claim("never_worse/suite", "On {} generated problems", lambda d: (str(d["summary"]["all"]["problems"]),)),
    Claim("never_worse/suite", "none of the known schedules in weft's registry that fit is better than weft's",
          lambda d: not d["summary"]["worse"] and not d["summary"]["failed"]),
    Claim("never_worse/suite", "A fixed schedule fits on {} of them only, and there weft saves {} % of its time on "
          "average", lambda d: (str(suite("all", "fixed_schedules", "with_a_rival")(d)),
                                percent(suite("all", "fixed_schedules", "mean_gain")(d), 1))),
    Claim("never_worse/suite", "on {} problems the best rival is our own greedy heuristic, on {} the building blocks",
          lambda d: (str(best_rival(d, "greedy")), str(best_rival(d, "v-block")))),
    Claim("never_worse/suite", "strictly better on {} % ({} % where stages are unequal) and saves {} % on average",
          lambda d: (percent(suite("all", "all_baselines", "share_better")(d)),
                     percent(suite("unequal_stages", "all_baselines", "share_better")(d)),
                     percent(suite("all", "all_baselines", "mean_gain")(d), 1))),
    Claim("never_worse/suite", "on all but {} of the others the rival itself is proven optimal", lambda d: (
        str(suite("all", "all_baselines", "tied")(d) - suite("all", "all_baselines", "tied_and_proven")(d)),)),
    Claim("never_worse/suite", "Of weft's makespans {} % are proven optimal and {} % within 1 % of their bound; the "
          "widest gap is {} %", lambda d: (
              percent(d["summary"]["all"]["proven_optimal"] / d["summary"]["all"]["problems"]),
              percent(sum(row["weft"] <= 1.01 * row["bound"] for row in d["rows"]) / len(d["rows"])),
              most((100 * (row["weft"] / row["bound"] - 1) for row in d["rows"]), 0))),
    Claim("published_costs", "On {} problems with costs like those published", lambda d: (
        str(d["summary"]["all"]["problems"]),)),
    Claim("published_costs", "GPTs of 1.5B to 28.3B on {} to {} devices, memory for half to twice", lambda d: (
        *span((row["devices"] for row in d["rows"]), 0),)),
    Claim("published_costs", "none is better either", lambda d: d["summary"]["all"]["worse"] == 0),
    Claim("published_costs", "weft is on {}, and on {} its schedule is proven optimal", lambda d: tuple(
        str(d["summary"]["all"][key]) for key in ("better", "proven_optimal"))),
    Claim("published_costs", "The gap is {} % in the median, and up to {} % where memory is half", lambda d: (
        percent(d["summary"]["all"]["median_gap"], 1),
        most((100 * row["gap"] for row in d["rows"]), 1))
          if d["summary"]["memory 0.5p"]["largest_gap"] == d["summary"]["all"]["largest_gap"] else False),
    # cuts
    Claim("cut_search", "On {} random ones of {} to {} GPUs", lambda d: (
        str(d["summary"]["fit"]), *span((row["gpus"] for row in d["rows"]), 0))),
    Claim("cut_search", "a step takes {} times as long on average: on {} it is longer, up to {} times, on {} shorter, "
          "down to {} times", lambda d: (
              f"{d['summary']['listed_takes_times']['mean']:.2f}", str(d["summary"]["shorter"]),
              f"{d['summary']['listed_takes_times']['most']:.2f}", str(d["summary"]["longer"]),
              f"{d['summary']['listed_takes_times']['least']:.2f}")),
    Claim("cut_search", "On the {} that are small enough to solve each cut by itself, the answer is the best of all",
          lambda d: (str(d["summary"]["against_brute_force"]),)
          if d["summary"]["equal_to_brute_force"] == d["summary"]["against_brute_force"] else False),
    # choices, lanes, jobs
    Claim("worked_examples", "takes {} in {} chunks", lambda d: (
        f"{d['chunks'][0]['value']:g}", d["chunks"][0]["choices"]["chunks"])),
    Claim("worked_examples", "make a step each in {}, {}, {}, {} and {}, all proven", lambda d: tuple(
        f"{row['value']:g}" for row in d["jobs"]) if all(row["proven"] for rows in (d["chunks"], d["jobs"])
                                                       for row in rows) else False),
    Claim("never_worse_wide", "On {} generated problems with choices, lanes, jobs and classes", lambda d: (
        str(d["summary"]["all"]["problems"]),)),
    Claim("never_worse_wide", "no known schedule on any assignment tried is better than weft's either; {} are proven",
          lambda d: (str(d["summary"]["all"]["proven_optimal"]),)
          if not d["summary"]["worse"] and not d["summary"]["failed"] else False),
    Claim("never_worse_wide", "the mean gap is {} %", lambda d: (percent(d["summary"]["all"]["mean_gap"], 1),)),
    Claim("wide_random", "On {} small ones the answer is that of brute force", lambda d: (
        str(d["problems"]),) if not d["unequal"] else False),
    Claim("lengths", "On {} draws of {} lengths", lambda d: (str(d["summary"]["settings"]), str(d["micro_batches"]))),
    Claim("lengths", "takes {} % less time on average than its best schedule in the order drawn, and {} % less than the"
          " one that DynaPipe's rule finds", lambda d: (
              percent(d["summary"]["mean share gained by order"], 1),
              percent(d["summary"]["mean share below DynaPipe's order"], 1))),
    Claim("activation_choices", "a step then takes {} % less time at 18 GiB than with all stages alike, {} % at 15, {} "
          "% at 12, and as long at 9 and at 24", lambda d: tuple(
              percent(d["summary"][f"{cap} GiB"]["shorter than all alike"], 1) for cap in (18, 15, 12))
          if all(d["summary"][f"{cap} GiB"]["shorter than all alike"] == 0 for cap in (9, 24)) else False),
    Claim("activation_choices", "at 9 to 15 GiB `memory: decide`, which decides operator by operator before the "
          "search, is faster still", lambda d: all(d["summary"][f"{cap} GiB"]["shorter than decided"] < 0
                                                   for cap in (9, 12, 15))),
    Claim("recompute_classes", "up to {} % less time than all or none", lambda d: (
        percent(d["summary"]["largest gain"], 1),)),
    Claim("cut_ablation", "a step takes {} times as long on the listed cuts alone, {} times without known schedules to "
          "begin with, {} times where these are not polished, and {} times with at most two stages a GPU",
          lambda d: tuple(f"{d['rows'][0][part]['takes_times']:.3f}"
                          for part in ("cuts not listed", "tries", "polishing", "third chunk"))),
    # modelled costs
    Claim("roofline", "median error is {} % an operator and {} % a layer on a model it was not fitted on", lambda d: (
        percent(d["shipped"]["judged on gpt-1.3b-v100"]["operator forward and backward"]["median_absolute"]),
        percent(d["shipped"]["judged on gpt-1.3b-v100"]["layer forward and backward"]["median_absolute"]))),
    Claim("roofline", "{} to {} % a layer on GPT-1.3B", lambda d: span(
        (100 * error for error in layers(d, "gpt-1.3b-v100")), 0)),
    Claim("roofline", "{}, {} and {} % on T5-770M", lambda d: tuple(map(percent, layers(d, "t5-770m-v100")))),
    Claim("tessel_evaluation", "GPT on {} and mT5 on {} modelled V100s", lambda d: (gpus(d, "GPT"), gpus(d, "mT5"))),
    Claim("tessel_evaluation", "each known schedule on its best placement and in its best micro-batches", lambda d: all(
        "sizes" in row for row in d["training"].values())),
    Claim("tessel_evaluation", "{} to {} times as fast as tensor parallelism alone", lambda d: span(
        training(d, "tensor parallel"), 2)),
    Claim("tessel_evaluation", "{} to {} times as 1F1B+", lambda d: span(training(d, "1F1B+"), 2)),
    Claim("tessel_evaluation", "{} to {} times as 1F1B on its best groups where that fits", lambda d: span(
        training(d, "1F1B"), 2)),
    Claim("tessel_evaluation", "within {} % of the bound over their placements",
          lambda d: (most([100 * gaps(d)[0]], 0),)),
    Claim("tessel_evaluation", "{} to {} % less latency at batch 1", lambda d: span(
        (100 * saved for text in (512, 197) for saved in flava(d, text, lambda batch: batch == 1)), 0)),
    Claim("tessel_evaluation", "with texts of 512 tokens at most {} % from batch 2 on", lambda d: (
        most((100 * saved for saved in flava(d, 512, lambda batch: batch > 1)), 0),)),
    Claim("tessel_evaluation", "with texts as long as an image {} % at batch 2, falling to {} % at batch 128",
          lambda d: (
        percent(flava(d, 197, lambda batch: batch == 2)[0]), percent(flava(d, 197, lambda batch: batch == 128)[0]))),
    # operator graphs
    Claim("unequal_gpus", "the busiest GPU takes {} times as long in the median of {} random clusters, up to {} times",
          lambda d: (f"{d['summary']['as_if_alike_takes_times']['median']:.2f}", str(d["summary"]["cases"]),
                     f"{d['summary']['as_if_alike_takes_times']['most']:.1f}")),
    Claim("zoo_counts", "against the published ones of {} models, {} of them exact", lambda d: (
        str(sum(row["published"] is not None for row in d["rows"])), str(sum(row["exact"] for row in d["rows"])))),
    Claim("zoo_counts", "equal where those are exact", lambda d: all(
        row["published"] == row["counted"] for row in d["rows"] if row["exact"])),
    Claim("placement", "All six published optima of that collection's inputs that we hold are reached and proven in "
          "under 0.1 CPU seconds", lambda d: len(placed(d["rows"], lambda _, row: row["published"] is not None)) == 6
          and all(row["status"] == "optimal" and row["cpu_seconds"] < 0.1
                  and math.isclose(row["objective"], row["published"], rel_tol=1e-5)
                  for row in placed(d["rows"], lambda _, row: row["published"] is not None))),
    Claim("placement", "generated graphs of 2,000 operators in {} to {}", lambda d: span(
        (row["cpu_seconds"] for row in placed(d["rows"], lambda name, _: name.startswith("bert, 2,012"))), 1)),
    Claim("placement", "two of three with 10,000 in {} to {}", lambda d: span(
        (row["cpu_seconds"] for row in placed(d["rows"], lambda name, row: "10,000" in name
                                               and row["status"] == "optimal")), 0)),
    Claim("placement", "the third within {} %", lambda d: (most(
        (100 * row["gap"] for row in placed(d["rows"], lambda name, row: "10,000" in name
                                             and row["status"] != "optimal")), 1),)),
    Claim("placement", "stay open at {} %", lambda d: (percent(d["rows"]["nasnet, 8 accelerators"]["gap"]),)),
    *(Claim("graph_pipelines", text, lambda d, model=model, replicated=replicated: span(  # type: ignore[misc]
        graphs(d, model, replicated), 2)) for text, model, replicated in (
            ("{} to {} times as fast as the best pipeline in a row for a multimodal transformer", "mmt", False),
            ("{} to {} times for DLRM", "dlrm", False), ("{} to {} times for CANDLE-Uno", "uno", False),
            ("with replicas on both sides {} to {}", "mmt", True))),
    Claim("graph_pipelines", "{} to {} and {} to {} times.", lambda d: (
        *span(graphs(d, "dlrm", True), 2), *span(graphs(d, "uno", True), 2))),
    Claim("graph_pipelines", "the transformer leaves room for {} at most without replicas", lambda d: (
        most(graphs(d, "mmt", False, "ratio_at_most"), 2),)),
    Claim("graph_pipelines", "takes {} and {} times less CPU than our own numpy program of Piper's dynamic program on "
          "8 GPUs", lambda d: tuple(f"{row['ratio']:.0f}" for row in searches(d))),
    Claim("graph_pipeline_steps", "On {} modelled V100s the transformer's step takes {} % longer at the best single "
          "size", lambda d: next((str(row["devices"]), f"{100 * row['gain_of_sizes']:.1f}") for row in d["rows"]
                         if (row["model"], row["devices"], row["memory"]) == ("mmt", 8, 1.0))),
    Claim("graph_pipeline_steps", "DLRM's as long", lambda d: all(
        row["gain_of_sizes"] < 5e-4 for row in d["rows"] if row["model"] == "dlrm" and row["devices"] == 8)),
    # memory
    Claim("offload", "On GPT-1.3B on four V100s of 32 GB, {} samples a step, deciding memory gives {} % more samples a "
          "second than whole layers on the same chain of stages, {} % more than whole layers on any placement and {} % "
          "more than 1F1B, each at its best micro-batch of {}", lambda d: (
              str(d["samples_per_step"]), percent(buys(d, "decided", "kept")),
              percent(buys(d, "decided", "kept, any placement")), percent(buys(d, "decided", "1F1B")),
              *{str(found["micro_batch_size"]) for found in d["best"].values()})),
    Claim("offload", "Offloading adds nothing there",
          lambda d: abs(buys(d, "decided, with offload", "decided")) < 5e-4),
    Claim("offload", "at most {} % at larger micro-batches, which are slower", lambda d: (
        most((100 * more for more in offloading(d).values()), 0),)),
    Claim("co_shard", "16,384 tokens on two modelled GPUs of 32 GiB fit where nothing else does", lambda d: any(
        (row["tokens"], row["gpus"], row["gib"]) == (16384, 2, 32) and "refused" in row["whole"]
        and "seconds" in row["in_parts"] for row in d["rows"])),
    Claim("memory_plan", "for {} models and numbers of devices", lambda d: (str(len(d["rows"])),)),
    Claim("memory_plan", "{} to {} times the micro-batch of a rule like PipeDream's", lambda d: span(
        compared(d, "x PipeDream"), 0)),
    Claim("memory_plan", "{} to {} times that of one like vPipe's as published planners count memory", lambda d: span(
        compared(d, "x vPipe"), 0)),
    Claim("memory_plan", "{} to {} times as fast as vPipe's rule, each at its best micro-batch", lambda d: span(
        compared(d, "best speed"), 2)),
    Claim("memory_plan", "As an executor can hold it, {} to {} times vPipe's micro-batch on GPT and BERT",
          lambda d: span(
        compared(d, "x vPipe, strict", ("GPT", "BERT")), 0)),
    Claim("memory_plan", "On T5-large and AmoebaNet-like the exact search does not finish within {} seconds at large "
          "micro-batches", lambda d: unfinished(d, ("T5-large", "AmoebaNet"))),
    # running
    Claim("equality", "gradients within {} in fp64, {} in fp32 and {} in bf16", lambda d: tuple(
        small(max(row["gradient_error"] for row in d["rows"] if row["dtype"] == dtype))
        for dtype in ("fp64", "fp32", "bf16"))),
    Claim("gpu_plan", "within {} % of the plans' with Adam, and {} to {} % above with AdamA", lambda d: (
        most([100 * abs(ratio - 1) for ratio in on_gpu(d, "adam")], 1),
        *span([100 * (ratio - 1) for ratio in on_gpu(d, "adama")], 1))),
    Claim("gpu_plan", "peaks of memory are within {} %", lambda d: (most(
        [100 * abs(ratio - 1) for run in runs(d) for ratio in run["peak_ratios"]], 1),)),
    Claim("equality_gpu", "gradients within {} in fp64, {} in fp32 and {} in bf16", lambda d: tuple(
        small(max(row["gradient_error"] for row in d["rows"] if row["dtype"] == dtype))
        for dtype in ("fp64", "fp32", "bf16"))),
    Claim("equality_gpu", "six shapes train as one process does", lambda d: d["equal"] and len(
        {row["shape"] for row in d["rows"]}) == 6),
    Claim("equality", "nine shapes on 2 and 4 ranks and as two replicas", lambda d: (
        len({row["shape"] for row in d["rows"]}), {row["ranks"] for row in d["rows"]},
        max(row["replicas"] for row in d["rows"])) == (9, {2, 4}, 2)),
    Claim("transports", "Between two ranks of one host a message of 4 KiB to 64 MiB takes {} to {} of the time of "
          "torch's RPC over gloo, which is shared memory there, and {} to {} through `shared`; over sockets {} to {} "
          "of RPC's time over TCP", lambda d: (*against_rpc(d, "gloo"), *against_rpc(d, "shared"),
                                      *against_rpc(d, "gloo:sockets", "over_rpc_tcp"))),
    Claim("any_model", "{} foreign models, captured and cut between operators, have the plain model's gradients within "
          "{}, and with experts that multiply by groups in fp32 {}", lambda d: (captured(d)[0], *captured(d)[2:])),
    Claim("any_model_ranks", "On 2 and 3 ranks {} of them train by the call's own {} lines under weft's schedule, 1F1B "
          "and ZB-V, plain and recomputed: in {} of {} runs of five steps gradients are those of one process within {} "
          "in fp64", lambda d: tuple(trained_on_ranks(d)[place] for place in (0, 3, 1, 2, 4))),
    Claim("executed_memory", "takes when all is kept, plans by operator run one of {} on a GPT, an encoder and a ViT, "
          "whole layers kept or recomputed one of {}, {} and {}; on residual convolutions both run {}", sizes_run),
    Claim("captured_costs", "Of {} models on two ranks and two cores {} took what was planned within 10 %, and {} held "
          "it within 5 %", lambda d: (str(len(d["rows"])), str(d["within_10_percent"]), str(
              d["peaks_within_5_percent"]))),
    Claim("shared_jobs", "run {} times as fast as in turn (planned {}), each with the losses it has alone, bit for bit",
          lambda d: (f"{d['speedup']:.2f}", f"{d['planned_speedup']:.2f}") if all(
              all(row["losses_identical"].values()) for row in d["rows"]) else ("", "")),
    Claim("share", "two data parallel trainings gain {} times over their own overlap, on one machine {} times, as "
          "pipelines nothing", lambda d: tuple(f"{row['speedup']:.2f}" for row in d["modelled"][:2])
          if f"{d['modelled'][2]['speedup']:.2f}" == "1.00" else ("", "")),
    Claim("layouts", "up to eight devices cost what an exhaustive search finds", lambda d: all(
        row["equal_to_exhaustive"] == row["pairs"] for row in d["pairs"]) and d["pairs"][-1]["devices"] == 8),
    Claim("layouts", "{} random plans, with their gradients, differ from dense by at most {}", lambda d: (
        str(sum(row["plans"] for row in d["plans"])), small(max(row["largest_error"] for row in d["plans"])))),
    Claim("overlap_modelled", "a step takes {} to {} % less time than without overlap on the same placement where "
          "every GPU has the whole model, {} and {} % less where all of them share every layer, proven over these "
          "options, and {} and {} % less in groups, where bounds leave {} and {} %", overlapped),
    Claim("overlap", "({} ms each, 4 ms a launch), a step takes {} ms in place of {}, in the {} chunks that the search "
          "chose, which are the best of those tried", lambda d: in_chunks(d["chunks"][0])),
    Claim("overlap", "a real product of matrices on two cores takes {} of its time at best",
          lambda d: (f"{d['real']['ratio']:.2f}",)),
    Claim("annotations", "All operators of {} foreign models are known", lambda d: (str(len(d["rows"])),) if all(
        row["known"] == row["operators"] for row in d["rows"]) else ("",)),
    Claim("plans_found", "An interlaced pipeline of trained size takes {} of a plain one's step when both are "
          "searched, and an Evoformer whose forwards are recycled {} ms, proven over {} placements, where 3F1B's own "
          "order takes {}", searched_plans),
    Claim("co_shard_run", "In four parts, one after another, two layers hold {} % less at their peak", lambda d: (
        percent(1 - next(row["measured_of_whole"] for row in d["rows"] if row["plan"] == "4 parts")),)),
    Claim("overhead", "PyTorch's `Schedule1F1B` takes {} times the CPU time of weft in the run that is kept, less on a "
          "busy machine: next to a tie. Its runtime for any schedule takes {} times",
          lambda d: (runtime(d, "PyTorch, Schedule1F1B"), runtime(d, "PyTorch, schedule from CSV"))),
    Claim("heavy_head", "with 4 micro-batches weft's plan takes {} of the balanced 1F1B's step (predicted {}), 1F1B on "
          "the best cut {}", lambda d: (
              f"{trained(d, 4, 'weft')['measured_ratio']:.2f}",
              f"{trained(d, 4, 'weft')['predicted_ratio']['fitted']:.2f}",
              f"{trained(d, 4, '1F1B, best cut in two')['measured_ratio']:.2f}")),
    Claim("heavy_head", "with 8, both take {} (predicted {}): a tie", lambda d: (
        f"{trained(d, 8, 'weft')['measured_ratio']:.2f}",
        f"{trained(d, 8, 'weft')['predicted_ratio']['fitted']:.2f}")),
    Claim("heavy_head", "a tie", lambda d: abs(trained(d, 8, "weft")["measured_ratio"] - trained(
        d, 8, "1F1B, best cut in two")["measured_ratio"]) < 0.01),
    Claim("faults", "A killed rank stops all ranks in about a second", lambda d: all(
        row["seconds"] < 1.5 for row in d["faults"] if row["fault"] == "killed")),
    Claim("replay_emulated", "{} schedules of all shapes run within {} % of the prediction", lambda d: (
        str(len(d["rows"])), most((100 * abs(row["ratio"] - 1) for row in d["rows"]), 1))),
    Claim("adama", "fits from {} GiB a GPU in place of {}", lambda d: tuple(
        f"{d['planned']['least_memory'][name] / 2**30:.1f}" for name in ("adama", "adam"))),
    Claim("adama", "A small GPT ends within {} % of Adam over three seeds", lambda d: (
        most((100 * abs(run["difference"]) for run in d["trained"]["runs"]), 1),)),
    # the search
    Claim("tessel_search", "the {} problems of the Tessel evaluation", lambda d: (str(len(d["rows"])),)),
    Claim("tessel_search", "all best periods proven, each in under 0.1 CPU seconds", lambda d: all(
        row["proven"] and row["cpu_seconds"] < 0.1 for row in d["rows"])),
    Claim("tessel_search", "and all makespans for 128 micro-batches",
          lambda d: all(row["gap"] == 0 for row in d["rows"])),
    Claim("scale", "On 8, 16 and 32 devices {} of {} periods are proven, {} within 10 seconds", lambda d: tuple(
        str(scaled(d, (8, 16, 32), key)) for key in ("proven", "instances", "proven_within_10_s"))),
    Claim("scale", "all are within 1 % of their bound", lambda d: scaled(
        d, (8, 16, 32), "gap_under_1_percent") == scaled(d, (8, 16, 32), "instances")),
    Claim("scale", "on 64 devices {} of {} are proven and {} within 1 %, on 128 devices {} and {}", lambda d: tuple(
        str(d["summary"][devices][key]) for devices, key in (
            ("64", "proven"), ("64", "instances"), ("64", "gap_under_1_percent"), ("128", "proven"),
            ("128", "gap_under_1_percent")))),
    Claim("scale", "Of the {} that stay open {} have two chunks a device, by up to {} % on 64 devices and {} % on 128",
          lambda d: (str(len(unproven(d))), str(sum(row["shape"] in ("V2", "loop2") for row in unproven(d))), *(
              f"{100 * d['summary'][devices]['worst_gap'][0]:.1f}" for devices in ("64", "128")))),
    Claim("ablation", "without the least distances the search leaves gaps on {} of {} instances (the whole search on "
          "{})", lambda d: (str(left_open(d, "least-distances")), str(len(d["rows"])), str(left_open(d, "whole")))),
    Claim("ablation", "takes {} to {} times the CPU on the others", lambda d: span(ablated(
        d, "least-distances", lambda row: row["least-distances"]["proven"]), 0)),
    Claim("ablation", "without CP-SAT on the whole model it leaves {}", lambda d: (
        str(left_open(d, "whole-model-solve")),)),
    Claim("ablation", "without the removal of barriers {} to {} times on M, NN, K", lambda d: span(ablated(
        d, "barriers", lambda row: row["name"].startswith(("M", "NN", "K"))), 0)),
    Claim("transfers", "{} to {} % faster than the best known schedule that keeps the model once", lambda d: span(
        (100 * saved for saved in over_links(d, 1).values()), 1)),
    Claim("transfers", "and proven optimal", proven_over_links),
    Claim("transfers", "Against our own list scheduler, the best of those that keep it twice, it saves {} to {} %, but "
          "ties at 10 Gbit/s where links carry one transfer at a time", lambda d: span(
              (100 * saved for case, saved in over_links(d, 2).items() if case != _TIED), 1)
          if over_links(d, 2)[_TIED] == 0 else False),
)
