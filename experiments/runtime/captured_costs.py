"""What a pipeline of a captured model is planned to take and to hold, beside what it takes and holds.

    python -m experiments.runtime.captured_costs [--only NAME ...] [--schedule NAME] [--ranks N]

Each model, of plain torch or of those of ``any_model``, is trained by ``weft.pipeline`` on two ranks for some steps, at
as many samples a micro-batch as make a pass forward and back in one process take about 60 ms, so that a stage takes
what means something. Told are the step as planned over the step as measured, in one run: as the plan has it; by the
medians of blocks and messages of the run before training, without the stretch; and by stages measured one by one, with
neighbours at work, and links measured alone. And the peak of memory as planned over that measured, of the rank where
they are furthest apart. A machine that does anything else makes the first of these worse. Models of transformers are
left out where it is not installed. Writes ``captured_costs.json``; exits with 1 if less than eight of ten steps are
within 10 %, or a peak is not within 5 %.
"""

from __future__ import annotations

import itertools
import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from experiments.lib import foreign_models
from experiments.lib.foreign_models import Model, Residual, perceptron
from experiments.lib.provenance import Record, Row
from experiments.lib.script import launched, script
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.loss import loss_of

MICRO_BATCHES, STEPS = 6, 8
#: Seconds of a forward and backward of one micro-batch in one process, about.
PASS = 0.06
#: Of steps that shall be within :data:`CLOSE`, and of peaks.
SHARE, CLOSE, PEAK = 0.8, 0.10, 0.05
TIME_LIMIT = 2.0  # seconds of the search


