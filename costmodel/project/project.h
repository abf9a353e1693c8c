#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace stagecraft::project {

/// The value of a key: true or false, an integer, a number, two numbers, a string, a list of strings, or named strings.
using KeyValue = std::variant<bool, std::int64_t, double, std::array<double, 2>, std::string, std::vector<std::string>,
                              std::map<std::string, std::string>>;

/// What a key takes. Pair is two numbers; Bytes are an integer or a text such as "16GiB", kept as text; Words are texts
/// or integers; Named are texts, numbers, or true and false, which become 1 and 0.
enum class KeyKind { Flag, Integer, Number, Pair, Text, Bytes, Words, Named };

/// "true or false", "an integer", ...; what messages expect.
[[nodiscard]] std::string to_string(KeyKind kind);

/// A key that a project file may have.
struct ProjectKey {
  std::string name;
  KeyKind kind = KeyKind::Text;
  std::string help;                   ///< one line of a comment
  std::string example;                ///< a value as written in the file
  std::optional<double> least = {};   ///< of a number, or of each of two
  std::vector<std::string> one_of{};  ///< the texts that are allowed; empty: any
  bool above = false;                 ///< numbers must be above `least`
};

/// A table of the file.
struct ProjectSection {
  std::string name;
  std::string help;  ///< lines of a comment
  std::vector<ProjectKey> keys;
};

/// All sections, in the order of the file.
[[nodiscard]] const std::vector<ProjectSection>& sections();

/// A project file: the sections that it has, and the keys that they give. An absent section has all its defaults,
/// except for `run` and `evaluate`.
struct Project {
  std::map<std::string, std::map<std::string, KeyValue>> given;
  friend bool operator==(const Project&, const Project&) = default;

  [[nodiscard]] bool has(const std::string& section) const { return given.contains(section); }
  /// Null if the file does not give the key.
  [[nodiscard]] const KeyValue* find(const std::string& section, const std::string& key) const;
  [[nodiscard]] std::string text(const std::string& section, const std::string& key,
                                 const std::string& otherwise) const;
  [[nodiscard]] std::int64_t integer(const std::string& section, const std::string& key, std::int64_t otherwise) const;
  [[nodiscard]] bool flag(const std::string& section, const std::string& key, bool otherwise = false) const;
};

/// Reads a project file; `file` names it in messages. Throws FormatError "FILE: line L column C: found, expected" for
/// text that is not TOML, an unknown section or key (listing those that exist), a value of the wrong type or out of
/// range, and keys that exclude each other or need a missing one.
[[nodiscard]] Project parse_project(const std::string& text, const std::string& file);

/// The file with every key: those given with their value, the others as comments with an example. parse_project gives
/// the same project.
[[nodiscard]] std::string project_text(const Project& project);

/// What a new project begins with.
struct NewProject {
  std::string model = {};                 ///< a built-in model, a model file, or a graph (.json)
  std::vector<std::string> options = {};  ///< "KEY=VALUE" of a built-in model
  std::string data = {};                  ///< empty: what fits the model
  std::string topology = {};              ///< as in the file; empty: this machine
  std::int64_t devices = 2;               ///< of this machine
  std::string estimate = {};              ///< a card, for a topology of GPUs that are not here
  std::string folder = "stagecraft-out";
};

/// A project that `stagecraft auto` can run unchanged. It trains on this machine; if the model is a graph or the
/// topology describes another machine, it ends with a prediction and a report instead. Throws std::invalid_argument for
/// an option without "=", options of a file, and an estimate for a graph or for this machine.
[[nodiscard]] Project new_project(const NewProject& wanted);

/// Names of the topologies that come with stagecraft, as in example:NAME, sorted; empty if they are not installed.
[[nodiscard]] std::vector<std::string> example_topologies();

/// The file of one of them. Throws InputError (UnknownName) listing them all if there is none of that name.
[[nodiscard]] std::string example_topology(const std::string& name);

}  // namespace stagecraft::project
