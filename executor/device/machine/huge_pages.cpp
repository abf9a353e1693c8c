#include "executor/device/machine/huge_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "executor/device/machine/allocator.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::device {
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
