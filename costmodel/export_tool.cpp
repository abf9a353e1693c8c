#include <algorithm>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/actions_csv.h"
#include "costmodel/format/files.h"
#include "costmodel/format/foreign.h"
#include "costmodel/format/json.h"
#include "costmodel/tool.h"

namespace {

using stagecraft::Action;
using stagecraft::ActionKind;

constexpr const char* kActions = "actions";

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

/// Formats of other programs that can be written, the lists of a plan among them.
std::vector<stagecraft::ForeignFormat> formats() {
  std::vector<stagecraft::ForeignFormat> out = stagecraft::foreign_formats();
  std::erase_if(out, [](const stagecraft::ForeignFormat& f) { return !f.write; });
  out.insert(out.begin(), {kActions, "a plan's lists as the CSV of torch.distributed.pipelining", {}, {}});
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string format;
  std::string input;
  std::string output = "-";
  bool transfers = false;
  return stagecraft::run_tool(
      {"export", "Turns a document into another program's. Formats: " + stagecraft::format_list(formats()) + ".",
       "stagecraft export pipedream graph.json -o graph.txt\n  stagecraft export actions plan.json -o schedule.csv"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", format, "what to write")->required();
        app.add_option("FILE", input, "the graph or plan; - is standard input")->required();
        app.add_option("-o,--output", output, "where the text goes; - is standard output")->capture_default_str();
        app.add_flag("--transfers", transfers, "of actions: sends, receives and reduces too, not computation alone");
        app.callback([&] {
          if (transfers && format != kActions) throw CLI::ValidationError("--transfers", "only actions have them");
        });
      },
      [&] {
        const std::vector<stagecraft::ForeignFormat> known = formats();
        const stagecraft::ForeignFormat& foreign = stagecraft::find_format(known, format);
        stagecraft::write_text(
            output, format == kActions ? actions_text(input, transfers) : foreign.write(stagecraft::read_graph(input)));
        return 0;
      });
}
