#include "costmodel/interchange/pipedream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/escaping.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::interchange {
namespace {

constexpr std::string_view kSeparator = " -- ";
constexpr const char* kForward = "forward_compute_time";
constexpr const char* kBackward = "backward_compute_time";
constexpr const char* kActivation = "activation_size";
constexpr const char* kParameter = "parameter_size";
constexpr const char* kDecimalsNote = "pipedream.activation_decimals";
constexpr const char* kNewlinesNote = "pipedream.final_newlines";
constexpr const char* kLineEndsNote = "pipedream.line_ends";
constexpr int kUsualDecimals = 3;
constexpr int kMostDecimals = 30;
constexpr double kMostMilliseconds = 1e15;

std::string note_key(const char* field, const std::string& id) { return std::string("pipedream.") + field + "." + id; }

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

std::string in_quotes(std::string_view text) {
  return text.size() <= 80 ? fmt::format("\"{}\"", text) : fmt::format("\"{}...\"", text.substr(0, 77));
}

/// Milliseconds as seconds; absent if the text is not such a number.
std::optional<Seconds> milliseconds(std::string_view text) {
  const std::optional<double> v = number_in<double>(text);
  if (!v || *v < 0 || *v > kMostMilliseconds) return {};
  // Shifts the decimal point rather than dividing, so that 6.949 ms becomes exactly 0.006949 s and not an adjacent
  // double.
  const double seconds = std::abs(*v) / 1000;
  const bool plain = text.find_first_of("eE") == text.npos && *v > 0;
  return Seconds(plain ? number_in<double>(std::string(text) + "e-3").value_or(seconds) : seconds);
}

std::string milliseconds_text(Seconds time) { return fmt::format("{:.3f}", time.value * 1000); }

std::optional<Bytes> whole_bytes(std::string_view text) {
  const std::optional<long double> v = number_in<long double>(text);
  if (!v || *v < 0 || *v > 0x1p60L || *v != std::floor(*v)) return {};
  return Bytes(static_cast<std::int64_t>(*v));
}

std::string bytes_text(Bytes bytes, int decimals) {
  std::string out = std::to_string(bytes.value);
  if (decimals > 0) out += "." + std::string(to_index(decimals), '0');
  return out;
}

/// The elements of "[a; b; c]", or the one value.
std::vector<std::string_view> list_elements(std::string_view text) {
  if (!text.starts_with("[") || !text.ends_with("]")) return {text};
  std::vector<std::string_view> parts = split(text.substr(1, text.size() - 2), ";");
  for (std::string_view& part : parts) {
    if (part.starts_with(" ")) part.remove_prefix(1);
  }
  return parts;
}

std::optional<std::vector<Bytes>> byte_list(std::string_view text) {
  std::vector<Bytes> out;
  for (const std::string_view element : list_elements(text)) {
    const std::optional<Bytes> bytes = whole_bytes(element);
    if (!bytes) return {};
    out.push_back(*bytes);
  }
  return out;
}

std::vector<Bytes> output_bytes(const Layer& layer) {
  std::vector<Bytes> out;
  for (const Output& output : layer.outputs) out.push_back(output.bytes);
  return out.empty() ? std::vector{Bytes(0)} : out;
}

std::string byte_list_text(const std::vector<Bytes>& list, int decimals) {
  if (list.size() == 1) return bytes_text(list.front(), decimals);
  std::string out = "[";
  for (std::size_t i = 0; i < list.size(); ++i) out += (i > 0 ? "; " : "") + bytes_text(list[i], decimals);
  return out + "]";
}

std::string stem(const std::string& file) {
  const std::string base = file.substr(file.rfind('/') + 1);
  return base == "-" ? "" : base.substr(0, base.rfind('.'));
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& file) : file_(file) {
    graph_.name = stem(file);
    lines_ = split_lines(text);
  }

