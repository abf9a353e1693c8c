#include <functional>
#include <map>

#include "costmodel/errors.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/pipedream.h"
#include "costmodel/tool.h"

namespace {

using stagecraft::Graph;

const std::map<std::string, std::function<std::string(const Graph&)>> kFormats = {
    {"pipedream", stagecraft::pipedream_text},
};

}  // namespace

int main(int argc, char** argv) {
  std::string format;
  std::string input;
  std::string output = "-";
  return stagecraft::run_tool(
      {"export", "Turns a graph into another planner's profile. Formats: pipedream (PipeDream's graph.txt).",
       "stagecraft export pipedream graph.json -o graph.txt"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", format, "what to write")->required();
        app.add_option("FILE", input, "the graph; - is standard input")->required();
        app.add_option("-o,--output", output, "where the profile goes; - is standard output")->capture_default_str();
      },
      [&] {
        const auto it = kFormats.find(format);
        if (it == kFormats.end()) {
          std::vector<std::string> known;
          for (const auto& entry : kFormats) known.push_back(entry.first);
          throw std::invalid_argument(stagecraft::unknown_name("format", format, known));
        }
        const Graph graph = stagecraft::read_graph(input);
        stagecraft::write_text(output, it->second(graph));
        return 0;
      });
}
