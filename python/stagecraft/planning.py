"""Planning and prediction: what the programs plan, predict, whatif, explain, diff, compare and report do, as functions.
Graphs, topologies and plans can be given as paths of their files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, Union, overload

from . import _core
from ._core import (Calibration, Comparison, Explanation, Graph, Measurement, Plan, PlanComparison, PlanList, Prediction, Ranking,
                    Report, StepChange, Topology, WhatIf)
from .errors import InputError

Bytes = Union[int, float, str]
File = Union[str, "os.PathLike[str]"]
Document = Union[Graph, Topology, Plan, Prediction, Measurement, Comparison, PlanList]
Read = TypeVar("Read", Graph, Topology, Plan)


def _read(kind: type[Read], document: Read | File) -> Read:
    """The document, loaded if it is given as a path."""
    if isinstance(document, (str, os.PathLike)):
        return kind.load(document)
    if not isinstance(document, kind):
        raise TypeError(f"found a {type(document).__name__}, expected a {kind.__name__} or the path of its file")
    return document


def _scenario(graph: Graph | File, topology: Topology | File, plan: Plan | File) -> tuple[Graph, Topology, Plan]:
    return _read(Graph, graph), _read(Topology, topology), _read(Plan, plan)


def _bytes(name: str, value: Bytes | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _core.parse_bytes(value)
    if value != int(value) or value < 0:
        raise InputError(f"{name}: {value} is not a number of bytes, of 0 or more")
    return int(value)


def _positive(name: str, value: int | None, most: int | None = None) -> None:
    if value is not None and (value < 1 or most is not None and value > most):
        raise InputError(f"{name}: {value} is not an integer " + ("of 1 or more" if most is None else f"from 1 to {most}"))


def _microbatches(graph: Graph, microbatches: int | None, global_batch: int | None) -> int:
    if global_batch is not None:
        if microbatches is not None:
            raise InputError("microbatches and global_batch are mutually exclusive")
        _positive("global_batch", global_batch)
        samples = graph.microbatch_samples
        if samples is None:
            raise InputError("global_batch: the graph does not say how many samples a microbatch has; give microbatches")
        if global_batch % samples:
            below = global_batch // samples * samples
            would = " or ".join(str(fitting) for fitting in (below, below + samples) if fitting)
            raise InputError(f"graph: its microbatches have {samples} samples, which do not divide global_batch {global_batch}; "
                             f"{would} would do")
        microbatches = global_batch // samples
    microbatches = 4 if microbatches is None else microbatches
    _positive("microbatches", microbatches, 1 << 20)
    return microbatches


def _acceptance(untrusted: bool | None, other_device: bool) -> _core.Acceptance:
    if untrusted is None:
        untrusted = os.environ.get("STAGECRAFT_ACCEPT_UNTRUSTED", "").lower() in ("1", "true", "on", "yes")
    return _core.Acceptance(untrusted, other_device)


def plans(graph: Graph | File, topology: Topology | File, *, strategy: str | None = None, stages: int | None = None,
          replicas: Sequence[int] = (), chunks: int | None = None, microbatches: int | None = None,
         global_batch: int | None = None, schedule: str = "1f1b",
          split_at: Sequence[str] = (), memory_limit: Bytes | None = None, recompute: bool = False,
          recompute_every: int | None = None, gradient_bucket_bytes: Bytes | None = None,
          shard: str = "none",
          options: Mapping[str, bool | float | str] = {}, accept_untrusted: bool | None = None,
          accept_other_device: bool = False) -> Ranking:
    """All plans that a strategy compared, best first. The arguments are those of plan."""
    graph, topology = _read(Graph, graph), _read(Topology, topology)
    microbatches = _microbatches(graph, microbatches, global_batch)
    for name, value in (("stages", stages), ("chunks", chunks), ("recompute_every", recompute_every)):
        _positive(name, value)
    for count in replicas:
        _positive("replicas", count)
    bucket = _bytes("gradient_bucket_bytes", gradient_bucket_bytes)
    _positive("gradient_bucket_bytes", bucket)
    if split_at and (strategy is not None or stages is not None or options):
        raise InputError("split_at: gives the stages; remove strategy, stages and options")
    return _core.plans(graph, topology, strategy or _core.DEFAULT_STRATEGY, list(split_at), dict(options), stages, chunks,
                       list(replicas), microbatches, schedule, _bytes("memory_limit", memory_limit), recompute,
                       recompute_every or 0, bucket, shard, _acceptance(accept_untrusted, accept_other_device))


def plan(graph: Graph | File, topology: Topology | File, *, strategy: str | None = None, stages: int | None = None,
         replicas: Sequence[int] = (), chunks: int | None = None, microbatches: int | None = None,
         global_batch: int | None = None, schedule: str = "1f1b",
         split_at: Sequence[str] = (), memory_limit: Bytes | None = None, recompute: bool = False,
         recompute_every: int | None = None, gradient_bucket_bytes: Bytes | None = None,
         shard: str = "none",
         options: Mapping[str, bool | float | str] = {}, accept_untrusted: bool | None = None,
         accept_other_device: bool = False) -> Plan:
    """The best plan for a graph on a topology, as the program plan finds it.

    strategy -- see strategies(); the default finds the shortest predicted step and proves it, or bounds the gap to it
    stages, replicas, chunks -- numbers of stages, of replicas of each stage, of stages per device; the strategy decides
        those that are not given
    microbatches, schedule -- microbatches per step and schedule (default: 4, "1f1b"); global_batch -- the samples of a step instead
        of microbatches
    split_at -- stages set by hand: the first layer of every stage except the first
    memory_limit, gradient_bucket_bytes -- bytes, as a number or as a string such as "16GiB"
    recompute, recompute_every -- drop activations and compute them again, the whole stage or this many layers at once
    shard -- what the replicas of a stage divide among them: "optimizer", its state (ZeRO-1); "gradients" or "parameters",
        these too (ZeRO-2, ZeRO-3)
    options -- the strategy's own, such as {"time_limit": 10}
    accept_untrusted -- plan with times that the graph or the topology says cannot be trusted; default: STAGECRAFT_ACCEPT_UNTRUSTED
    accept_other_device -- plan with times that were measured on another kind of device

    Raises NoPlanError, with what would fit, if no plan does.
    """
    ranking = plans(graph, topology, strategy=strategy, stages=stages, replicas=replicas, chunks=chunks,
                    microbatches=microbatches, global_batch=global_batch, schedule=schedule, split_at=split_at,
                    memory_limit=memory_limit,
                    recompute=recompute, recompute_every=recompute_every, gradient_bucket_bytes=gradient_bucket_bytes,
                    shard=shard, options=options, accept_untrusted=accept_untrusted, accept_other_device=accept_other_device)
    return ranking.best.plan


def predict(graph: Graph | File, topology: Topology | File, plan: Plan | File, *, calibration: Calibration | None = None,
            free_transfers: bool = False, accept_untrusted: bool | None = None,
            accept_other_device: bool = False) -> Prediction:
    """Time, throughput and memory of a plan, with 90 % intervals. Raises NoPlanError if its action lists deadlock."""
    return _core.predict(*_scenario(graph, topology, plan), calibration, free_transfers,
                         _acceptance(accept_untrusted, accept_other_device))


def _texts(changes: Mapping[str, object] | Iterable[str]) -> list[str]:
    if isinstance(changes, Mapping):
        return [f"{name}={value}" for name, value in changes.items()]
    return [changes] if isinstance(changes, str) else list(changes)


def whatif(graph: Graph | File, topology: Topology | File, plan: Plan | File, changes: Mapping[str, object] | Iterable[str], *,
           calibration: Calibration | None = None, accept_untrusted: bool | None = None,
           accept_other_device: bool = False) -> WhatIf:
    """Predictions before and after changes, such as {"link.node.bandwidth": "2x", "microbatches": 16}; see settings()."""
    return _core.whatif(*_scenario(graph, topology, plan), _texts(changes), calibration,
                        _acceptance(accept_untrusted, accept_other_device))


def changed(graph: Graph | File, topology: Topology | File, plan: Plan | File,
            changes: Mapping[str, object] | Iterable[str]) -> tuple[Graph, Topology, Plan]:
    """The three documents after the changes of whatif."""
    return _core.changed(*_scenario(graph, topology, plan), _texts(changes))


def explain(graph: Graph | File, topology: Topology | File, plan: Plan | File, *, moves: bool = True,
            calibration: Calibration | None = None, accept_untrusted: bool | None = None,
            accept_other_device: bool = False) -> Explanation:
    """Why a plan's step takes as long as predicted; with `moves`, also the best move of a single layer."""
    return _core.explain(*_scenario(graph, topology, plan), moves, calibration,
                         _acceptance(accept_untrusted, accept_other_device))


