#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Writes pickles of state dicts, instruction by instruction.

namespace stagecraft {

inline std::string short_text(const std::string& text) {
  return "\x8c" + std::string(1, static_cast<char>(text.size())) + text;
}
inline std::string integer(std::int32_t value) {
  return "J" + std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
inline std::string integers(const std::vector<int>& values) {
  std::string out = "(";
  for (const int value : values) out += integer(value);
  return out + "t";
}

/// The instructions that build a tensor over the storage `key` of `values` floats.
inline std::string tensor(const std::string& key, int values, int offset, const std::vector<int>& shape,
                          const std::vector<int>& strides, const std::string& type = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + short_text("storage") + "ctorch\n" + type + "\n" + short_text(key) +
         short_text("cpu") + integer(values) + "tQ" + integer(offset) + integers(shape) + integers(strides) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}
inline std::string dict(const std::string& name, const std::string& value) {
  return "\x80\x02}" + short_text(name) + value + "s.";
}

}  // namespace stagecraft
