"""Pooling, padding, rolling, running sums and interpolation: the dimensions that they work along are frozen."""

from __future__ import annotations

from collections.abc import Callable, Collection

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.convolutions import repeated
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule


def _along(which: Callable[[Arguments, int], Collection[int]], *, linear: bool = True) -> Rule:
    """``which`` dimensions, of the arguments and how many there are."""
    def known(w: Writer, step: Step) -> None:
        x, given = w.tensor(step.arguments[0]), step.outputs[0]
        assert given is not None
        before, after = w.shape(x), w.exported.metas[given].shape
        frozen = {dim % len(before) for dim in which(Arguments(step), len(before))}
        if len(before) != len(after) or not frozen:
            raise UnknownError
        axes: list[Axis] = [(w.fresh(),) for _ in before]
        output = [(w.fresh(),) if i in frozen else axis for i, axis in enumerate(axes)]
        ends = [name for i in frozen for name in (*axes[i], *output[i])]
        w.call(step, [(x, axes)], output, frozen=ends, sizes={output[i][0]: after[i] for i in frozen}, linear=linear)

    return known


@rule("pad", "constant_pad_nd")
def _pad(w: Writer, step: Step) -> None:
    amounts = step.arguments[1]
    if any(amounts):
        _along(lambda call, rank: [-1 - i for i in range(len(amounts) // 2) if any(amounts[2 * i:2 * i + 2])])(w, step)
    else:
        w.gives(step, w.tensor(step.arguments[0]))


rule("roll")(_along(lambda call, rank: repeated(call.at(2, "dims", []) or (), 1)))
rule("flip")(_along(lambda call, rank: call.step.arguments[1]))
rule("cumsum")(_along(lambda call, rank: [call.step.arguments[1]]))
for _rank, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _last = range(-_rank, 0)
    rule(f"max_pool{_rank}d")(_along(lambda call, rank, last=_last: last, linear=False))  # type: ignore[misc]
    rule(f"avg_pool{_rank}d", f"adaptive_avg_pool{_rank}d", f"upsample_nearest{_rank}d", f"upsample_{_kind}{_rank}d")(
        _along(lambda call, rank, last=_last: last))  # type: ignore[misc]
