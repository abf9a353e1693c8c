#include "profiler/provenance.h"

#include <unistd.h>

#include <stdexcept>
#include <string>

#include "executor/processor.h"

namespace stagecraft {

Device device_here(int ranks) {
  if (ranks < 1) throw std::invalid_argument("the number of ranks is " + std::to_string(ranks) + ", wanted at least 1");
  const Bytes memory = Bytes(::sysconf(_SC_PAGESIZE)) * ::sysconf(_SC_PHYS_PAGES);
  return {processor_name(), Bytes(memory.value / ranks)};
}

}  // namespace stagecraft
