#include "costmodel/format/results/plan_list_json.h"

#include "costmodel/format/description.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr Integer kCount{1, kMost, ""};

/// The three lists of a plan's stages as documents have them: by stage.
struct ListedStage {
  std::string first_layer;
  int replicas = 1;
  std::string devices;
};

Field<ListedPlan> stages() {
  const auto stage = object<ListedStage>({
      required("first_layer", &ListedStage::first_layer, text()),
      required("replicas", &ListedStage::replicas, kCount),
      required("devices", &ListedStage::devices, text(), "device numbers, runs as ranges: 0-3,8"),
  });
  return derived<ListedPlan, std::vector<ListedStage>>(
      "stages",
      [](const ListedPlan& plan) {
        std::vector<ListedStage> out;
        for (std::size_t s = 0; s < plan.replicas.size(); ++s)
          out.push_back({plan.first[s], plan.replicas[s], plan.devices[s]});
        return out;
      },
      [](const Cursor&, ListedPlan& plan, const std::vector<ListedStage>& read) {
        for (const ListedStage& one : read) {
          plan.first.push_back(one.first_layer);
          plan.replicas.push_back(one.replicas);
          plan.devices.push_back(one.devices);
        }
      },
      filled_list(stage, "one stage or more"));
}

/// Parts of a step; `host` only of a plan that was explained.
struct ListedParts {
  StepParts parts;
  std::optional<Seconds> host;
};

Field<ListedPlan> parts() {
  const auto part = [](const char* key, Seconds StepParts::* place, const char* help) {
    return required(key, path(&ListedParts::parts, place), not_negative(), help);
  };
  const auto notation = object<ListedParts>({
      part("compute_s", &StepParts::compute, ""),
      optional("host_s", &ListedParts::host, not_negative(),
               "what host time per action, and ranks that share a host, add to computations and updates; with "
               "--explain, else in compute_s and update_s"),
      part("update_s", &StepParts::update, ""),
      part("reduce_s", &StepParts::reduce, "gradient sums that no backward hides"),
      part("exposed_transfer_s", &StepParts::exposed_transfer, "idle while a needed message was on the link"),
      part("bubble_s", &StepParts::bubble, "idle otherwise"),
  });
  return derived<ListedPlan, ListedParts>(
             "parts",
             [](const ListedPlan& plan) {
               return ListedParts{*plan.parts, plan.explained ? std::optional(plan.parts->host) : std::nullopt};
             },
             [](const Cursor&, ListedPlan& plan, ListedParts read) {
               plan.explained = read.host.has_value();
               read.parts.host = read.host.value_or(Seconds(0));
               plan.parts = read.parts;
             },
             notation,
             "of the step, mean over the plan's devices; they add up to step_s. Absent in a document of version 1 "
             "without --explain")
      .only_if([](const ListedPlan& plan) { return plan.parts.has_value(); });
}

FieldList<ListedPlan> listed_plan_fields() {
  using L = ListedPlan;
  return {
      required("origin", &L::origin, text(), "the strategy that found it"),
      optional("file", &L::file, text(), "where the plan was written; absent: nowhere"),
      required("step_s", &L::step, not_negative(), "predicted"),
      optional("samples_per_s", &L::samples_per_s, not_negative(), "absent if the graph does not give its microbatch"),
      required("devices", &L::device_count, kCount, "in stages, each once"),
      required("memory_bytes", &L::memory, bytes(), "peak of the device that needs the most"),
      required("device_seconds", &L::device_time, not_negative(), "devices times step_s"),
      optional("price", &L::price, not_negative(), "of a step, from price_per_device_hour"),
      required("chunks", &L::chunks, kCount, "stages per device"),
      required("recomputed_stages", &L::recomputed, whole(), "stages that recompute their activations"),
      stages(),
      parts(),
  };
}

/// A plan with its place in the list, from 1.
struct NumberedPlan {
  int rank = 1;
  ListedPlan plan;
};

Field<PlanList> plans() {
  const auto ranked = object(fields<NumberedPlan>(
      {{required("rank", &NumberedPlan::rank, kCount, "place in the list; readers go by the order")},
       embedded(&NumberedPlan::plan, listed_plan_fields())}));
  return derived<PlanList, std::vector<NumberedPlan>>(
      "plans",
      [](const PlanList& of) {
        std::vector<NumberedPlan> out;
        for (const ListedPlan& plan : of.plans) out.push_back({to_int(out.size()) + 1, plan});
        return out;
      },
      [](const Cursor&, PlanList& of, std::vector<NumberedPlan> read) {
        for (NumberedPlan& one : read) of.plans.push_back(std::move(one.plan));
      },
      filled_list(ranked, "one plan or more"), "best first");
}

Notation<Relaxation> relaxation() {
  return object<Relaxation>({
      required("change", &Relaxation::change, text(), "such as: without --stages 2"),
      optional("step_s", &Relaxation::step, not_negative(), "predicted step of the best plan; absent: there is none"),
      required("better", &Relaxation::better, boolean(),
               "whether that plan is better by the objective: the constraint binds"),
  });
}

