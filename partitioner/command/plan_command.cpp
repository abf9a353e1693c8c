#include "partitioner/command/plan_command.h"

#include <fmt/format.h>

#include <algorithm>

#include "costmodel/command/tool.h"
#include "costmodel/interchange/plan_formats.h"
#include "costmodel/schedule.h"
#include "partitioner/choices/settings.h"
#include "partitioner/command/settings_command.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

/// --schedule for all that schedules_to_compare gives.
constexpr const char* kBestSchedule = "best";

/// Prefix of the file with the action lists of the schedule.
constexpr std::string_view kCsv = "csv:";

/// The strategy that the command line names or implies, with its name as typed.
void choose_strategy(PlanRequest& request) {
  Constraints& constraints = request.constraints;
  const Strategy* owner = owner_of_options(constraints.options);
  if (request.strategy.empty()) request.strategy = owner != nullptr ? owner->name : kDefaultStrategy;
  if (owner != nullptr && request.strategy != owner->name) {
    throw CLI::ValidationError("--strategy",
                               request.strategy + " does not take " + owner->options_title + "'s options");
  }
  const Strategy chosen = usage("--strategy", [&] { return strategy_by_name(request.strategy); });
  if (chosen.decides_stages && constraints.stages)
    throw CLI::ValidationError("--stages", "strategy " + chosen.name + " finds the number of stages itself");
}

/// Takes the schedules that --settings searches: all synchronous ones unless --schedule is given.
void take_schedules_of_settings(PlanRequest& request, bool schedule_given) {
  std::string& schedule = request.constraints.plan.schedule;
  if (!lists_file(request).empty())
    throw CLI::ValidationError("--settings", "action lists set the schedule and the microbatches; remove csv:");
  if (!schedule_given || schedule == kBestSchedule) {
    request.schedules = schedules_to_compare();
    if (schedule_given) schedule = PlanSettings().schedule;
    return;
  }
  request.schedules = CLI::detail::split(schedule, ',');
  for (const std::string& name : request.schedules) usage("--schedule", [&] { return schedule_by_name(name).name; });
  schedule = request.schedules.front();
}

/// Takes the names from a --schedule that has several.
void take_schedules(PlanRequest& request, bool schedule_given) {
  std::string& schedule = request.constraints.plan.schedule;
  if (request.choice.settings) {
    take_schedules_of_settings(request, schedule_given);
    return;
  }
  if (!lists_file(request).empty() || (schedule != kBestSchedule && schedule.find(',') == std::string::npos)) return;
  if (request.choice.is_asked() || request.choice.complete || !request.choice.improve.empty()) {
    throw CLI::ValidationError("--schedule",
                               "give one schedule with options that choose among plans; several are compared only by "
                               "the step of the best plan with each");
  }
  request.schedules = schedule == kBestSchedule ? schedules_to_compare() : CLI::detail::split(schedule, ',');
  for (const std::string& name : request.schedules) usage("--schedule", [&] { return schedule_by_name(name).name; });
  schedule = request.schedules.front();
}

void check_usage(PlanRequest& request, bool schedule_given) {
  check_settings(request);
  take_schedules(request, schedule_given);
  const bool given = !request.split_at.empty() || !request.from.empty();
  const bool has_options = owner_of_options(request.constraints.options) != nullptr;
  if (given && (!request.strategy.empty() || has_options || request.constraints.stages)) {
    throw CLI::ValidationError(request.from.empty() ? "--split-at" : "--from",
                               "gives the stages; remove --strategy, --stages and " + titles_of_options() + " options");
  }
  check_choices(request.choice, given, request.strategy);
  request.strategy_named = !request.strategy.empty() || has_options;
  choose_strategy(request);
  const std::string& schedule = request.constraints.plan.schedule;
  if (lists_file(request).empty()) {
    const bool chunked = usage("--schedule", [&] { return schedule_by_name(schedule).chunked; });
    if (request.schedules.size() <= 1 && request.constraints.chunks.value_or(1) > 1 && !chunked) {
      throw CLI::ValidationError(
          "--chunks", "schedule " + schedule + " runs one stage per device; use --schedule " + chunked_schedule().name);
    }
  }
  if (lists_file(request).empty() && request.schedules.size() <= 1)
    usage("--shard", [&] { check_sharding(request.constraints.plan.sharding, schedule_by_name(schedule)); });
  if (!request.from.empty()) usage("--from", [&] { (void)interchange::plan_format(request.from[0]); });
  check_topology(request.topology);
}

}  // namespace

std::string lists_file(const PlanRequest& request) {
  const std::string& schedule = request.constraints.plan.schedule;
  return schedule.starts_with(kCsv) ? schedule.substr(kCsv.size()) : "";
}

