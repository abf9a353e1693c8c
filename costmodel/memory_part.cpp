#include "costmodel/memory_part.h"

#include <array>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

/// In the order of MemoryPart.
constexpr std::array<const char*, kMemoryParts> kWords{
    "activations",    "communication", "frozen",     "gradients", "inputs",    "kept gradients", "libraries",
    "older versions", "optimizer",     "parameters", "receiving", "reduction", "sending",        "workspace"};

}  // namespace

const char* to_string(MemoryPart part) { return kWords[static_cast<std::size_t>(part)]; }

MemoryPart memory_part(const std::string& word) {
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (word == kWords[i]) return static_cast<MemoryPart>(i);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("part of memory", word, {kWords.begin(), kWords.end()}));
}

}  // namespace stagecraft
