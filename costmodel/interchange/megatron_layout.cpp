#include "costmodel/interchange/megatron_layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {
namespace {

constexpr std::size_t kMost = 65536;
constexpr const char* kExpressible =
    "a layout expresses one embedding (E), then numbered blocks (t), then the final norm, output layer and loss (L)";

/// Parses the grammar; the text has no trailing line end.
class LayoutReader {
 public:
  LayoutReader(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  std::vector<std::string> stages() {
    std::string flat;
    while (at_ < text_.size()) { append(flat, text_[at_] == '(' ? group() : letter()); }
    std::vector<std::string> out{""};
    for (const char c : flat) {
      if (c == '|')
        out.emplace_back();
      else
        out.back() += c;
    }
    return out;
  }

  [[noreturn]] void fail(std::size_t at, const std::string& message) const {
    throw FormatError(file_ + ": character " + std::to_string(at + 1) + ": " + message);
  }

 private:
  void append(std::string& out, const std::string& piece) const {
    if (out.size() + piece.size() > kMost) fail(at_, "more than " + std::to_string(kMost) + " layers and stages");
    out += piece;
  }
  static std::string times(const std::string& piece, std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count && out.size() <= kMost; ++i) out += piece;
    return out;
  }
  std::string letter() {
    const char c = text_[at_];
    if (std::string("EtmL|,").find(c) == std::string::npos) {
      const bool shown = c > ' ' && c < 127;
      fail(at_, "found " + (shown ? "\"" + std::string(1, c) + "\"" : "a character without a meaning") +
                    ", expected E, t, m, L, |, a comma or parentheses");
    }
    ++at_;
    return c == ',' ? "" : times(std::string(1, c), count());
  }
  std::string group() {
    const std::size_t begin = at_++;
    std::string inner;
    while (at_ < text_.size() && text_[at_] != ')') {
      if (text_[at_] == '(') fail(at_, "found \"(\" within parentheses, which do not nest");
      append(inner, letter());
    }
    if (at_ == text_.size()) fail(begin, "found \"(\" without its \")\"");
    if (inner.empty()) fail(begin, "found nothing in the parentheses");
    ++at_;
    if (at_ == text_.size() || text_[at_] != '*') fail(at_, "missing *COUNT after \")\"");
    return times(inner, count());
  }
  /// The count of an optional "*COUNT".
  std::size_t count() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    const std::size_t begin = ++at_;
    std::size_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && value <= kMost) {
      value = value * 10 + to_index(text_[at_++] - '0');
    }
    if (at_ == begin || value < 1 || value > kMost) {
      fail(begin, "found no repetition from 1 to " + std::to_string(kMost) + " after \"*\"");
    }
    if (at_ < text_.size() && text_[at_] == '*') fail(at_, "found a second repetition");
    return value;
  }

  const std::string& text_;
  const std::string& file_;
  std::size_t at_ = 0;
};

/// The container and number of the innermost block of `container` that contains `id`; absent if none.
struct UnitPlace {
  std::string container;
  std::string number;
};

/// All places of `id`, the outermost first: "h.3.mlp.1" is in h as 3 and in h.3.mlp as 1.
std::vector<UnitPlace> places(const std::string& id) {
  std::vector<UnitPlace> out;
  for (std::size_t begin = 0; begin <= id.size();) {
    const std::size_t end = std::min(id.find('.', begin), id.size());
    const std::string part = id.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (number && begin > 0) out.push_back({id.substr(0, begin - 1), part});
    begin = end + 1;
  }
  return out;
}

bool speaks_of(const std::string& id, const char* words) {
  return std::regex_search(id, std::regex(words, std::regex::ECMAScript | std::regex::icase));
}

bool is_prediction(const std::string& container) { return speaks_of(container, "mtp|nextn"); }

std::optional<std::string> number_under(const std::string& id, const std::string& container) {
  for (const UnitPlace& place : places(id)) {
    if (place.container == container) return place.number;
  }
  return std::nullopt;
}