Notation<ListedSetting> setting() {
  using L = ListedSetting;
  const auto has_plan = [](const L& of) { return of.step.has_value(); };
  return object<L>({
      optional("microbatch_samples", &L::microbatch_samples, kCount,
               "absent if the graph does not give its microbatch"),
      optional("times", &L::times, text(), "where the times of that microbatch size come from; absent: from the graph"),
      required("microbatches", &L::microbatches, kCount, "of a step"),
      required("schedule", &L::schedule, text()),
      required("recompute", &L::recompute, boolean()),
      optional("recompute_every", &L::recompute_every, whole(), "layers that are recomputed together; 0: whole stages")
          .only_if([](const L& of) { return of.recompute; }),
      optional("gradient_bucket_bytes", &L::gradient_bucket_bytes, integer(1, Cursor::kMostBytes),
               "absent: one bucket per stage"),
      optional("sharding", &L::sharding, words("sharding", StateSharding::Parameters),
               "what of the training state replicas divide among them; absent: none")
          .only_if([](const L& of) { return of.sharding != StateSharding::None; }),
      required("outcome", &L::outcome, words("outcome", {"best", "not better", "does not fit", "no plan", "open"}),
               "open: a better plan may exist, but time was up; does not fit: no candidate does, and no plan is better "
               "than the best"),
      optional("step_s", &L::step, not_negative(), "predicted, of the best plan that was found; absent: none was"),
      optional("run_step_s", &L::run_step, not_negative(),
               "the same in a run, whose steps overlap; absent: step_s. Since version 5"),
      optional("replicas", &L::replicas, list<int>(kCount), "of that plan's stages").only_if(has_plan),
      optional("chunks", &L::chunks, kCount, "of that plan: stages per device").only_if(has_plan),
      optional("memory_bytes", &L::memory, bytes(),
               "peak of the device of that plan that needs the most; without a plan what the smallest candidate needs"),
      optional("lower_bound_s", &L::lower_bound, not_negative(),
               "no plan with these settings has a shorter predicted step; absent: unknown"),
  });
}

const Document<PlanList>& plan_list_document() {
  using P = PlanList;
  using SkipReason = std::pair<std::string, int>;
  static const Document<P> document(
      {.name = "plans",
       .version = 5,
       .title = "Plans",
       .help = "The plans that stagecraft plan --top, --front or --settings lists with --json, which stagecraft report "
               "draws.",
       .changes = "Version 2 added memory_limit_bytes, and parts of all plans; version 3 settings, version 4 proven, "
                  "version 5 run_step_s."},
      {
          required("model", &P::model, text(), "the graph's name"),
          required(
              "list", &P::list, words("list", {"top", "front", "settings"}),
              "the best plans; those that no other plan dominates in step, devices and memory; or the best plan of "
              "all settings"),
          required("objective", &P::objective, words("objective", {"time", "cost", "memory"})),
          optional("min_samples_per_s", &P::min_samples_per_s, positive(), "--min-throughput; absent: not asked"),
          optional("price_per_device_hour", &P::price_per_device_hour, positive(), "--price; absent: not given"),
          required("schedule", &P::schedule, text(), "of the best plan"),
          required("microbatches", &P::microbatches, kCount, "of a step of the best plan"),
          optional("memory_limit_bytes", &P::memory_limit, bytes(),
                   "that a plan may use of a device; absent: unlimited. Since version 2"),
          optional("lower_bound_s", &P::lower_bound, not_negative(),
                   "no plan of the search space has a shorter predicted step; absent: unknown"),
          optional("proven", &P::proven, whole(),
                   "no plan of the search space that is not in the list has a shorter predicted step than any of the "
                   "first so many plans; absent: unknown. Since version 4"),
          required("considered", &P::considered, whole(),
                   "distinct plans that fit in memory; with list settings, settings with such a plan"),
          plans(),
          optional("relaxations", &P::relaxations, list(relaxation()),
                   "with --explain: the request without one of its constraints, planned to see what the constraint "
                   "costs"),
          optional("settings", &P::settings, list(setting()),
                   "with list settings: every setting that was searched, best first"),
          required("skipped", &P::skipped,
                   list(object<SkipReason>({required("reason", &SkipReason::first, text()),
                                            required("count", &SkipReason::second, kCount)})),
                   "candidates that the schedule, the number of microbatches or the constraints rule out; microbatch "
                   "sizes that are not tried"),
      });
  return document;
}

}  // namespace

PlanList parse_plan_list(const std::string& text, const std::string& file) {
  return plan_list_document().parse(text, file);
}
std::string plan_list_json(const PlanList& list) { return plan_list_document().text(list); }
DocumentSchema plan_list_schema() { return plan_list_document().schema(); }

}  // namespace stagecraft::format
