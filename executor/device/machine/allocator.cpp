#include "executor/device/machine/allocator.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "executor/device/machine/processor.h"

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

namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kBlock = 512 << 20;  // tcmalloc reports allocations of 1 GiB and more on stderr
constexpr std::int64_t kMostBlocks = 32;

std::string use = "not reserved";  // set before other threads start

bool is_address_space_limited() {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited || system_text("/proc/sys/vm/overcommit_memory").starts_with('2');
}

/// "used", or the reason why not.
std::string reserve() {
  const char* const wanted = std::getenv("STAGECRAFT_HUGE_PAGES");
  if (wanted && std::string_view(wanted) == "0") return "off";
  if (!allows_huge_pages(system_text("/sys/kernel/mm/transparent_hugepage/enabled"))) return "not allowed";
  if (!allocator_name().starts_with("tcmalloc")) return "not with this allocator";
  if (is_address_space_limited()) return "not with limited address space";
  const std::int64_t count = std::clamp<std::int64_t>(machine_memory().value / 4 / kBlock, 1, kMostBlocks);
  std::vector<void*> blocks(static_cast<std::size_t>(count));
  for (void*& block : blocks) {
    block = std::malloc(kBlock);
    void* begin = block;
    std::size_t size = kBlock;
    if (std::align(kHugePage, kHugePage, begin, size))
      (void)::madvise(begin, size / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  for (void* const block : blocks) std::free(block);
  return "used";
}

}  // namespace

bool allows_huge_pages(const std::string& enabled) {
  return enabled.find("[always]") != enabled.npos || enabled.find("[madvise]") != enabled.npos;
}

void reserve_huge_pages() { use = reserve(); }

std::string huge_page_use() { return use; }

}  // namespace stagecraft::device
