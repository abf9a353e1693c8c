#include <algorithm>
#include <functional>
#include <map>

#include "costmodel/errors.h"
#include "costmodel/format/actions_csv.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/pipedream.h"
#include "costmodel/tool.h"

namespace {

using stagecraft::Action;
using stagecraft::ActionKind;

std::string actions_text(const std::string& input, bool transfers) {
  const stagecraft::Plan plan = stagecraft::read_plan(input);
  const stagecraft::ScheduleEntry schedule = schedule_of(plan);
  if (schedule.weights != stagecraft::Weights::Flushed) {
    throw std::invalid_argument(input + ": schedule \"" + plan.schedule +
                                "\" updates in the midst of its lists, for which the text form has no word");
  }
  // torch's own simulator holds a rank at a receive, so each stands right before what needs it.
  auto lists = action_lists(plan, 1);
  for (auto& list : lists) {
    std::erase_if(list, [&](const Action& action) {
      const bool computes = action.kind == ActionKind::Forward || action.kind == ActionKind::Backward ||
                            action.kind == ActionKind::WeightGradient;
      return action.kind == ActionKind::Update || (!transfers && !computes);
    });
  }
  try {
    return stagecraft::actions_csv(lists);
  } catch (const std::invalid_argument& e) { throw std::invalid_argument(input + ": " + e.what()); }
}

const std::map<std::string, std::function<std::string(const std::string& input, bool transfers)>> kFormats = {
    {"actions", actions_text},
    {"pipedream", [](const std::string& input, bool) { return pipedream_text(stagecraft::read_graph(input)); }},
};

}  // namespace

int main(int argc, char** argv) {
  std::string format;
  std::string input;
  std::string output = "-";
  bool transfers = false;
  return stagecraft::run_tool(
      {"export",
       "Turns a document into another program's. Formats: pipedream (a graph as PipeDream's graph.txt), actions (a "
       "plan's lists as the CSV of torch.distributed.pipelining).",
       "stagecraft export pipedream graph.json -o graph.txt\n  stagecraft export actions plan.json -o schedule.csv"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", format, "what to write")->required();
        app.add_option("FILE", input, "the graph or plan; - is standard input")->required();
        app.add_option("-o,--output", output, "where the text goes; - is standard output")->capture_default_str();
        app.add_flag("--transfers", transfers, "of actions: sends, receives and reduces too, not computation alone");
        app.callback([&] {
          if (transfers && format != "actions") throw CLI::ValidationError("--transfers", "only actions have them");
        });
      },
      [&] {
        const auto it = kFormats.find(format);
        if (it == kFormats.end()) {
          std::vector<std::string> known;
          for (const auto& entry : kFormats) known.push_back(entry.first);
          throw std::invalid_argument(stagecraft::unknown_name("format", format, known));
        }
        stagecraft::write_text(output, it->second(input, transfers));
        return 0;
      });
}