def diff(graph: Graph | File, topology: Topology | File, first: Plan | File, second: Plan | File, *,
         calibration: Calibration | None = None, accept_untrusted: bool | None = None,
         accept_other_device: bool = False) -> PlanComparison:
    """Where two plans differ, both predictions, and how likely the first is faster."""
    return _core.diff(*_scenario(graph, topology, first), _read(Plan, second), calibration,
                      _acceptance(accept_untrusted, accept_other_device))


@overload
def compare(first: Prediction, second: Measurement, *, skip: int = 2) -> Comparison: ...
@overload
def compare(first: Measurement, second: Prediction, *, skip: int = 2) -> Comparison: ...
@overload
def compare(first: Prediction, second: Prediction, *, skip: int = 2) -> StepChange: ...
@overload
def compare(first: Measurement, second: Measurement, *, skip: int = 2) -> StepChange: ...


def compare(first: Prediction | Measurement, second: Prediction | Measurement, *, skip: int = 2) -> Comparison | StepChange:
    """Compares a prediction with a measured run, in any order; or says what changes from one prediction to another, or from
    one run to another. The first `skip` steps of a run are skipped."""
    if skip < 0:
        raise InputError(f"skip: {skip} is not an integer of 0 or more")
    if isinstance(first, Prediction) and isinstance(second, Prediction):
        return _core.change(first, second)
    if isinstance(first, Measurement) and isinstance(second, Measurement):
        return _core.change(first, second, skip)
    if isinstance(first, Measurement) and isinstance(second, Prediction):
        first, second = second, first
    return _core.compare(first, second, skip)


def report(*documents: Document) -> Report:
    """One page about a model, its plans, predictions and runs, from any of these documents in any order. A PlanList is what
    `plan --top`, `--front` or `--settings` writes with `--json`."""
    named, counts = [], dict[str, int]()
    for document in documents:
        kind = type(document).__name__.lower()
        counts[kind] = counts.get(kind, 0) + 1
        named.append((kind if counts[kind] == 1 else f"{kind} {counts[kind]}", document))
    return _core.report(named)
