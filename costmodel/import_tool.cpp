#include <functional>
#include <map>

#include "costmodel/errors.h"
#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/format/pipedream.h"
#include "costmodel/tool.h"

namespace {

using stagecraft::Graph;

const std::map<std::string, std::function<Graph(const std::string& text, const std::string& file)>> kFormats = {
    {"pipedream", stagecraft::parse_pipedream},
};

}  // namespace

int main(int argc, char** argv) {
  std::string format;
  std::string input;
  std::string output = "-";
  return stagecraft::run_tool(
      {"import", "Turns another planner's profile into a graph. Formats: pipedream (PipeDream's graph.txt).",
       "stagecraft import pipedream graph.txt -o graph.json"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", format, "what FILE is written in")->required();
        app.add_option("FILE", input, "the profile; - is standard input")->required();
        app.add_option("-o,--output", output, "where the graph goes; - is standard output")->capture_default_str();
      },
      [&] {
        const auto it = kFormats.find(format);
        if (it == kFormats.end()) {
          std::vector<std::string> known;
          for (const auto& entry : kFormats) known.push_back(entry.first);
          throw std::invalid_argument(stagecraft::unknown_name("format", format, known));
        }
        Graph graph = it->second(stagecraft::read_text(input), input);
        graph.provenance.tool = std::string("stagecraft-import ") + stagecraft::version();
        stagecraft::write_text(output, stagecraft::graph_json(graph));
        return 0;
      });
}