/// The container with the most layers, among those with at least two blocks; on ties, the outermost.
std::string block_container(const std::vector<std::string>& ids) {
  std::map<std::string, std::pair<int, std::set<std::string>>> found;  // layers, numbers
  for (const std::string& id : ids) {
    for (const UnitPlace& place : places(id)) {
      if (is_prediction(place.container)) continue;
      auto& [layers, numbers] = found[place.container];
      ++layers;
      numbers.insert(place.number);
    }
  }
  std::string best;
  int most = 0;
  for (const auto& [container, value] : found) {  // a container comes before those nested in it
    if (value.second.size() < 2 || value.first <= most) continue;
    most = value.first;
    best = container;
  }
  if (best.empty()) {
    throw std::invalid_argument("no layers are numbered blocks such as \"h.0\" and \"h.1.mlp\", found \"" +
                                ids.front() + "\" .. \"" + ids.back() + "\"; " + kExpressible);
  }
  return best;
}

/// Collects the layers from `begin` that are in `container` into one unit per block.
int append_blocks(std::vector<LayoutUnit>& out, const std::vector<std::string>& ids, int begin,
                  const std::string& container, char letter) {
  int at = begin;
  std::set<std::string> seen;
  while (at < to_int(ids.size())) {
    const auto number = number_under(ids[to_index(at)], container);
    if (!number) break;
    const std::string name = container + "." + *number;
    if (at == begin || out.back().name != name) {
      if (!seen.insert(name).second) {
        throw std::invalid_argument("layer \"" + ids[to_index(at)] + "\" is separate from the rest of " + name + "; " +
                                    kExpressible);
      }
      out.push_back({letter, name, at, at});
    }
    out.back().end = ++at;
  }
  return at;
}

}  // namespace

std::vector<std::string> parse_megatron_layout(const std::string& text, const std::string& file) {
  std::string line = text;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  LayoutReader reader(line, file);
  if (line.empty()) reader.fail(0, "is empty, expected a layout such as Et*3|(tt|)*2,L");
  const std::vector<std::string> stages = reader.stages();
  std::string letters;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].empty()) {
      throw FormatError(file + ": stage " + std::to_string(s) + " has no layers, a plan's stage has at least one");
    }
    letters += stages[s];
  }
  const auto count = [&](char letter) { return std::count(letters.begin(), letters.end(), letter); };
  if (letters.front() != 'E' || count('E') != 1) throw FormatError(file + ": expected one E, as the first letter");
  if (letters.back() != 'L' || count('L') != 1) throw FormatError(file + ": expected one L, as the last letter");
  if (letters.find_last_of('t') != letters.npos && letters.find('m') < letters.find_last_of('t')) {
    throw FormatError(file + ": found an m before a t, decoder layers come before prediction layers");
  }
  return stages;
}

std::string megatron_layout_text(const std::vector<std::string>& stages) {
  std::vector<std::string> texts;
  for (const std::string& stage : stages) {
    std::string& text = texts.emplace_back();
    for (std::size_t at = 0; at < stage.size();) {
      const std::size_t end = std::min(stage.find_first_not_of(stage[at], at), stage.size());
      const std::size_t count = end - at;
      text += count < 3 ? std::string(count, stage[at]) : std::string(1, stage[at]) + "*" + std::to_string(count);
      at = end;
    }
  }
  std::string out;
  for (std::size_t s = 0; s < texts.size();) {
    std::size_t end = s;
    while (end + 1 < texts.size() && texts[end] == texts[s]) ++end;  // the last stage has no | after it to repeat
    if (end - s >= 3) {
      out += "(" + texts[s] + "|)*" + std::to_string(end - s) + ",";
      s = end;
    } else {
      out += texts[s] + (s + 1 < texts.size() ? "|" : "");
      ++s;
    }
  }
  return out;
}

