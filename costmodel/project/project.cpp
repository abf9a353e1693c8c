#include "costmodel/project/project.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>
// Headers only: nothing to link, and nothing that an installed library would need. toml++ 3.3 asserts that a key
// follows
// "[[", although it tells the user of anything else right after.
#define TOML_HEADER_ONLY 1
#ifdef NDEBUG
#include <toml++/toml.h>
#else
#define NDEBUG
#include <toml++/toml.h>
#undef NDEBUG
#endif

#include "costmodel/errors.h"
#include "costmodel/format/json_string.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::project {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 53;

using Names = std::map<std::string, std::string>;

/// Where something is in the file, for messages.
struct Place {
  std::string file;
  toml::source_position at;

  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(ErrorKind::BadProject,
                      fmt::format("{}: line {} column {}: {}", file, at.line, at.column, message));
  }
};

/// Where the first character beyond ASCII is that is in no string and no comment. TOML allows none, and toml++ 3.3
/// takes them for impossible (undefined behaviour). Empty: there is none.
std::optional<toml::source_position> first_stray_character(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  toml::source_position at{1, 1};
  std::string_view closing;  // what ends the string or comment
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::string_view rest = text.substr(i);
    const bool continues = (c & 0xC0) == 0x80;  // a character of several bytes
    if (closing.empty()) {
      if ((c & 0x80) != 0) return at;
      for (const std::string_view opening : {"\"\"\"", "'''", "\"", "'", "#"}) {
        if (!rest.starts_with(opening)) continue;
        closing = opening == "#" ? "\n" : opening;
        i += opening.size() - 1;
        at.column += static_cast<toml::source_index>(opening.size() - 1);
        break;
      }
    } else if (c == '\\' && closing.front() == '"' && rest.size() > 1 && rest[1] != '\n') {
      ++i;  // an escape
      ++at.column;
    } else if (rest.starts_with(closing) || (closing.size() == 1 && c == '\n')) {
      i += closing.size() - 1;
      at.column += static_cast<toml::source_index>(closing.size() - 1);
      closing = {};
    }
    if (c == '\n') {
      at = {at.line + 1, 1};
    } else if (!continues) {
      ++at.column;
    }
  }
  return std::nullopt;
}

