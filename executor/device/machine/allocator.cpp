#include "executor/device/machine/allocator.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <malloc.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

namespace stagecraft::device {
namespace {

/// The function `name` from the first library that defines it; null if none does.
template <class Function>
Function find_function(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

std::string malloc_library() {
  Dl_info found{};
  if (::dladdr(::dlsym(RTLD_DEFAULT, "malloc"), &found) == 0 || !found.dli_fname) return "unknown";
  return std::filesystem::path(found.dli_fname).filename().string();
}

}  // namespace

std::string allocator_name() {
  std::string library = malloc_library();
  if (library.starts_with("libc.")) return std::string("glibc ") + ::gnu_get_libc_version();
  if (library.find("mimalloc") != library.npos) {
    const auto version = find_function<int (*)()>("mi_version");
    if (!version) return "mimalloc";
    return fmt::format("mimalloc {}.{}.{}", version() / 100, version() / 10 % 10, version() % 10);
  }
  if (library.find("tcmalloc") != library.npos) {
    const auto version = find_function<const char* (*)(int*, int*, const char**)>("tc_version");
    int major = 0;
    int minor = 0;
    const char* patch = "";
    if (!version) return "tcmalloc";
    (void)version(&major, &minor, &patch);
    return fmt::format("tcmalloc {}.{}{}", major, minor, patch);
  }
  return library;
}

void keep_freed_memory() {
  if (!malloc_library().starts_with("libc.") || std::getenv("GLIBC_TUNABLES")) return;
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  ::mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace stagecraft::device
