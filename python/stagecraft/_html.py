"""Tables for notebooks: one function per type, called by its _repr_html_."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from . import _core

_seconds, _bytes = _core.format_seconds, _core.format_bytes


def _cells(tag: str, row: Sequence[object]) -> str:
    return "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], most: int = 60) -> str:
    shown = [f"<tr>{_cells('td', row)}</tr>" for row in rows[:most]]
    if len(rows) > most:
        shown.append(f'<tr><td colspan="{len(heads)}">and {len(rows) - most} more</td></tr>')
    return (f"<table><caption>{html.escape(title)}</caption><thead><tr>{_cells('th', heads)}</tr></thead>"
            f"<tbody>{''.join(shown)}</tbody></table>")


def text(value: object) -> str:
    return f"<pre>{html.escape(str(value))}</pre>"


def graph(value: _core.Graph) -> str:
    rows = [(each.id, each.kind, _seconds(each.forward.median_s), _seconds(each.backward.median_s),
             _bytes(each.activation_bytes), _bytes(each.parameter_bytes)) for each in value.layers]
    return _table(repr(value), ("layer", "kind", "forward", "backward", "activations", "parameters"), rows)


def topology(value: _core.Topology) -> str:
    rows = [(each.name, each.count, f"{_bytes(int(each.link.bandwidth_bytes_per_s))}/s", _seconds(each.link.latency_s),
             "measured" if each.link.measured else "declared") for each in value.levels]
    return _table(repr(value), ("level", "count", "bandwidth", "latency", "origin"), rows)


def _ranges(numbers: Sequence[int]) -> str:
    out: list[list[int]] = []
    for number in numbers:
        if out and out[-1][1] + 1 == number:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in out)


def plan(value: _core.Plan) -> str:
    rows = [(number, stage.replicas, _ranges(stage.devices), len(stage.layers), f"{stage.layers[0]} .. {stage.layers[-1]}")
            for number, stage in enumerate(value.stages)]
    return _table(repr(value), ("stage", "replicas", "devices", "layers", "first .. last"), rows)


def prediction(value: _core.Prediction) -> str:
    rows = [(each.stage, each.replicas, _seconds(each.forward_s), _seconds(each.backward_s), _seconds(each.compute_s),
             _seconds(each.update_s), _seconds(each.reduce_s), _seconds(each.exposed_transfer_s), _seconds(each.bubble_s),
             each.in_flight, _bytes(each.memory.total_bytes) + ("" if each.fits else ", does not fit"))
            for each in value.stages]
    return _table(repr(value), ("stage", "replicas", "forward", "backward", "compute", "update", "reduce", "transfer",
                                "bubble", "in flight", "peak memory"), rows)


def measurement(value: _core.Measurement) -> str:
    rows = [(each.step, _seconds(each.end_s - each.start_s), f"{loss:.4g}")
            for each, loss in zip(value.timeline.steps, value.losses)]
    return _table(repr(value), ("step", "time", "loss"), rows)


def _row(name: str, pair: _core.Compared, show: Any) -> tuple[str, str, str, str]:
    error = "" if pair.error is None else f"{pair.error:+.1%}"
    return name, show(pair.predicted), show(pair.measured), error


def comparison(value: _core.Comparison) -> str:
    rows = [_row("step", value.step_s, _seconds)]
    if value.samples_per_s is not None:
        rows.append(_row("samples per second", value.samples_per_s, "{:.1f}".format))
    rows += [_row(f"stage {each.stage} {each.kind}", each.time_s, _seconds) for each in value.actions]
    rows += [_row(f"rank {each.rank} bubble", each.share, "{:.1%}".format) for each in value.bubbles]
    rows += [_row(f"rank {each.rank} peak memory", each.peak_bytes, lambda count: _bytes(int(count)))
             for each in value.memory]
    return _table(repr(value), ("", "predicted", "measured", "error"), rows)


def ranking(value: _core.Ranking) -> str:
    rows = [(each.origin, "-".join(str(stage.replicas) for stage in each.plan.stages),
             _seconds(each.prediction.iteration_s), _bytes(max(rank.total_bytes for rank in each.prediction.memory)),
             "" if each.fits else "does not fit") for each in value.plans]
    return _table(repr(value), ("plan", "replicas", "step", "peak memory", ""), rows)


def plan_list(value: _core.PlanList) -> str:
    rows = [(each.origin, "-".join(str(replicas) for replicas in each.replicas), _seconds(each.step_s),
             "" if each.samples_per_s is None else f"{each.samples_per_s:.1f}", _bytes(each.memory_bytes))
            for each in value.plans]
    return _table(repr(value), ("plan", "replicas", "step", "samples per second", "peak memory"), rows)


def report(value: _core.Report) -> str:
    """The page in a separate frame, so that its styles do not leak."""
    return (f'<iframe srcdoc="{html.escape(value.html)}" sandbox="allow-scripts" '
            f'style="width:100%;height:40em;border:1px solid #8888"></iframe>')
