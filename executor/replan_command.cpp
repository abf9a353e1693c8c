#include "executor/replan_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/index.h"
#include "costmodel/project/process.h"
#include "costmodel/text/units_text.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/device/device.h"
#include "executor/launch/hosts.h"

namespace stagecraft {
namespace {

constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw InputError(ErrorKind::OtherModel, fmt::format("--replan: {}: {}", file, what));
}

std::string samples_text(const Plan& plan) {
  return fmt::format("{} of {}", count_text(plan.microbatches, "microbatch", "microbatches"),
                     count_text(plan.microbatch_samples.value_or(1), "sample"));
}

std::string step_text(const Plan& plan) { return plan.iteration ? format_seconds(*plan.iteration) : "unknown"; }

int ranks_of(const Plan& plan) { return to_int(BoundPlan(plan).ranks().size()); }

/// The options of stagecraft plan that give a plan the settings of `plan` that do not depend on its devices.
std::vector<std::string> settings_of(const Plan& plan) {
  std::vector<std::string> out{"--microbatches", std::to_string(plan.microbatches), "--schedule", plan.schedule};
  const Stage& first = plan.stages.front();
  const bool alike = std::ranges::all_of(plan.stages, [&](const Stage& stage) {
    return stage.recompute == first.recompute && stage.recompute_every == first.recompute_every;
  });
  if (alike && first.recompute) out.emplace_back("--recompute");
  if (alike && first.recompute && first.recompute_every > 0) {
    out.emplace_back("--recompute-every");
    out.push_back(std::to_string(first.recompute_every));
  }
  if (plan.gradient_bucket_bytes) {
    out.emplace_back("--gradient-bucket-bytes");
    out.push_back(std::to_string(plan.gradient_bucket_bytes->value));
  }
  if (plan.sharding != StateSharding::None) {
    out.emplace_back("--shard");
    out.emplace_back(to_string(plan.sharding));
  }
  return out;
}

/// Hides a GPU, by its number among those that are visible, from the ranks that this process starts from now on.
void hide_gpu(int gone) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  const char* const set = std::getenv(kVisible);
  std::vector<std::string> seen;
  if (set != nullptr) {
    std::istringstream words(set);
    for (std::string word; std::getline(words, word, ',');) seen.push_back(word);
  } else {
    for (int gpu = 0; gpu < device::gpu_count(); ++gpu) seen.push_back(std::to_string(gpu));
  }
  if (gone < to_int(seen.size())) seen.erase(seen.begin() + gone);
  ::setenv(kVisible, fmt::format("{}", fmt::join(seen, ",")).c_str(), 1);
}

}  // namespace

Replanner::Replanner(const RunCommand& o, const Plan& plan, launch::RankCommand restart)
    : o_(o), plan_(plan), plan_file_(o.plan), topology_(format::read_topology(o.replan[1])), next_(std::move(restart)) {
  const Graph graph = format::read_graph(o.replan[0]);
  if (graph.name != plan.model)
    refuse(o.replan[0], fmt::format("found model \"{}\", {} has \"{}\"", graph.name, o.plan, plan.model));
  if (graph.options != plan.options)
    refuse(o.replan[0], fmt::format("found other options of the model than {} has", o.plan));
  if (graph.microbatch_samples != plan.microbatch_samples) {
    refuse(o.replan[0], fmt::format("found a microbatch of {} samples, {} has {}", graph.microbatch_samples.value_or(0),
                                    o.plan, plan.microbatch_samples.value_or(0)));
  }
  if (device_count(topology_) < next_.ranks)
    refuse(o.replan[1], fmt::format("found {} devices, {} needs {}", device_count(topology_), o.plan, next_.ranks));
  if (!topology_.others.empty()) refuse(o.replan[1], "found several types of devices, expected one");
  if (plan.schedule == "listed")
    refuse(o.plan, "found a schedule given as action lists, which is for these ranks only");
}

launch::RankCommand Replanner::again(const launch::FailedRank& failed) {
  if (!failed.gone) {
    gone_.reset();
    return next_;
  }
  const auto steps = checkpoint::finite_checkpoints(o_.run.checkpoint.folder, kLast);
  std::string host;
  if (!next_.hosts.empty()) host = launch::place_ranks(next_.hosts, next_.ranks)[to_index(failed.rank)].host;
  const Gone now{host.empty() ? fmt::format("rank {}", failed.rank) : "host " + host, steps.empty() ? 0 : steps.back()};
  if (std::exchange(gone_, now) != now) return next_;
  gone_.reset();

  int left = device_count(topology_);
  if (host.empty()) {
    --left;
    if (o_.device == "cuda" && !o_.share_gpu) hide_gpu(failed.rank);
  } else {
    std::erase_if(next_.hosts, [&](const interchange::HostSlots& each) { return each.name == host; });
    int slots = 0;
    for (const interchange::HostSlots& each : next_.hosts) slots += each.slots;
    left = std::min(left, slots);
    if (left >= next_.ranks) {
      fmt::print(stderr, "stagecraft: {} cannot be started again; the other hosts have enough slots for {}\n",
                 now.place, plan_file_);
      return next_;
    }
  }
  if (left == 0) throw NoAnswerError(now.place + " cannot be started again, ", {"and nothing else is left"});
  plan_for(left, now.place);
  return next_;
}

void Replanner::plan_for(int devices, const std::string& place) {
  topology_ = smaller_topology(std::move(topology_), devices);
  const std::string name = fmt::format("{}/replanned-{}", o_.run.checkpoint.folder, ++plans_);
  const std::string topology_file = name + ".topology.json";
  const std::string file = name + ".plan.json";
  format::write_text(topology_file, format::topology_json(topology_));
  const std::string program =
      (std::filesystem::path(next_.arguments.front()).parent_path() / "stagecraft-plan").string();
  std::vector<std::string> words{program, o_.replan[0], topology_file};
  for (std::string& word : settings_of(plan_)) words.push_back(std::move(word));
  // Whoever made the first plan has accepted the profile.
  for (const char* word : {"--accept-untrusted", "--accept-other-device", "--force", "-o"}) words.emplace_back(word);
  words.push_back(file);
  if (const int status = project::run_program(words, "cannot start " + program); status != 0) {
    throw NoAnswerError(fmt::format("{} cannot be started again, ", place),
                        {fmt::format("and stagecraft plan found no plan for the {} devices that are left (status {})",
                                     device_count(topology_), status)});
  }
  const Plan made = format::read_plan(file);
  const int ranks = ranks_of(made);
  fmt::print(stderr,
             "stagecraft: {} cannot be started again; {} instead of {}, {} as before; predicted step {}, was {}; "
             "the plan is {}\n",
             place, count_text(ranks, "rank"), next_.ranks, samples_text(made), step_text(made), step_text(plan_),
             file);
  // The plan is an argument of its own; the first, because options that take a file do not take a plan.
  *std::ranges::find(next_.arguments, plan_file_) = file;
  next_.ranks = ranks;
  plan_ = made;
  plan_file_ = file;
}

}  // namespace stagecraft
