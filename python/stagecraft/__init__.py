"""stagecraft: profile, plan, predict and run pipeline-parallel training. docs/python.md is its guide."""

from ._core import (ActionChange, ActionComparison, BubbleComparison, Calibration, Changed, Compared, Comparison,
                    ConditionChange, Device, Edge, Explanation, Figure, Graph, Layer, LayerMove, Level, Link,
                    ListedPlan, MeasuredDevice, Measurement, MemoryComparison, MovedLayer, Output, PathShare, Plan, PlanComparison,
                    PlanDifference, PlanList, Prediction, Provenance, RankMemory, RankedPlan, Ranking, RanksChange, Report, Skipped,
                    Span, Stage, StagePrediction, StepChange, StepParts, StepRatio, StepTime, Timeline, Timing, Topology,
                    WhatIf, Work, settings, strategies, version)
from .errors import Error, InputError, MissingProgramError, NoPlanError, ProgramError
from .planning import changed, compare, diff, explain, plan, plans, predict, report, whatif
from .training import Evaluation, Run, estimate, evaluate, export, profile, run

__version__ = version()

__all__ = [
    "ActionChange", "ActionComparison", "BubbleComparison", "Calibration", "Changed", "Compared", "Comparison",
    "ConditionChange", "Device", "Edge", "Error", "Evaluation", "Explanation", "Figure", "Graph", "InputError", "Layer",
    "LayerMove", "Level", "Link", "ListedPlan", "MeasuredDevice", "Measurement", "MemoryComparison", "MissingProgramError", "MovedLayer",
    "NoPlanError", "Output", "PathShare", "Plan", "PlanComparison", "PlanDifference", "PlanList", "Prediction", "ProgramError",
    "Provenance", "RankMemory", "RankedPlan", "Ranking", "RanksChange", "Report", "Run", "Skipped", "Span", "Stage",
    "StagePrediction", "StepChange", "StepParts", "StepRatio", "StepTime", "Timeline", "Timing", "Topology", "WhatIf",
    "Work", "__version__", "changed", "compare", "diff", "estimate", "evaluate", "explain", "export", "plan", "plans", "predict",
    "profile", "report", "run", "settings", "strategies", "version", "whatif",
]
