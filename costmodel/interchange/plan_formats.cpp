#include "costmodel/interchange/plan_formats.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/interchange/deepspeed_parts.h"
#include "costmodel/interchange/megatron_layout.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "costmodel/interchange/torch_pipelining.h"

namespace stagecraft::interchange {
namespace {

std::string recomputation(const Plan& plan) {
  const bool some = std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& s) { return s.recompute; });
  return some ? "the plan's recomputation is lost" : "";
}

PlanTexts texts_of(const Plan& plan, std::vector<PlanText> texts, std::vector<std::string> warnings = {}) {
  if (const std::string lost = recomputation(plan); !lost.empty()) warnings.push_back(lost);
  return {std::move(texts), std::move(warnings)};
}

PlanTexts write_actions(const BoundPlan& plan, const PlanTextOptions& options) {
  return texts_of(plan.plan(), {{"csv", "schedule.csv", plan_actions_csv(plan, options.transfers)}});
}

ForeignPlan read_actions(const SourceFile& file, const Graph&) {
  ForeignPlan out;
  out.lists = plan_of_lists(parse_actions_csv(file.text, file.name));
  return out;
}

PlanTexts write_torch(const BoundPlan& plan, const PlanTextOptions&) {
  return texts_of(plan.plan(), {{"script", "pipeline.py", torch_pipelining_script(plan)},
                                {"csv", "schedule.csv", plan_actions_csv(plan)}});
}

PlanTexts write_deepspeed(const BoundPlan& plan, const PlanTextOptions&) {
  const DeepspeedParts parts = deepspeed_parts(plan);
  return texts_of(plan.plan(), {{"python", "planned_pipeline.py", deepspeed_module(parts)},
                                {"json", "parts.json", deepspeed_parts_json(parts)}});
}

ForeignPlan read_deepspeed(const SourceFile& file, const Graph& graph) {
  ForeignPlan out;
  out.partition = deepspeed_partition(parse_deepspeed_parts(file.text, file.name), graph);
  return out;
}

PlanTexts write_megatron(const BoundPlan& plan, const PlanTextOptions&) {
  const std::vector<std::string> stages = megatron_layout(plan);
  std::string letters;
  for (const std::string& stage : stages) letters += stage;
  const auto count = [&](char letter) { return std::to_string(std::count(letters.begin(), letters.end(), letter)); };
  std::string with =
      "use with --pipeline-model-parallel-size " + std::to_string(plan.positions()) + " --num-layers " + count('t');
  if (count('m') != "0") with += " --mtp-num-layers " + count('m');
  return texts_of(plan.plan(), {{"layout", "layout.txt", megatron_layout_text(stages) + "\n"}}, {with});
}

ForeignPlan read_megatron(const SourceFile& file, const Graph& graph) {
  ForeignPlan out;
  out.partition = megatron_partition(parse_megatron_layout(file.text, file.name), graph);
  return out;
}

PlanTexts write_pipedream_conf(const BoundPlan& bound, const PlanTextOptions& options) {
  const Plan& plan = bound.plan();
  const PipedreamConfs confs = pipedream_confs(plan, options.depths);
  PlanTexts out{{{"dp", "dp_conf.json", pipedream_conf_text(confs.data_parallel)},
                 {"mp", "mp_conf.json", pipedream_conf_text(confs.model_parallel)},
                 {"hybrid", "hybrid_conf.json", pipedream_conf_text(confs.hybrid)}},
                pipedream_conf_warnings(plan)};
  if (options.graph) {
    out.texts.push_back({"graph", "gpus=" + std::to_string(confs.data_parallel.ranks.front().size()) + ".txt",
                         pipedream_text(staged_graph(*options.graph, plan))});
  }
  return out;
}

ForeignPlan read_pipedream_conf(const SourceFile& file, const Graph& graph) {
  const PipedreamConf conf = parse_pipedream_conf(file.text, file.name);
  return {pipedream_conf_partition(conf, graph), conf.ranks, conf.depths, {}};
}

/// Calls `read`; its std::invalid_argument then names the file.
auto naming(ForeignPlan (*read)(const SourceFile&, const Graph&)) {
  return [read](const SourceFile& file, const Graph& graph) {
    try {
      return read(file, graph);
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), file.name + ": " + e.what()); }
  };
}

}  // namespace

const std::vector<PlanFormat>& plan_formats() {
  static const std::vector<PlanFormat> table{
      {"actions",
       "action lists as CSV of torch.distributed.pipelining",
       {},
       "csv",
       {"--transfers"},
       write_actions,
       naming(read_actions)},
      {"deepspeed",
       "stage bounds as a PipelineModule (python) and as a list (json)",
       {"python", "json"},
       "json",
       {},
       write_deepspeed,
       naming(read_deepspeed)},
      {"megatron",
       "the stages of a transformer as Megatron-LM's --pipeline-model-parallel-layout",
       {},
       "layout",
       {},
       write_megatron,
       naming(read_megatron)},
      {"pipedream-conf",
       "PipeDream's dp_conf.json, mp_conf.json and hybrid_conf.json; with --graph, also the matching graph with stage "
       "ids",
       {"dp", "mp", "hybrid", "graph"},
       "hybrid",
       {"--graph", "--depths"},
       write_pipedream_conf,
       naming(read_pipedream_conf)},
      {"torch-pipelining",
       "a torchrun program that splits a model and runs the action lists with torch.distributed.pipelining (script); "
       "only the lists (csv)",
       {"script", "csv"},
       "csv",
       {},
       write_torch,
       naming(read_actions)},
  };
  return table;
}

const PlanFormat& plan_format(const std::string& name, const std::vector<std::string>& others) {
  std::vector<std::string> known = others;
  for (const PlanFormat& format : plan_formats()) {
    if (format.name == name) return format;
    known.push_back(format.name);
  }
  std::sort(known.begin(), known.end());
  throw InputError(ErrorKind::UnknownName, unknown_name("format", name, known));
}

}  // namespace stagecraft::interchange