std::string shown(const toml::node& node) {
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  std::string text;
  if (const auto* array = node.as_array()) {
    for (const toml::node& each : *array) text += (text.empty() ? "[ " : ", ") + shown(each);
    text += text.empty() ? "[]" : " ]";
  } else {
    std::ostringstream out;
    node.visit([&out](const auto& value) { out << value; });
    text = out.str();
  }
  std::ranges::replace(text, '\n', ' ');
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

/// A text that can be a word of a command line.
std::string word(const Place& place, const std::string& text) {
  if (text.empty()) place.fail("found \"\", expected a non-empty string");
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (std::ranges::any_of(text, control)) place.fail("found a control character, expected text on one line");
  return text;
}

/// A text or an integer as text; nothing else.
std::optional<std::string> text_or_integer(const Place& place, const toml::node& node) {
  if (const auto* text = node.as_string()) return word(place, text->get());
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  return std::nullopt;
}

std::string option_value(const Place& place, const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return flag->get() ? "1" : "0";
  if (const auto* number = node.as_floating_point(); number && std::isfinite(number->get()))
    return fmt::format("{}", number->get());
  if (const auto text = text_or_integer(place, node)) return *text;
  place.fail("found " + shown(node) + ", expected a string, a number, true or false");
}

/// What `key` takes, for messages.
std::string expected(const ProjectKey& key) {
  if (!key.least) return to_string(key.kind);
  if (key.above) return fmt::format("{} above {}", to_string(key.kind), *key.least);
  return fmt::format("{} of {} or more", to_string(key.kind), *key.least);
}

/// The number, if it is one and not too small for `key`.
std::optional<double> number_for(const ProjectKey& key, const toml::node& node) {
  // node.value<double>() refuses integers that are not exact as a double.
  std::optional<double> number;
  if (const auto* integer = node.as_integer()) number = static_cast<double>(integer->get());
  if (const auto* floating = node.as_floating_point()) number = floating->get();
  if (!number || !std::isfinite(*number)) return std::nullopt;
  if (key.least && (key.above ? *number <= *key.least : *number < *key.least)) return std::nullopt;
  return *number + 0.0;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
                              std::string_view::npos;
}

KeyValue read_value(const std::string& file, const ProjectKey& key, const toml::node& node) {
  const Place place{file, node.source().begin};
  const auto wrong = [&]() -> KeyValue { place.fail("found " + shown(node) + ", expected " + expected(key)); };
  switch (key.kind) {
    case KeyKind::Flag:
      if (const auto* flag = node.as_boolean()) return flag->get();
      return wrong();
    case KeyKind::Integer:
      if (const auto* integer = node.as_integer();
          integer && (!key.least || static_cast<double>(integer->get()) >= *key.least) && integer->get() <= kMost)
        return integer->get();
      return wrong();
    case KeyKind::Number:
      if (const auto number = number_for(key, node)) return *number;
      return wrong();
    case KeyKind::Pair: {
      const toml::array* array = node.as_array();
      if (array == nullptr || array->size() != 2) return wrong();
      const auto first = number_for(key, array->at(0));
      const auto second = number_for(key, array->at(1));
      if (first && second) return std::array{*first, *second};
      return wrong();
    }
    case KeyKind::Text: {
      const auto* text = node.as_string();
      if (!text) return wrong();
      std::string value = word(place, text->get());
      if (value.starts_with('-'))
        place.fail("found \"" + value + "\", expected a string that does not begin with \"-\"");
      const bool known = key.one_of.empty() || std::ranges::find(key.one_of, value) != key.one_of.end() ||
                         (key.name == "schedule" && value.starts_with("csv:"));
      if (!known) place.fail(unknown_name(key.name, value, key.one_of));
      return value;
    }
    case KeyKind::Bytes: {
      const auto text = text_or_integer(place, node);
      if (!text) return wrong();
      try {
        (void)parse_bytes(*text);
      } catch (const std::invalid_argument& e) { place.fail(e.what()); }
      return *text;
    }
    case KeyKind::Words: {
      const toml::array* array = node.as_array();
      if (array == nullptr) return wrong();
      std::vector<std::string> out;
      for (const toml::node& element : *array) {
        const Place inside{file, element.source().begin};
        const auto text = text_or_integer(inside, element);
        if (!text) inside.fail("found " + shown(element) + ", expected a string or an integer");
        out.push_back(*text);
      }
      return out;
    }
    case KeyKind::Named: {
      const toml::table* table = node.as_table();
      if (table == nullptr) return wrong();
      Names out;
      for (const auto& [name, value] : *table) {
        if (!is_name(name.str()))
          Place{file, name.source().begin}.fail(fmt::format("\"{}\" is not the name of an option", name.str()));
        out.emplace(name.str(), option_value({file, value.source().begin}, value));
      }
      return out;
    }
  }
  return wrong();
}

template <class Items>
std::vector<std::string> names_of(const Items& items) {
  std::vector<std::string> out;
  for (const auto& item : items) out.push_back(item.name);
  return out;
}

/// Whether a project without this section differs from one in which it is empty.
bool may_be_absent(const ProjectSection& section) { return section.name == "run" || section.name == "evaluate"; }

/// A rule that two keys break.
struct Clash {
  const char* section;
  const char* key;  ///< the one to point at
  std::string message;
};

std::vector<Clash> clashes(const Project& p) {
  std::vector<Clash> out;
  const auto has = [&](const char* section, const char* key) { return p.find(section, key) != nullptr; };
  const auto exclude = [&](const char* section, const char* one, const char* other) {
    if (has(section, one) && has(section, other))
      out.push_back({section, other, fmt::format("{} and {} are mutually exclusive", one, other)});
  };
  exclude("model", "name", "graph");
  exclude("plan", "microbatches", "global_batch");
  exclude("plan", "recompute", "recompute_every");
  exclude("plan", "stages", "replicas");
  exclude("run", "steps", "epochs");
  const auto need = [&](const char* section, const char* key, const char* other) {
    if (has(section, key) && !has(section, other))
      out.push_back({section, key, fmt::format("{} needs {}", key, other)});
  };
  need("run", "validate_every", "validate_data");
  need("run", "validate_samples", "validate_data");
  need("output", "png", "pictures");
  const std::string schedule = p.text("plan", "schedule", "");
  const auto entry = std::ranges::find(schedules(), schedule, &ScheduleEntry::name);
  if (has("run", "validate_every") && entry != schedules().end() && entry->weights != Weights::Flushed) {
    out.push_back({"run", "validate_every",
                   "schedule " + schedule + " validates only after the last step; remove validate_every"});
  }
  for (const char* key : {"loss_scale", "loss_scale_growth_interval"}) {
    if (has("training", key) && has("model", "name") && p.text("model", "dtype", "float32") != "float16")
      out.push_back({"training", key, fmt::format("{} needs [model] dtype = \"float16\"", key)});
  }
  const bool here = p.text("cluster", "topology", "this-machine") == "this-machine";
  if (!here && has("cluster", "devices"))
    out.push_back(
        {"cluster", "devices", "devices is only valid with topology = \"this-machine\"; a topology file has its own"});
  const std::int64_t microbatch = p.integer("model", "microbatch", 1);
  if (!has("model", "graph") && p.integer("plan", "global_batch", microbatch) % microbatch != 0)
    out.push_back({"plan", "global_batch",
                   fmt::format("{} samples are not a multiple of the microbatch's {}",
                               p.integer("plan", "global_batch", 0), microbatch)});
  if (has("plan", "global_batch") && has("model", "graph") && !has("model", "microbatch"))
    out.push_back({"plan", "global_batch",
                   "with a graph, global_batch also needs [model] microbatch, the graph's samples per microbatch"});
  if (p.has("run") && has("cluster", "estimate"))
    out.push_back({"cluster", "estimate",
                   "estimated times are for devices that this machine does not have; remove estimate or [run]"});
  if (p.has("evaluate") && !p.flag("run", "checkpoint", true))
    out.push_back({"run", "checkpoint", "[evaluate] needs checkpoints; remove one of them"});
  return out;
}

std::string written(const ProjectKey& key, const KeyValue& value) {
  struct Writer {
    const ProjectKey& key;
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t integer) const { return std::to_string(integer); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::array<double, 2>& pair) const {
      return fmt::format("[{}, {}]", pair[0], pair[1]);
    }
    std::string operator()(const std::string& text) const { return format::json_string(text); }
    std::string operator()(const std::vector<std::string>& words) const {
      std::string out = "[";
      for (const std::string& text : words) out += (out.size() > 1 ? ", " : "") + format::json_string(text);
      return out + "]";
    }
    std::string operator()(const Names& names) const {
      std::string out = "{";
      for (const auto& [name, text] : names) {
        const bool integer =
            text.size() < 10 && text.find_first_not_of("0123456789") == text.npos && (text == "0" || text[0] != '0');
        out += (out.size() > 1 ? ", " : " ") + name + " = " + (integer ? text : format::json_string(text));
      }
      return out + " }";
    }
  };
  return std::visit(Writer{key}, value);
}

}  // namespace

