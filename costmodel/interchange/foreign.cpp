#include "costmodel/interchange/foreign.h"

#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/interchange/nccl_tests.h"
#include "costmodel/interchange/nccl_topology.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/interchange/problems/piper.h"

namespace stagecraft::interchange {
namespace {

const SourceFile& only(const std::vector<SourceFile>& files) {
  if (files.size() != 1) throw std::invalid_argument("found " + std::to_string(files.size()) + " files, expected one");
  return files.front();
}

/// Adapts a reader of one text to a reader of files.
template <class Parse>
auto one_file(Parse parse) {
  return [parse](const std::vector<SourceFile>& files) -> std::variant<Graph, Topology> {
    return parse(only(files).text, only(files).name);
  };
}

/// A format whose published files may have wrong units: its reader, and the graph of what it reads.
template <class Parse, class Convert>
ForeignFormat with_units(const std::string& name, const std::string& what, Parse parse, Convert convert) {
  const auto read = [parse, convert](const std::vector<SourceFile>& files, Units units) {
    const SourceFile& file = only(files);
    const auto input = parse(file.text, file.name);
    try {
      Graph graph = convert(input, units);
      validate(graph);
      return graph;
    } catch (const std::invalid_argument& e) { throw FormatError(file.name + ": " + e.what()); }
  };
  return {name, what, [read](const std::vector<SourceFile>& files) { return read(files, Units::Published); }, {}, read};
}

std::variant<Graph, Topology> read_nccl_tests(const std::vector<SourceFile>& files) {
  std::vector<NcclTest> tests;
  for (const SourceFile& file : files) {
    for (NcclTest& test : parse_nccl_tests(file.text, file.name)) tests.push_back(std::move(test));
  }
  return measured_topology(tests);
}

}  // namespace

const std::vector<ForeignFormat>& foreign_formats() {
  static const std::vector<ForeignFormat> table{
      with_units("dnn-partitioning", "an input of dnn-partitioning: a graph", parse_dnn_partitioning,
                 dnn_partitioning_graph),
      {"nccl-tests", "text or -J files of nccl-tests, several at once: a measured topology", read_nccl_tests, {}},
      {"nccl-topology",
       "NCCL_TOPO_DUMP_FILE of NCCL or RCCL, or nvidia-smi topo -m: a declared topology",
       one_file(parse_nccl_topology),
       {}},
      {"pipedream", "PipeDream's graph.txt: a graph", one_file(parse_pipedream), pipedream_text},
      with_units("piper", "an input of Piper: a graph", parse_piper, piper_graph),
  };
  return table;
}

const ForeignFormat& find_format(const std::vector<ForeignFormat>& formats, const std::string& name) {
  std::vector<std::string> known;
  for (const ForeignFormat& format : formats) {
    if (format.name == name) return format;
    known.push_back(format.name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("format", name, known));
}

std::string format_list(const std::vector<ForeignFormat>& formats) {
  std::string out;
  for (const ForeignFormat& format : formats) {
    out += (out.empty() ? "" : ", ") + format.name + " (" + format.what + ")";
  }
  return out;
}

}  // namespace stagecraft::interchange
