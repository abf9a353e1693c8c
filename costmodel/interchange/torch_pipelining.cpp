#include "costmodel/interchange/torch_pipelining.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/escaping.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/index.h"

namespace stagecraft::interchange {

std::vector<std::vector<Action>> parse_actions_csv(const std::string& text, const std::string& file) {
  std::vector<std::vector<Action>> out;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    try {
      out.push_back(format::parse_actions_row(line));
    } catch (const std::invalid_argument& e) {
      throw FormatError(file + ": line " + std::to_string(out.size() + 1) + ": " + e.what());
    }
  }
  if (out.empty()) throw FormatError(file + ": no line, expected one for each rank");
  return out;
}

std::string actions_csv(const std::vector<std::vector<Action>>& lists) {
  std::string out;
  for (const auto& list : lists) out += format::actions_row(list) + "\n";
  return out;
}

Plan plan_of_lists(const std::vector<std::vector<Action>>& lists) {
  Plan plan;
  plan.schedule = "listed";
  plan.listed = lists;
  plan.model = "none";
  std::vector<std::set<int>> columns;  // the stages of each position
  std::vector<int> ranks;
  int stages = 0;
  int microbatches = 0;
  for (const auto& list : lists) {
    std::set<int> rank_stages;
    for (const Action& action : list) {
      rank_stages.insert(action.stage);
      stages = std::max(stages, action.stage + 1);
      microbatches = std::max(microbatches, action.microbatch + 1);
    }
    const bool same = !columns.empty() && (rank_stages.empty() || rank_stages == columns.back());
    if (!same) {
      columns.push_back(rank_stages);
      ranks.push_back(0);
    }
    ++ranks.back();
  }
  const int positions = to_int(columns.size());
  if (stages % positions != 0) {
    throw std::invalid_argument("the lists hold " + std::to_string(stages) + " stages on " + std::to_string(positions) +
                                " positions, expected the same number on each");
  }
  plan.chunks = stages / positions;
  const Placement placement = placement_of(lists);
  plan.microbatches = std::max(microbatches, 1);
  int device = 0;
  std::vector<int> replicas;
  for (int s = 0; s < stages; ++s) {
    const std::size_t position = to_index(position_of(s, positions, placement));
    if (!columns[position].contains(s)) {
      throw std::invalid_argument("stage " + std::to_string(s) + " is not at position " + std::to_string(position) +
                                  " of " + std::to_string(positions) + ": position d holds the stages d, d + " +
                                  std::to_string(positions) + ", ..., or in a V the stages d and " +
                                  std::to_string(2 * positions - 1) + " - d");
    }
    Stage stage{{"stage " + std::to_string(s)}, {}, false};
    if (s < positions) {
      for (int r = 0; r < ranks[position]; ++r) stage.devices.push_back(device++);
    } else {
      stage.devices = plan.stages[position].devices;
    }
    if (s > 0) {
      plan.boundaries.push_back({s - 1, s, {{"stage " + std::to_string(s - 1), 0, Bytes(0), {}, "", true}}});
    }
    replicas.push_back(ranks[position]);
    plan.stages.push_back(std::move(stage));
  }
  plan.warmups = warmup_counts(replicas);
  validate(plan);
  return plan;
}