void declare_plan(CLI::App& app, PlanRequest& request) {
  std::string names;
  for (const Strategy& strategy : strategies()) { names += fmt::format("\n  {}: {}", strategy.name, strategy.help); }
  app.add_option("GRAPH", request.graph, "graph.json; - is standard input")->required();
  app.add_option("TOPOLOGY", request.topology.file, "topology.json; or use --devices");
  declare_devices(app, request.topology);
  app.add_option("--strategy", request.strategy,
                 fmt::format("strategy (default: {}, or the one whose options are given):{}", kDefaultStrategy, names));
  std::string formats;
  for (const interchange::PlanFormat& format : interchange::plan_formats()) formats += "\n  " + format.name;
  app.add_option("--split-at", request.split_at,
                 "cut by hand: the first layer of every stage except the first; layer ids or module paths")
      ->delimiter(',')
      ->type_name("LAYER ...");
  app.add_option("--from", request.from,
                 "take the stages from another program's file; action lists give schedule, replicas and microbatches, "
                 "and need --split-at. Formats:" +
                     formats)
      ->expected(2)
      ->type_name("FORMAT FILE");
  app.add_option(
         "--stages", request.constraints.stages,
         "number of stages, for all strategies except pipedream (default: one per device, or --chunks per device)")
      ->transform(integer(1));
  app.add_option("--chunks", request.constraints.chunks,
                 "stages per device, for schedule " + chunked_schedule().name +
                     ": device d of p has the stages d, d + p, d + 2p, ...; not for strategy pipedream (default: 1; " +
                     strategies_with(&Strategy::compares) + " try 1, 2, 4 and 8)")
      ->transform(integer(1));
  app.add_option("--replicas", request.constraints.replicas,
                 "replicas of each stage, or one number for all of them; for all strategies except pipedream")
      ->delimiter(',')
      ->transform(integer(1))
      ->type_name("COUNT ...");
  app.add_option("--microbatches", request.constraints.plan.microbatches, "microbatches per step")
      ->transform(integer(1, kMostMicrobatches, "the maximum of a plan file"))
      ->capture_default_str();
  std::string orders;
  for (const ScheduleEntry& schedule : schedules()) {
    if (!schedule.needs_lists) orders += fmt::format("\n  {}: {}", schedule.name, schedule.help);
  }
  app.add_option("--schedule", request.constraints.plan.schedule,
                 "schedule; several, separated by commas, or best (all synchronous ones) to use the one with the "
                 "fastest plan; or csv:FILE for action lists in the CSV format of torch.distributed.pipelining, which "
                 "also give stages, replicas and microbatches. Schedules:" +
                     orders)
      ->capture_default_str();
  add_bytes_option(app, "--memory-limit", request.constraints.memory_limit,
                   "memory limit per device, such as 16e9 or 16GiB; pipedream applies PipeDream's own rule");
  app.add_flag("--recompute", request.constraints.plan.recompute,
               "recompute: stages drop activations after the forward and run it again before the backward");
  app.add_option("--recompute-every", request.constraints.plan.recompute_every,
                 "like --recompute, in segments of this many layers; keeps the values between segments (default: the "
                 "whole stage)")
      ->transform(integer(1))
      ->type_name("LAYERS");
  add_bytes_option(app, "--gradient-bucket-bytes", request.constraints.plan.gradient_bucket_bytes,
                   "largest gradient bucket, such as 25e6 or 25MiB (default: one bucket per stage)");
  app.add_option_function<std::string>(
         "--shard",
         [&request](const std::string& word) {
           request.constraints.plan.sharding = usage("--shard", [&] { return state_sharding(word); });
         },
         "what of the training state the replicas of a stage divide among them, instead of each keeping all of it, "
         "with "
         "the same results: none; optimizer, its state and its work (ZeRO-1); gradients, these too (ZeRO-2); or "
         "parameters, these too (ZeRO-3, FSDP), which needs several stages per device to save memory (default: none)")
      ->type_name("SHARDING");
  declare_choices(app, request.choice);
  declare_settings(app, request);
  add_graph_for_option(app, request.graphs_for);
  add_acceptance_options(app, request.acceptance,
                         "; ignores the slowdown of shared hosts and marks every figure with ~");
  app.add_option_function<std::string>(
         "--objective-profile", [](const std::string&) {},
         "plan with another planner's cost model and other options: see stagecraft plan --objective-profile max-load "
         "--help")
      ->type_name("NAME");
  app.add_option("-o,--output", request.output,
                 "write the plan to this file; - is standard output (default: only print a summary)")
      ->type_name("FILE");
  add_force_option(app, request.force);

  for (const Strategy& strategy : strategies())
    declare_options(app, strategy, strategy.options_title, request.constraints.options);
  app.callback([&request, &app] {
    if (app.count("--recompute-every") > 0) request.constraints.plan.recompute = true;
    if (request.constraints.plan.gradient_bucket_bytes && *request.constraints.plan.gradient_bucket_bytes < Bytes(1))
      throw CLI::ValidationError("--gradient-bucket-bytes", "found 0, must be at least 1 byte");
    request.microbatches_given = app.count("--microbatches") > 0;
    request.recomputation_given = request.constraints.plan.recompute;
    request.sharding_given = app.count("--shard") > 0;
    for (const char* name :
         {"--strategy", "--stages", "--replicas", "--chunks", "--microbatches", "--global-batch", "--schedule",
          "--split-at", "--from", "--recompute", "--recompute-every", "--gradient-bucket-bytes", "--shard"}) {
      if (!request.choice.improve.empty() && app.count(name) > 0)
        throw CLI::ValidationError("--improve", std::string(name) + " comes from the plan; remove it");
    }
    if (request.choice.complete && app.count("--replicas") > 0)
      throw CLI::ValidationError("--complete", "finds the replicas; remove --replicas");
    check_usage(request, app.count("--schedule") > 0);
  });
}

std::vector<std::string> inputs_of(const PlanRequest& request) {
  std::vector<std::string> out{request.graph, request.topology.file};
  if (!request.from.empty()) out.push_back(request.from[1]);
  if (!request.choice.improve.empty()) out.push_back(request.choice.improve);
  out.insert(out.end(), request.choice.more_graphs.begin(), request.choice.more_graphs.end());
  for (const std::string& graph_for : request.graphs_for) out.push_back(graph_for.substr(graph_for.find('=') + 1));
  if (const std::string lists = lists_file(request); !lists.empty()) out.push_back(lists);
  return out;
}

}  // namespace stagecraft::partitioner