std::vector<LayoutUnit> layout_units(const std::vector<std::string>& ids) {
  if (ids.empty()) throw std::invalid_argument("there are no layers");
  const std::string container = block_container(ids);
  const int count = to_int(ids.size());
  int first = 0;
  while (!number_under(ids[to_index(first)], container)) {
    const std::string& id = ids[to_index(first)];
    if (!speaks_of(id, "emb|wte|wpe|tok|pos|drop|rotary")) {
      throw std::invalid_argument("layer \"" + id + "\" comes before the blocks of \"" + container +
                                  "\" and is not an embedding; " + kExpressible);
    }
    ++first;
  }
  if (first == 0) {
    throw std::invalid_argument("no embedding comes before layer \"" + ids.front() + "\"; " + kExpressible);
  }
  std::vector<LayoutUnit> out{{'E', "the embedding", 0, first}};
  int at = append_blocks(out, ids, first, container, 't');
  for (bool more = true; more && at < count;) {
    more = false;
    for (const UnitPlace& place : places(ids[to_index(at)])) {
      if (more || !is_prediction(place.container)) continue;
      at = append_blocks(out, ids, at, place.container, 'm');
      more = true;
    }
  }
  const int loss = at;
  const auto later = std::find_if(ids.begin() + loss, ids.end(),
                                  [&](const std::string& id) { return number_under(id, container).has_value(); });
  if (later != ids.end()) {
    throw std::invalid_argument("layer \"" + ids[to_index(loss)] + "\" is between the blocks \"" + out.back().name +
                                "\" and \"" + *later + "\"; " + kExpressible);
  }
  for (; at < count; ++at) {
    const std::string& id = ids[to_index(at)];
    if (!speaks_of(id, "norm|(^|\\.)ln|head|out|linear|logit|proj|loss|criterion|softmax|classifier")) {
      throw std::invalid_argument("layer \"" + id + "\" comes after the blocks of \"" + container +
                                  "\" and is not a norm, output layer or loss; " + kExpressible);
    }
  }
  if (loss == count) {
    throw std::invalid_argument("no norm, output layer or loss comes after layer \"" + ids.back() + "\"; " +
                                kExpressible);
  }
  out.push_back({'L', "the loss", loss, count});
  return out;
}

std::vector<std::string> megatron_layout(const BoundPlan& bound) {
  const Plan& plan = bound.plan();
  std::vector<std::string> ids;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.devices.size() != plan.stages.front().devices.size()) {
      throw std::invalid_argument("stage " + std::to_string(s) + " has " + std::to_string(stage.devices.size()) +
                                  " replicas and stage 0 has " + std::to_string(plan.stages.front().devices.size()) +
                                  ", but Megatron-LM needs the same number for every stage");
    }
    ids.insert(ids.end(), stage.layers.begin(), stage.layers.end());
  }
  std::vector<std::string> out(plan.stages.size());
  for (const LayoutUnit& unit : layout_units(ids)) {
    const int stage = *bound.stage_of(ids[to_index(unit.begin)]);
    for (int at = unit.begin; at < unit.end; ++at) {
      const int other = *bound.stage_of(ids[to_index(at)]);
      if (other == stage) continue;
      throw std::invalid_argument("layer \"" + ids[to_index(at)] + "\" of " + unit.name + " is in stage " +
                                  std::to_string(other) + ", its first layer in stage " + std::to_string(stage) +
                                  "; a layout has one letter " + std::string(1, unit.letter) + " for all of it");
    }
    out[to_index(stage)] += unit.letter;
  }
  return out;
}

Partition megatron_partition(const std::vector<std::string>& stages, const Graph& graph) {
  const std::vector<LayoutUnit> units = layout_units(layer_ids(graph));
  std::string letters;
  for (const std::string& stage : stages) letters += stage;
  std::string graph_letters;
  for (const LayoutUnit& unit : units) graph_letters += unit.letter;
  if (letters != graph_letters) {
    const auto counts = [](const std::string& text) {
      std::string out;
      for (const char c : std::string("EtmL")) {
        out += (out.empty() ? "" : ", ") + std::to_string(std::count(text.begin(), text.end(), c)) + " " + c;
      }
      return out;
    };
    throw std::invalid_argument("found " + counts(letters) + "; graph \"" + graph.name + "\" has " +
                                counts(graph_letters));
  }
  std::vector<int> bounds{0};
  std::size_t unit = 0;
  for (const std::string& stage : stages) {
    unit += stage.size();
    bounds.push_back(units[unit - 1].end);
  }
  return partition_of_bounds(graph, bounds);
}

}  // namespace stagecraft::interchange