class _Loss(nn.Module):
    """A model of a tensor that gives its own loss: what its result has in squares."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()  # type: ignore[no-any-return]


class _Decoder(nn.Module):
    def __init__(self, layers: int, width: int, words: int = 500, length: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True,
                                                                norm_first=True) for _ in range(layers)])
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.words(ids) + self.places(torch.arange(length))
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        scores = self.head(x)
        return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _model(module: nn.Module, x: Tensor) -> Model:
    return Model(module, (x,), {}, {})


def _perceptron(rows: int) -> Model:
    layers: list[nn.Module] = [nn.Linear(256, 512), nn.GELU()]
    for _ in range(6):
        layers += [nn.Linear(512, 512), nn.GELU()]
    return _model(_Loss(nn.Sequential(*layers, nn.Linear(512, 64))), torch.randn(rows, 256))


def _encoder(rows: int) -> Model:
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
    return _model(_Loss(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)), torch.randn(rows, 32, 128))


def _decoder(rows: int) -> Model:
    return _model(_Decoder(6, 128), torch.randint(500, (rows, 32)))


def _convolutions(rows: int) -> Model:
    def block(width: int) -> nn.Module:
        return Residual(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU(),
                                      nn.Conv2d(width, width, 3, padding=1)), act=False)

    return _model(_Loss(nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), block(16), block(16), nn.Conv2d(16, 32, 3, stride=2, padding=1), block(32),
        block(32), block(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))), torch.randn(rows, 3, 24, 24))


def _mixer(rows: int) -> Model:
    class Across(nn.Module):
        def __init__(self, places: int) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]

    def layer() -> list[nn.Module]:
        return [Residual(nn.Sequential(nn.LayerNorm(96), Across(32)), act=False), perceptron(96)]

    return _model(_Loss(nn.Sequential(*(part for _ in range(6) for part in layer()))), torch.randn(rows, 32, 96))


def _hourglass(rows: int) -> Model:
    widths = [512, 384, 256, 128, 256, 384, 512]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.SiLU()]
    return _model(_Loss(nn.Sequential(*layers)), torch.randn(rows, 512))


_PLAIN: dict[str, Callable[[int], Model]] = {
    "perceptron": _perceptron, "encoder": _encoder, "decoder, tied": _decoder, "convolutions": _convolutions,
    "mixer": _mixer, "hourglass": _hourglass}
MODELS = (*_PLAIN, "U-Net (torch)", "Transformer (torch)", "GPT-2", "Llama", "BERT", "T5", "ViT", "ResNet-50",
          "Mixtral", "Qwen2-MoE", "CLIP", "LLaVA", "Mamba", "Wav2Vec2")


def made(name: str, rows: int) -> Model:
    """The model called ``name`` in fp32 without dropout, and a batch of ``rows`` samples."""
    torch.manual_seed(0)
    model = _PLAIN[name](rows) if name in _PLAIN else foreign_models.made(name, rows, torch.float32)
    for part in model.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model


def rows_of(name: str) -> int:
    """Samples of a micro-batch with which a pass takes about :data:`PASS`."""
    torch.set_num_threads(1)
    rows = 2
    while True:
        model = made(name, rows)
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            loss_of(model.module(*model.args, **model.kwargs)).backward()  # type: ignore[no-untyped-call]
            taken.append(time.perf_counter() - begun)
        if min(taken) >= 0.7 * PASS or rows >= 4096:
            return rows
        rows *= 2 if min(taken) > PASS / 4 else 4


def on_rank(name: str, rows: int, schedule: str | None) -> Row | None:
    """What one rank does; what the first found."""
    import weft

    model = made(name, rows * MICRO_BATCHES)
    begun = time.perf_counter()
    with weft.pipeline(model.module, model.args, model.kwargs, micro_batches=MICRO_BATCHES, schedule=schedule,
                       time_limit=TIME_LIMIT, remeasure=True, **model.settings) as pipe:
        seconds = first = time.perf_counter() - begun
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-4)
        for step in range(STEPS):
            pipe.step(*model.args, **model.kwargs)
            first = first if step else time.perf_counter() - begun
            optimizer.step()
            optimizer.zero_grad()
        report, solver = pipe.report(), pipe.plan.solver
        if pipe.rank:
            return None
        return {**report.to_json(), "stages_alone": solver["stages_alone"], "medians": solver["medians"],
                "seconds": seconds, "first": first}


def measured(name: str, ranks: int, schedule: str | None) -> Row:
    """One model. Raises ``ImportError`` where its package is missing,
    :class:`~weft.runtime.captured.captured.CaptureError` where a rank refuses it."""
    rows = rows_of(name)
    ended = launched(on_rank, ranks, name, rows, schedule, timeout=300)
    if any(end.code for end in ended):
        raise CaptureError(next((end.errors.splitlines()[-1] for end in ended if end.errors), "a rank ended"))
    found = json.loads(ended[0].output.splitlines()[-1])
    step = found["measured"]
    peaks = [planned / held for planned, held in zip(found["peaks"], found["measured_peaks"], strict=True)]
    return {"model": name, "rows": rows, "planned": found["planned"], "measured": step,
            "ratio": found["planned"] / step, "by_medians": found["medians"] / step,
            "by_stages": found["stages_alone"] / step, "peak_ratio": max(peaks, key=lambda ratio: abs(ratio - 1)),
            "seconds_to_plan": found["seconds"], "seconds_to_step": found["first"]}


@script("captured_costs.json", only=list(MODELS), schedule=str, ranks=2)
def main(options: Namespace, record: Record) -> bool:
    left_out: list[dict[str, str]] = []

    def all_rows() -> Iterator[Row]:
        for name in options.only:
            try:
                yield measured(name, options.ranks, options.schedule)
            except (CaptureError, ImportError) as error:
                left_out.append({"model": name, "why": str(error).splitlines()[0]})
                print(left_out[-1], flush=True)

    def summed(rows: list[Row]) -> Row:
        return {"left_out": left_out, "within_10_percent": sum(abs(row["ratio"] - 1) <= CLOSE for row in rows),
                "peaks_within_5_percent": sum(abs(row["peak_ratio"] - 1) <= PEAK for row in rows)}

    rows = record.rows(all_rows(), summed, ranks=options.ranks, micro_batches=MICRO_BATCHES)
    whole = summed(rows)
    return bool(whole["within_10_percent"] < SHARE * len(rows) or whole["peaks_within_5_percent"] < len(rows))