  Graph read() {
    for (; number_ <= lines_.size(); ++number_) {
      const std::string_view line = lines_[number_ - 1];
      if (!format::is_utf8(line)) fail("is not UTF-8");
      if (number_ == 1 && line.starts_with("\xEF\xBB\xBF")) fail("begins with a byte order mark, expected none");
      if (line.empty()) fail("is empty, expected a layer or an edge");
      if (line.starts_with("\t")) {
        read_edge(line.substr(1));
      } else {
        read_layer(line);
      }
    }
    refuse_cycle();
    keep_forms();
    try {
      validate(graph_);
    } catch (const std::invalid_argument& e) { throw FormatError(file_ + ": " + e.what()); }
    return std::move(graph_);
  }

 private:
  struct Texts {
    std::string forward, backward, activation, parameter;
  };

  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(fmt::format("{}: line {}: {}", file_, number_, message));
  }

  /// The lines without their ends; notes how they end.
  std::vector<std::string_view> split_lines(std::string_view text) {
    const bool crlf = text.substr(0, text.find('\n')).ends_with('\r');
    const std::string_view end = crlf ? "\r\n" : "\n";
    std::size_t ends = 0;
    for (; text.ends_with(end); ++ends) text.remove_suffix(end.size());
    if (text.empty()) throw FormatError(file_ + ": is empty, expected at least one layer");
    if (crlf) graph_.provenance.notes[kLineEndsNote] = "crlf";
    if (ends != 1) graph_.provenance.notes[kNewlinesNote] = std::to_string(ends);
    std::vector<std::string_view> lines = split(text, end);
    for (; number_ <= lines.size(); ++number_) {
      const std::string_view line = lines[number_ - 1];
      if (line.find_first_of("\r\n") != line.npos)
        fail("has a different line ending from line 1, expected the same on every line");
    }
    number_ = 1;
    return lines;
  }

  void read_layer(std::string_view line) {
    if (!graph_.edges.empty()) fail("found a layer after an edge, expected all layers first: " + in_quotes(line));
    const std::vector<std::string_view> parts = split(line, kSeparator);
    if (parts.size() != 3 && parts.size() != 4) {
      fail(fmt::format(
          "found {}, expected \"ID -- DESC -- META\" or, with a stage, \"ID -- DESC -- META -- stage_id=N\": {}",
          count_text(parts.size(), "part"), in_quotes(line)));
    }
    Layer layer;
    layer.id = parts[0];
    layer.name = parts[1];
    layer.kind = layer.name.starts_with(kInputKind) ? kInputKind : layer.name.substr(0, layer.name.find('('));
    if (layer.id.empty()) fail("the layer's id is empty");
    const auto [it, fresh] = index_.emplace(layer.id, to_int(graph_.layers.size()));
    if (!fresh) fail(fmt::format("id \"{}\" is already in line {}", layer.id, it->second + 1));
    read_meta(parts[2], layer);
    if (parts.size() == 4) layer.stage = stage_of(parts[3]);
    graph_.layers.push_back(std::move(layer));
  }

  void read_meta(std::string_view meta, Layer& layer) {
    const std::vector<std::string_view> fields = split(meta, ", ");
    if (fields.size() != 4) fail(fmt::format("found {} fields, expected 4: {}", fields.size(), in_quotes(meta)));
    Texts& texts = texts_.emplace_back();
    texts.forward = field(fields[0], kForward);
    texts.backward = field(fields[1], kBackward);
    texts.activation = field(fields[2], kActivation);
    texts.parameter = field(fields[3], kParameter);
    layer.forward.median = time(texts.forward, kForward);
    layer.backward.median = time(texts.backward, kBackward);
    for (const std::string_view element : list_elements(texts.activation)) {
      layer.outputs.push_back({bytes(element, kActivation), {}, "", true});
    }
    layer.parameter_bytes = bytes(texts.parameter, kParameter);
  }

  std::string field(std::string_view text, std::string_view key) const {
    if (!text.starts_with(key) || text.substr(key.size(), 1) != "=") {
      fail(fmt::format("found {}, expected \"{}=...\"", in_quotes(text), key));
    }
    return std::string(text.substr(key.size() + 1));
  }

  Seconds time(std::string_view text, const char* key) const {
    const std::optional<Seconds> value = milliseconds(text);
    if (!value) fail(fmt::format("{}: found {}, expected milliseconds from 0 to 1e15", key, in_quotes(text)));
    return *value;
  }

  Bytes bytes(std::string_view text, const char* key) const {
    const std::optional<Bytes> value = whole_bytes(text);
    if (!value)
      fail(fmt::format("{}: found {}, expected an integer number of bytes from 0 to 2^60", key, in_quotes(text)));
    return *value;
  }

  int stage_of(std::string_view text) const {
    constexpr int kMostStage = 1 << 20;
    const std::string number = field(text, "stage_id");
    const std::optional<int> value = number_in<int>(number);
    if (!value || *value < 0 || *value > kMostStage || std::to_string(*value) != number) {
      fail(fmt::format("stage_id: found {}, expected an integer from 0 to {}", in_quotes(number), kMostStage));
    }
    return *value;
  }

  void read_edge(std::string_view line) {
    const std::vector<std::string_view> parts = split(line, kSeparator);
    if (parts.size() != 2) fail("found an edge " + in_quotes(line) + ", expected \"SOURCE -- DESTINATION\"");
    const auto layer = [&](std::string_view id) {
      const auto it = index_.find(std::string(id));
      if (it == index_.end()) fail(fmt::format("layer {} of the edge is not declared above", in_quotes(id)));
      return it->second;
    };
    const Edge edge{layer(parts[0]), layer(parts[1]), {}};
    if (edge.source == edge.destination) fail(fmt::format("layer {} has an edge to itself", in_quotes(parts[0])));
    if (is_input(graph_.layers[to_index(edge.destination)])) {
      fail(fmt::format("layer {} is an input, expected no edge into it", in_quotes(parts[1])));
    }
    if (!edges_.insert({edge.source, edge.destination}).second) fail("edge " + in_quotes(line) + " is already above");
    graph_.edges.push_back(edge);
  }

  /// Reports the first edge that closes a cycle with those above it.
  void refuse_cycle() {
    const auto acyclic = [&](std::size_t edges) {
      Graph part;
      part.layers.resize(graph_.layers.size());
      part.edges.assign(graph_.edges.begin(), graph_.edges.begin() + static_cast<std::ptrdiff_t>(edges));
      try {
        (void)topological_order(part);
        return true;
      } catch (const std::invalid_argument&) { return false; }
    };
    if (acyclic(graph_.edges.size())) return;
    std::size_t good = 0;
    std::size_t bad = graph_.edges.size();
    while (bad - good > 1) {
      const std::size_t middle = (good + bad) / 2;
      (acyclic(middle) ? good : bad) = middle;
    }
    number_ = graph_.layers.size() + bad;
    fail("edge " + in_quotes(lines_[number_ - 1].substr(1)) + " closes a cycle; a graph must be acyclic");
  }

  /// Notes the decimals of most activation sizes, and each text that pipedream_text would write otherwise.
  void keep_forms() {
    std::map<int, int> uses;
    for (const Texts& texts : texts_) {
      for (const std::string_view element : list_elements(texts.activation)) {
        const std::size_t point = element.find('.');
        const std::size_t decimals = point == element.npos ? 0 : element.size() - point - 1;
        if (decimals <= kMostDecimals) ++uses[to_int(decimals)];
      }
    }
    int usual = kUsualDecimals;
    for (const auto& [decimals, count] : uses) {
      if (count > uses[usual]) usual = decimals;
    }
    auto& notes = graph_.provenance.notes;
    if (usual != kUsualDecimals) notes[kDecimalsNote] = std::to_string(usual);
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const Layer& layer = graph_.layers[i];
      const auto keep = [&](const char* key, const std::string& found, const std::string& written) {
        if (found != written) notes[note_key(key, layer.id)] = found;
      };
      keep(kForward, texts_[i].forward, milliseconds_text(layer.forward.median));
      keep(kBackward, texts_[i].backward, milliseconds_text(layer.backward.median));
      keep(kActivation, texts_[i].activation, byte_list_text(output_bytes(layer), usual));
      keep(kParameter, texts_[i].parameter, bytes_text(layer.parameter_bytes, kUsualDecimals));
    }
  }

  std::string file_;
  std::vector<std::string_view> lines_;
  std::size_t number_ = 1;
  Graph graph_;
  std::vector<Texts> texts_;  ///< one per layer
  std::unordered_map<std::string, int> index_;
  std::set<std::pair<int, int>> edges_;
};

