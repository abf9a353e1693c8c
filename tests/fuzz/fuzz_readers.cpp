// Fuzzes the readers with libFuzzer. The first byte chooses the reader. Build and run, from the root of the source:
//   cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 -DSTAGECRAFT_WITH_TORCH=OFF
//         -DSTAGECRAFT_FUZZ=ON -DSTAGECRAFT_SANITIZE=address -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link
//   cmake --build build/fuzz --target fuzz_readers && build/fuzz/bin/fuzz_readers -max_total_time=60

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const auto& readers = stagecraft::testing::fuzzed_readers();
  (void)readers[data[0] % readers.size()].check({reinterpret_cast<const char*>(data) + 1, bytes - 1});
  return 0;
}