namespace {

constexpr const char* kScript = R"py(#!/usr/bin/env python3
"""Trains a model in the stages of a stagecraft plan, with torch.distributed.pipelining.

  torchrun --nproc-per-node {ranks} THIS_FILE --model my_code:build --batch my_code:batch

--model names a function that returns the complete torch.nn.Module, --batch one that returns (arguments, target) of a
step: a tensor or a tuple of tensors, and a tensor. The first axis of each is split into {microbatches} microbatches.
"""

import argparse
import importlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _PipelineScheduleRuntime, get_schedule_class

# The layers of each stage, by their paths in the model.
STAGES = [
{stages}]
RANKS = {ranks}
RANK_OF_STAGE = [{rank_of_stage}]
MICROBATCHES = {microbatches}
ACTIONS = """\
{actions}"""

def named(text):
    module, _, path = text.partition(":")
    value = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value

def refuse(message):
    sys.exit(message if os.environ.get("RANK", "0") == "0" else 1)

def planned_stages(model):
    """The stage of each parameter by the plan, under every name that the parameter has."""
    stage_of_layer = {{layer: stage for stage, layers in enumerate(STAGES) for layer in layers}}
    holders = {{}}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        owners = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        stage = next((stage_of_layer[owner] for owner in owners if owner in stage_of_layer), None)
        names, stages = holders.setdefault(id(parameter), ([], set()))
        names.append(name)
        stages.update(() if stage is None else (stage,))
    for names, stages in holders.values():
        if len(stages) > 1:
            refuse(f"stages {{sorted(stages)}} share a parameter, {{' and '.join(names)}}: torch.distributed.pipelining does "
                   f"not add up its gradients; use a plan with both in one stage")
    return {{name: stages for names, stages in holders.values() for name in names}}

def split_points(model):
    """Before the first layer of each stage but the first; if that is not a module, after the last one before it."""
    modules = {{path for path, _ in model.named_modules()}}
    points = {{}}
    for stage in range(1, len(STAGES)):
        first, before = STAGES[stage][0], STAGES[stage - 1][-1]
        if first in modules:
            points[first] = SplitPoint.BEGINNING
        elif before in modules and before not in points:
            points[before] = SplitPoint.END
        else:
            refuse(f'stage {{stage}} begins at "{{first}}", which is not a module of the model, nor is "{{before}}" before it: '
                   f"torch marks split points at modules; use a plan that is cut at one")
    return points

def check_stages(pipe, planned):
    """Checks that torch's stages have the parameters of the plan's layers."""
    if pipe.num_stages != len(STAGES):
        refuse(f"torch split the model into {{pipe.num_stages}} stages, the plan has {{len(STAGES)}}: stages must be "
               f"runs of modules in execution order")
    for stage in range(len(STAGES)):
        for name, _ in pipe.get_stage_module(stage).named_parameters():
            wanted = planned.get(name)
            if wanted and stage not in wanted:
                refuse(f'torch puts parameter "{{name}}" in stage {{stage}}, the plan in stage {{min(wanted)}}: stages '
                       f"must be runs of modules in execution order")

def schedule_of(name, stages, loss):
    if name != "plan":
        chosen = get_schedule_class(name)
        chosen_stages = stages if issubclass(chosen, PipelineScheduleMulti) else stages[0]
        return chosen(chosen_stages, MICROBATCHES, loss_fn=loss)
    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "schedule.csv")
        with open(path, "w") as file:
            file.write(ACTIONS)
        schedule._load_csv(path, format="compute_only")
    return schedule

