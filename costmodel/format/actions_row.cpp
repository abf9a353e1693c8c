#include "costmodel/format/actions_row.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/text/number.h"

namespace stagecraft::format {
namespace {

constexpr int kMostStages = 1 << 24;

/// The word of a cell.
struct RowWord {
  std::string_view text;
  const ActionTraits* action;  ///< null: read and skipped
};
const std::vector<RowWord>& row_words() {
  static const std::vector<RowWord> words = [] {
    std::vector<RowWord> out;
    for (const ActionTraits& action : kActions) {
      if (action.kind == ActionKind::Update) continue;  // has no cell
      out.push_back({action.cell, &action});
      if (action.kind == ActionKind::Backward) out.push_back({"I", &action});
    }
    out.insert(out.end(), {{"UNSHARD", nullptr}, {"RESHARD", nullptr}});
    return out;
  }();
  return words;
}
constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  const auto from = text.find_first_not_of(" \t\r");
  if (from == text.npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r") - from + 1);
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> out;
  for (std::size_t from = 0;; from = to_index(out.back().data() - text.data()) + out.back().size() + 1) {
    const auto end = text.find(by, from);
    out.push_back(text.substr(from, end == text.npos ? text.npos : end - from));
    if (end == text.npos) return out;
  }
}

[[noreturn]] void refuse(std::size_t cell, const std::string& what) {
  throw std::invalid_argument("cell " + std::to_string(cell + 1) + ": " + what);
}

std::string shown(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 40 ? "...\"" : "\"");
}

/// The number at the front of `text`, which is removed; -1 if there is none, or it is `most` or more.
int take_number_below(std::string_view& text, int most) {
  if (text.starts_with('-')) return -1;
  const std::optional<int> value = take_number<int>(text);
  return value && *value < most ? *value : -1;
}

struct Cell {
  Action action;
  const RowWord* word;
};

/// Throws unless the text is exactly one action.
Cell parse_cell(std::string_view text, std::size_t at) {
  std::string_view rest = text;
  Cell out{};
  out.action.stage = take_number_below(rest, kMostStages);
  const std::string_view word = rest.substr(0, std::min(rest.find_first_of("0123456789"), rest.size()));
  const auto it = std::ranges::find(row_words(), word, &RowWord::text);
  rest.remove_prefix(word.size());
  if (out.action.stage < 0 || it == row_words().end()) {
    std::string known;
    for (const RowWord& w : row_words()) known += (known.empty() ? "" : ", ") + std::string(w.text);
    refuse(at, "found " + shown(text) + ", expected a stage, one of " + known + ", and a microbatch, as in 2F0");
  }
  out.word = &*it;
  if (it->action) out.action.kind = it->action->kind;
  if (it->action && it->action->microbatch) {
    out.action.microbatch = take_number_below(rest, kMostMicrobatches);
    if (out.action.microbatch < 0) {
      refuse(at, "found " + shown(text) + ", expected a microbatch from 0 to " + std::to_string(kMostMicrobatches - 1) +
                     " after " + std::string(word));
    }
  }
  if (!rest.empty()) refuse(at, "found " + shown(rest) + " after an action in " + shown(text));
  if (!it->action || it->action->peer == 0) return out;
  out.action.peer = out.action.stage + it->action->peer;
  if (out.action.peer < 0) refuse(at, "found " + shown(text) + ", there is no stage before stage 0");
  return out;
}

/// The actions of a cell, in order: none, one, or the parts of an overlap.
std::vector<Cell> parse_cells(std::string_view text, std::size_t at) {
  if (text.empty()) return {};
  if (text.front() != '(') return {parse_cell(text, at)};
  const auto end = text.find(')');
  if (end == text.npos || text.substr(end + 1) != kOverlap) {
    refuse(at, "found " + shown(text) + ", expected actions in brackets and then " + std::string(kOverlap));
  }
  std::vector<Cell> out;
  for (const std::string_view part : split(text.substr(1, end - 1), ';')) out.push_back(parse_cell(trimmed(part), at));
  return out;
}

}  // namespace

std::vector<Action> parse_actions_row(const std::string& row) {
  std::vector<Action> out;
  std::map<std::pair<int, int>, std::size_t> whole;    // (stage, microbatch) -> cell, of B
  std::map<std::pair<int, int>, std::size_t> inputs;   // of I
  std::map<std::pair<int, int>, std::size_t> weights;  // of W
  std::size_t at = 0;
  for (const std::string_view text : split(row, ',')) {
    for (const auto& [action, word] : parse_cells(trimmed(text), at)) {
      if (!word->action) continue;
      const std::pair key(action.stage, action.microbatch);
      if (word->text == "B") whole.emplace(key, at);
      if (word->text == "I") inputs.emplace(key, at);
      if (word->text == "W") weights.emplace(key, at);
      out.push_back(action);
    }
    ++at;
  }
  const auto name = [](const std::pair<int, int>& key, const char* word) {
    return std::to_string(key.first) + word + std::to_string(key.second);
  };
  for (const auto& [key, cell] : inputs) {
    if (!weights.contains(key)) refuse(cell, "found " + name(key, "I") + " and no " + name(key, "W"));
  }
  for (const auto& [key, cell] : whole) {
    if (weights.contains(key))
      refuse(cell, "found " + name(key, "B") + " together with " + name(key, "W") + ", expected " + name(key, "I"));
  }
  for (const auto& [key, cell] : weights) {
    if (!inputs.contains(key)) refuse(cell, "found " + name(key, "W") + " and no " + name(key, "I"));
  }
  return out;
}

std::string actions_row(const std::vector<Action>& list) {
  std::set<std::pair<int, int>> weights;
  std::set<std::pair<int, int>> backwards;
  for (const Action& action : list) {
    if (action.kind == ActionKind::WeightGradient) weights.insert({action.stage, action.microbatch});
    if (action.kind == ActionKind::Backward) backwards.insert({action.stage, action.microbatch});
  }
  std::string out;
  for (const Action& action : list) {
    const std::string text = action_text(action);
    const std::pair key(action.stage, action.microbatch);
    if (action.kind == ActionKind::Update) throw std::invalid_argument(text + " has no cell in the CSV format");
    if (action.peer >= 0 && std::abs(action.peer - action.stage) != 1) {
      throw std::invalid_argument(text + ": the CSV format has transfers between adjacent stages only");
    }
    if (action.kind == ActionKind::WeightGradient && !backwards.contains(key)) {
      throw std::invalid_argument(text + " has no backward in the list");
    }
    const bool half = action.kind == ActionKind::Backward && weights.contains(key);
    out += (out.empty() ? "" : ",") +
           (half ? std::to_string(action.stage) + "I" + std::to_string(action.microbatch) : text);
  }
  return out;
}

}  // namespace stagecraft::format
