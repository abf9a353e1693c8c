#include "costmodel/format/files.h"
#include "costmodel/format/foreign.h"
#include "costmodel/format/json.h"
#include "costmodel/tool.h"

int main(int argc, char** argv) {
  std::string format;
  std::string input;
  std::string output = "-";
  std::vector<stagecraft::ForeignFormat> formats = stagecraft::foreign_formats();
  std::erase_if(formats, [](const stagecraft::ForeignFormat& f) { return !f.write; });
  return stagecraft::run_tool(
      {"export", "Turns a graph into another planner's profile. Formats: " + stagecraft::format_list(formats) + ".",
       "stagecraft export pipedream graph.json -o graph.txt"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FORMAT", format, "what to write")->required();
        app.add_option("FILE", input, "the graph; - is standard input")->required();
        app.add_option("-o,--output", output, "where the profile goes; - is standard output")->capture_default_str();
      },
      [&] {
        const stagecraft::ForeignFormat& foreign = stagecraft::find_format(formats, format);
        const stagecraft::Graph graph = stagecraft::read_graph(input);
        stagecraft::write_text(output, foreign.write(graph));
        return 0;
      });
}
