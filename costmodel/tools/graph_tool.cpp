#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/pictures.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/project/process.h"

namespace {

/// A temporary folder with the lifetime of this object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    const std::filesystem::path place = std::filesystem::temp_directory_path(error);
    if (error) throw stagecraft::DeviceError("no folder for temporary files: " + error.message() + "; see TMPDIR");
    std::string name = (place / "stagecraft_graph_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw stagecraft::DeviceError(name + ": " + std::strerror(errno));
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Runs Graphviz's dot.
void run_dot(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "dot");
  const int status =
      stagecraft::project::run_program(arguments, "cannot run dot; install the package graphviz, or use --dot");
  if (status != 0)
    throw stagecraft::DeviceError(stagecraft::ErrorKind::MissingProgram,
                                  "dot ended with status " + std::to_string(status));
}

/// The layers of a model, from stagecraft-profile, which is next to this program.
stagecraft::Graph graph_of_model(const std::string& model, const std::vector<std::string>& set) {
  const ScratchFolder folder;
  const std::string output = folder.file("graph.json");
  const std::string profile =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "stagecraft-profile").string();
  std::vector<std::string> words{profile, model, "--structure", "--without-work", "-o", output};
  for (const std::string& setting : set) {
    words.emplace_back("--set");
    words.push_back(setting);
  }
  const int status = stagecraft::project::run_program(
      words, "\"" + model + "\" is not a graph file, and " + profile + ", which draws models, is missing");
  if (status == 2) throw CLI::ValidationError("GRAPH", "\"" + model + "\" cannot be drawn, see above");
  if (status != 0) throw std::invalid_argument("\"" + model + "\" could not be drawn, see above");
  stagecraft::Graph graph = stagecraft::format::read_graph(output);
  graph.name = model;
  return graph;
}

/// A picture with positions, as dot writes it, without those of the arrows between columns.
std::string without_long_arrows(const std::string& placed) {
  std::string out;
  for (std::size_t at = 0; at < placed.size();) {
    const std::size_t end = std::min(placed.find("];\n", at), placed.size() - 3) + 3;
    std::string statement = placed.substr(at, end - at);
    at = end;
    const std::size_t arrow = statement.find(" -> n");
    const std::size_t begin = arrow == statement.npos ? arrow : statement.rfind("\tn", arrow);
    const bool is_arrow = begin != statement.npos && statement.find_first_not_of("0123456789", begin + 2) == arrow &&
                          statement.find("\n\t\tconstraint=false", arrow) != statement.npos;
    for (const char* key : {"\n\t\tpos=\"", "\n\t\tlp=\""}) {
      const std::size_t value = is_arrow ? statement.find(key, arrow) : statement.npos;
      if (value == statement.npos) continue;
      std::size_t close = statement.find('"', value + std::strlen(key)) + 1;
      if (close < statement.size() && statement[close] == ',') ++close;
      statement.erase(value, close - value);
    }
    out += statement;
  }
  return out;
}

/// Graphviz's drawing of `dot`, a picture of `layers` layers.
std::string drawn(const std::string& dot, std::size_t layers) {
  const ScratchFolder folder;
  const std::string input = folder.file("graph.dot");
  const std::string placed = folder.file("placed.dot");
  const std::string output = folder.file("graph.svg");
  stagecraft::format::write_text(input, dot);
  // dot routes arrows that go up around the whole picture, neato between the columns, but in a time cubic in the
  // layers: 5 s for 176.
  constexpr std::size_t kMostRouted = 250;
  if (layers > kMostRouted) {
    run_dot({"-Tsvg", "-o" + output, input});
  } else {
    run_dot({"-Tdot", "-o" + placed, input});
    stagecraft::format::write_text(placed, without_long_arrows(stagecraft::format::read_text(placed)));
    run_dot({"-Kneato", "-n2", "-Tsvg", "-o" + output, placed});
  }
  return stagecraft::format::read_text(output);
}

/// A graph.json or, if the text is not a JSON object, a PipeDream profile.
stagecraft::Graph read_any_graph(const std::string& path) {
  const std::string text = stagecraft::format::read_text(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = path.ends_with(".json") || (first != text.npos && text[first] == '{');
  return json ? stagecraft::format::parse_graph(text, path) : stagecraft::interchange::parse_pipedream(text, path);
}

}  // namespace

int main(int argc, char** argv) {
  std::string input;
  std::string plan;
  std::string output = "-";
  std::vector<std::string> set;
  bool dot = false;
  bool svg = false;
  bool force = false;
  return stagecraft::run_tool(
      {"graph", "Draws the layers of a graph, coloured by the stages of a plan.",
       "stagecraft graph graph.json --plan plan.json -o graph.svg\n"
       "  stagecraft graph graph.txt --dot | dot -Tpng -o graph.png\n"
       "  stagecraft graph model.pt2 --set layers=leaf -o graph.svg"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option(
               "GRAPH", input,
               "graph.json, PipeDream's graph.txt, or a model as in stagecraft profile (drawn without times); - is "
               "standard input")
            ->required();
        app.add_option("--set", set, "key=value, an option of the model; may be repeated")
            ->type_name("NAME=VALUE")
            ->allow_extra_args(false);
        app.add_option("--plan", plan, "plan.json; draws its stages as frames")->type_name("FILE");
        CLI::Option* const as_dot = app.add_flag("--dot", dot,
                                                 "write Graphviz DOT (default unless the output ends in "
                                                 ".svg)");
        app.add_flag("--svg", svg, "write SVG, drawn by dot from the package graphviz")->excludes(as_dot);
        app.add_option("-o,--output", output, "output file; - is standard output")
            ->type_name("FILE")
            ->capture_default_str();
        stagecraft::add_force_option(app, force);
      },
      [&] {
        const bool draws = svg || (!dot && output.ends_with(".svg"));
        stagecraft::format::check_outputs({input, plan}, {{output, draws ? "SVG picture" : "Graphviz picture"}}, force);
        const bool is_model = input != "-" && (input.ends_with(".pt2") || input.ends_with(".pt") ||
                                               (!std::filesystem::exists(input) && input.find('.') == input.npos));
        const stagecraft::Graph graph = is_model ? graph_of_model(input, set) : read_any_graph(input);
        std::optional<stagecraft::Plan> stages;
        if (!plan.empty()) stages = stagecraft::format::read_plan(plan);
        std::string text;
        try {
          text = stagecraft::interchange::graph_dot(graph, stages ? &*stages : nullptr);
        } catch (const std::invalid_argument& e) {
          throw stagecraft::InputError(stagecraft::kind_of(e), (plan.empty() ? input : plan) + ": " + e.what());
        }
        stagecraft::format::write_text(output, draws ? drawn(text, graph.layers.size()) : text);
        return 0;
      });
}