std::string to_string(KeyKind kind) {
  switch (kind) {
    case KeyKind::Flag:
      return "true or false";
    case KeyKind::Integer:
      return "an integer";
    case KeyKind::Number:
      return "a number";
    case KeyKind::Pair:
      return "two numbers";
    case KeyKind::Text:
      return "a string";
    case KeyKind::Bytes:
      return "bytes, such as 16000000000 or \"16GiB\"";
    case KeyKind::Words:
      return "a list of strings";
    case KeyKind::Named:
      return "a table such as { layers = 4 }";
  }
  return {};
}

const KeyValue* Project::find(const std::string& section, const std::string& key) const {
  const auto in = given.find(section);
  if (in == given.end()) return nullptr;
  const auto at = in->second.find(key);
  return at == in->second.end() ? nullptr : &at->second;
}

std::string Project::text(const std::string& section, const std::string& key, const std::string& otherwise) const {
  const KeyValue* value = find(section, key);
  return value == nullptr ? otherwise : std::get<std::string>(*value);
}

std::int64_t Project::integer(const std::string& section, const std::string& key, std::int64_t otherwise) const {
  const KeyValue* value = find(section, key);
  return value == nullptr ? otherwise : std::get<std::int64_t>(*value);
}

bool Project::flag(const std::string& section, const std::string& key, bool otherwise) const {
  const KeyValue* value = find(section, key);
  return value == nullptr ? otherwise : std::get<bool>(*value);
}

