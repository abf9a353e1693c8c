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
    rows = [(layer.id, layer.kind, _seconds(layer.forward.median_s), _seconds(layer.backward.median_s),
             _bytes(layer.activation_bytes), _bytes(layer.parameter_bytes)) for layer in value.layers]
    return _table(repr(value), ("layer", "kind", "forward", "backward", "activations", "parameters"), rows)


def topology(value: _core.Topology) -> str:
    rows = [(level.name, level.count, f"{_bytes(int(level.link.bandwidth_bytes_per_s))}/s",
             _seconds(level.link.latency_s), "measured" if level.link.measured else "declared")
            for level in value.levels]
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
    rows = [(stage.stage, stage.replicas, _seconds(stage.forward_s), _seconds(stage.backward_s),
             _seconds(stage.compute_s), _seconds(stage.update_s), _seconds(stage.reduce_s),
             _seconds(stage.exposed_transfer_s), _seconds(stage.bubble_s), stage.in_flight,
             _bytes(stage.memory.total_bytes) + ("" if stage.fits else ", does not fit"))
            for stage in value.stages]
    return _table(repr(value), ("stage", "replicas", "forward", "backward", "compute", "update", "reduce", "transfer",
                                "bubble", "in flight", "peak memory"), rows)


def measurement(value: _core.Measurement) -> str:
    rows = [(step.step, _seconds(step.end_s - step.start_s), f"{loss:.4g}")
            for step, loss in zip(value.timeline.steps, value.losses)]
    return _table(repr(value), ("step", "time", "loss"), rows)


def _row(name: str, pair: _core.Compared, show: Any) -> tuple[str, str, str, str]:
    error = "" if pair.error is None else f"{pair.error:+.1%}"
    return name, show(pair.predicted), show(pair.measured), error


def comparison(value: _core.Comparison) -> str:
    rows = [_row("step", value.step_s, _seconds)]
    if value.samples_per_s is not None:
        rows.append(_row("samples per second", value.samples_per_s, "{:.1f}".format))
    rows += [_row(f"stage {action.stage} {action.kind}", action.time_s, _seconds) for action in value.actions]
    rows += [_row(f"rank {bubble.rank} idle", bubble.share, "{:.1%}".format) for bubble in value.bubbles]
    rows += [_row(f"rank {rank.rank} peak memory", rank.peak_bytes, lambda count: _bytes(int(count)))
             for rank in value.memory]
    return _table(repr(value), ("", "predicted", "measured", "error"), rows)


def ranking(value: _core.Ranking) -> str:
    rows = [(listed.origin, "-".join(str(stage.replicas) for stage in listed.plan.stages),
             _seconds(listed.prediction.iteration_s),
             _bytes(max(rank.total_bytes for rank in listed.prediction.memory)),
             "" if listed.fits else "does not fit") for listed in value.plans]
    return _table(repr(value), ("plan", "replicas", "step", "peak memory", ""), rows)


def plan_list(value: _core.PlanList) -> str:
    rows = [(listed.origin, "-".join(str(replicas) for replicas in listed.replicas), _seconds(listed.step_s),
             "" if listed.samples_per_s is None else f"{listed.samples_per_s:.1f}", _bytes(listed.memory_bytes))
            for listed in value.plans]
    return _table(repr(value), ("plan", "replicas", "step", "samples per second", "peak memory"), rows)


def report(value: _core.Report) -> str:
    """The page in a separate frame, so that its styles do not leak."""
    return (f'<iframe srcdoc="{html.escape(value.html)}" sandbox="allow-scripts" '
            f'style="width:100%;height:40em;border:1px solid #8888"></iframe>')