/// The note's number in [0, most], or `usual` if there is none.
int noted_number(const Graph& graph, const char* key, int most, int usual) {
  const auto it = graph.provenance.notes.find(key);
  if (it == graph.provenance.notes.end()) return usual;
  const int value = number_in<int>(it->second).value_or(-1);
  return value < 0 || value > most ? usual : value;
}

std::string description(const Layer& layer) {
  return layer.name.starts_with(layer.kind) ? layer.name : layer.kind + "(" + layer.name + ")";
}

std::string layer_line(const Graph& graph, const Layer& layer, int decimals) {
  const auto text = [&](const char* key, const std::string& usual, const auto& still_holds) {
    const auto it = graph.provenance.notes.find(note_key(key, layer.id));
    const bool noted = it != graph.provenance.notes.end() && still_holds(it->second);
    return std::string(key) + "=" + (noted ? it->second : usual);
  };
  const auto time = [&](const char* key, Seconds value) {
    return text(key, milliseconds_text(value), [&](const std::string& note) { return milliseconds(note) == value; });
  };
  const std::vector<Bytes> outputs = output_bytes(layer);
  const std::string shown = description(layer);
  if (shown.starts_with(kInputKind) && !is_input(layer)) {
    throw std::invalid_argument(fmt::format(
        "layer \"{}\": the profile would call it {}, and names that begin with \"Input\" are loaded data there",
        layer.id, in_quotes(shown)));
  }
  std::string line = layer.id + std::string(kSeparator) + shown + std::string(kSeparator);
  line += time(kForward, layer.forward.median) + ", " + time(kBackward, layer.backward.median) + ", ";
  line += text(kActivation, byte_list_text(outputs, decimals),
               [&](const std::string& note) { return byte_list(note) == outputs; });
  line += ", " + text(kParameter, bytes_text(layer.parameter_bytes, kUsualDecimals),
                      [&](const std::string& note) { return whole_bytes(note) == layer.parameter_bytes; });
  const std::vector<std::string_view> parts = split(line, kSeparator);
  if (parts.size() != 3 || parts[0] != layer.id || parts[1] != shown || layer.id.starts_with("\t") ||
      line.find_first_of("\r\n") != line.npos) {
    throw std::invalid_argument(
        fmt::format("layer \"{}\", named {}: a PipeDream profile cannot have \" -- \" or a line end in either",
                    layer.id, in_quotes(layer.name)));
  }
  if (layer.stage) line += fmt::format("{}stage_id={}", kSeparator, *layer.stage);
  return line;
}

}  // namespace

Graph parse_pipedream(const std::string& text, const std::string& file) { return Reader(text, file).read(); }

std::string pipedream_text(const Graph& graph) {
  const int decimals = noted_number(graph, kDecimalsNote, kMostDecimals, kUsualDecimals);
  std::vector<std::string> lines;
  for (const Layer& layer : graph.layers) lines.push_back(layer_line(graph, layer, decimals));
  std::set<std::pair<int, int>> written;
  for (const Edge& edge : graph.edges) {
    if (!written.insert({edge.source, edge.destination}).second) continue;
    lines.push_back("\t" + graph.layers[to_index(edge.source)].id + std::string(kSeparator) +
                    graph.layers[to_index(edge.destination)].id);
  }
  const auto line_ends = graph.provenance.notes.find(kLineEndsNote);
  const std::string end = line_ends != graph.provenance.notes.end() && line_ends->second == "crlf" ? "\r\n" : "\n";
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) out += (i > 0 ? end : "") + lines[i];
  for (int i = noted_number(graph, kNewlinesNote, 1 << 20, 1); i > 0; --i) out += end;
  return out;
}

}  // namespace stagecraft::interchange
