#include "executor/files/safetensors_dtypes.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/safetensors_header.h"

namespace stagecraft::files {
namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 11> kTypes{{{"F64", at::kDouble},
                                                                         {"F32", at::kFloat},
                                                                         {"F16", at::kHalf},
                                                                         {"BF16", at::kBFloat16},
                                                                         {"I64", at::kLong},
                                                                         {"I32", at::kInt},
                                                                         {"I16", at::kShort},
                                                                         {"I8", at::kChar},
                                                                         {"U8", at::kByte},
                                                                         {"BOOL", at::kBool},
                                                                         {"C64", at::kComplexFloat}}};

}  // namespace

std::optional<std::string> safetensors_word(at::ScalarType dtype) {
  for (const auto& [word, type] : kTypes) {
    if (type == dtype) return word;
  }
  return std::nullopt;
}

at::ScalarType safetensors_type(const std::string& word) {
  for (const auto& [known, type] : kTypes) {
    if (word == known) return type;
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("dtype", word, format::safetensors_dtypes()));
}

}  // namespace stagecraft::files