Project parse_project(const std::string& text, const std::string& file) {
  if (const auto at = first_stray_character(text))
    Place{file, *at}.fail("found a character beyond ASCII, expected it in quotes");
  toml::table document;
  try {
    document = toml::parse(std::string_view(text), std::string_view(file));
  } catch (const toml::parse_error& e) { Place{file, e.source().begin}.fail(std::string(e.description())); }
  Project out;
  for (const auto& [name, node] : document) {
    const Place place{file, name.source().begin};
    const auto section = std::ranges::find(sections(), std::string(name.str()), &ProjectSection::name);
    if (section == sections().end())
      place.fail(
          unknown_name(node.is_table() ? "section" : "key outside of a section", name.str(), names_of(sections())));
    const toml::table* table = node.as_table();
    if (table == nullptr) place.fail("found " + shown(node) + ", expected a section [" + section->name + "]");
    if (table->empty() && !may_be_absent(*section)) continue;  // the same as no section
    auto& given = out.given[section->name];
    for (const auto& [key_name, value] : *table) {
      const auto key = std::ranges::find(section->keys, std::string(key_name.str()), &ProjectKey::name);
      if (key == section->keys.end()) {
        Place{file, key_name.source().begin}.fail(
            unknown_name("key of [" + section->name + "]", key_name.str(), names_of(section->keys)));
      }
      given.emplace(key->name, read_value(file, *key, value));
    }
  }
  for (const Clash& clash : clashes(out)) {
    const toml::node* node = document[clash.section][clash.key].node();
    if (node == nullptr) node = document[clash.section].node();
    Place{file, node == nullptr ? document.source().begin : node->source().begin}.fail(clash.message);
  }
  if (out.find("model", "name") == nullptr && out.find("model", "graph") == nullptr) {
    const toml::node* node = document["model"].node();
    Place{file, node == nullptr ? toml::source_position{1, 1} : node->source().begin}.fail(
        "[model] has no name and no graph; one of them is needed");
  }
  if (out.has("evaluate") && (!out.has("run") || out.find("evaluate", "source") == nullptr))
    Place{file, document["evaluate"].node()->source().begin}.fail(out.has("run") ? "[evaluate] has no source"
                                                                                 : "[evaluate] needs a section [run]");
  return out;
}

std::string project_text(const Project& project) {
  std::string out =
      "# A stagecraft project. `stagecraft auto` carries it out, and resumes where it stopped.\n"
      "# Paths are relative to this file's folder. Lines that begin with # show the other settings.\n";
  for (const ProjectSection& section : sections()) {
    const bool absent = !project.has(section.name);
    out += "\n# " + section.help + "\n" + (absent && may_be_absent(section) ? "# " : "") + "[" + section.name + "]\n";
    for (const ProjectKey& key : section.keys) {
      const KeyValue* value = project.find(section.name, key.name);
      const std::string line =
          (value == nullptr ? "# " : "") + key.name + " = " + (value == nullptr ? key.example : written(key, *value));
      out += key.help.empty() ? line + "\n" : fmt::format("{:<36}  # {}\n", line, key.help);
    }
  }
  return out;
}

}  // namespace stagecraft::project
