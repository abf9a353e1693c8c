#pragma once

#include <cstdint>
#include <string_view>

namespace stagecraft {

/// 64-bit FNV-1a of `text`; with the `hash` of an earlier text, of both texts joined. The same on every machine. It
/// protects against mistakes, not against attacks. Source: draft-eastlake-fnv.
[[nodiscard]] constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325) {
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

}  // namespace stagecraft