def main():
    parser = argparse.ArgumentParser(description="Trains a model in the stages of a stagecraft plan.")
    parser.add_argument("--model", required=True, metavar="MODULE:CALLABLE", help="returns the complete model")
    parser.add_argument("--batch", required=True, metavar="MODULE:CALLABLE", help="returns a step's (arguments, target)")
    parser.add_argument("--loss", default="torch.nn.functional:cross_entropy", metavar="MODULE:CALLABLE",
                        help="loss(output, target), a mean over the batch (default: %(default)s)")
    parser.add_argument("--schedule", default="plan", help="plan, or one of torch's: GPipe, 1F1B, Interleaved1F1B, ...")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.01, help="learning rate of SGD (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed, set on every rank before the model is built")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu (gloo) or cuda (nccl)")
    options = parser.parse_args()

    sys.path.insert(0, os.getcwd())
    on_cuda = options.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_cuda else torch.device(options.device)
    if on_cuda:
        torch.cuda.set_device(device)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != RANKS:
        refuse(f"found {{world}} ranks, the plan has {{RANKS}}: torchrun --nproc-per-node {{RANKS}}")

    torch.manual_seed(options.seed)
    model = named(options.model)().to(device)
    arguments, target = named(options.batch)()
    arguments = tuple(a.to(device) for a in (arguments if isinstance(arguments, tuple) else (arguments,)))
    target = target.to(device)
    for tensor in (*arguments, target):
        if tensor.shape[0] % MICROBATCHES != 0:
            refuse(f"the batch has {{tensor.shape[0]}} samples, expected a multiple of {{MICROBATCHES}} microbatches")

    example = tuple(a.tensor_split(MICROBATCHES)[0] for a in arguments)
    planned = planned_stages(model)
    pipe = pipeline(model, mb_args=example, split_spec=split_points(model))
    check_stages(pipe, planned)

    dist.init_process_group("nccl" if on_cuda else "gloo")
    rank = dist.get_rank()
    indices = [stage for stage in range(len(STAGES)) if RANK_OF_STAGE[stage] == rank]
    stages = [pipe.build_stage(stage, device) for stage in indices]
    schedule = schedule_of(options.schedule, stages, named(options.loss))
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=options.learning_rate)
    for step in range(options.steps):
        optimizer.zero_grad()
        losses = []
        last = {{"target": target, "losses": losses}} if len(STAGES) - 1 in indices else {{}}
        schedule.step(*(arguments if 0 in indices else ()), **last)
        optimizer.step()
        if losses:
            print(f"step {{step}} loss {{torch.stack(losses).mean().item():.6f}}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
)py";

}  // namespace

std::string plan_actions_csv(const BoundPlan& plan, bool transfers) {
  if (plan.asynchronous()) {
    throw std::invalid_argument("schedule \"" + plan.plan().schedule +
                                "\" has updates inside its lists, which the CSV format cannot express");
  }
  // torch's own simulator blocks a rank at a receive, so each comes right before the action that needs it.
  auto lists = plan.action_lists(1, 1);
  for (auto& list : lists) {
    std::erase_if(list, [&](const Action& action) {
      return action.kind == ActionKind::Update || is_residence(action.kind) || (!transfers && !is_compute(action.kind));
    });
  }
  return actions_csv(lists);
}

std::string torch_pipelining_script(const BoundPlan& bound) {
  const Plan& plan = bound.plan();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    if (plan.stages[s].devices.size() == 1) continue;
    throw std::invalid_argument(
        fmt::format("stage {} has {} replicas, but torch.distributed.pipelining runs a stage on one rank; plan one "
                    "replica per stage (--strategy profile --stages N) and replicate the whole pipeline with "
                    "DistributedDataParallel over a mesh",
                    s, plan.stages[s].devices.size()));
  }
  if (const auto far = far_reader(bound)) {
    throw std::invalid_argument(
        fmt::format("layer \"{}\" of stage {} is read in stage {}, but torch's schedules pass tensors only to the next "
                    "stage; use a plan whose stages read only from the previous one (--split-at)",
                    far->layer, far->stage, far->reader));
  }
  if (!bound.schedule().trains) {
    throw std::invalid_argument("schedule \"" + plan.schedule + "\" does not train, but the program trains");
  }
  std::vector<int> rank_of_stage;
  for (int s = 0; s < bound.stages(); ++s) rank_of_stage.push_back(bound.position_of(s));
  std::string stages;
  for (const Stage& stage : plan.stages) {
    std::vector<std::string> layers;
    for (const std::string& layer : stage.layers) layers.push_back(format::json_string(layer));
    stages += fmt::format("    [{}],\n", fmt::join(layers, ", "));
  }
  return fmt::format(kScript, fmt::arg("ranks", bound.positions()), fmt::arg("microbatches", plan.microbatches),
                     fmt::arg("rank_of_stage", fmt::join(rank_of_stage, ", ")), fmt::arg("stages", stages),
                     fmt::arg("actions", plan_actions_csv(bound)));
}

}  // namespace stagecraft::interchange
