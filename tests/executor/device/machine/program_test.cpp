#include "executor/device/machine/program.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "costmodel/errors.h"
#include "executor/device/machine/allocator.h"
#include "executor/device/machine/device_versions.h"

namespace stagecraft::device {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

std::string text_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& e) { return error_text(e); }
  return "";
}

TEST(Program, EndsWithoutWhatWasRegisteredBefore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  GTEST_SKIP() << "destructors run";
#endif
  unsetenv("LD_PRELOAD");
  EXPECT_EXIT(
      {
        std::atexit([] { std::fputs("before\n", stderr); });
        skip_library_destructors();
        std::atexit([] { std::fputs("after\n", stderr); });
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), AllOf(HasSubstr("after"), Not(HasSubstr("before"))));
}

TEST(Program, SaysHowMuchMemoryWasAskedFor) {
  // 2^42 values of 4 bytes are 16 TiB.
  const std::string text = text_of([] { (void)at::empty({std::int64_t{1} << 42}); });
  EXPECT_THAT(text, StartsWith("out of memory, 16.0 TiB more were requested; use smaller microbatches"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  // The message of LibTorch's allocator of GPU memory.
  EXPECT_THAT(text_of([] {
                C10_THROW_ERROR(
                    OutOfMemoryError,
                    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of "
                    "which 1.02 GiB is free. Process 4242 has 78.07 GiB memory in use.");
              }),
              StartsWith("out of memory, 2.50 GiB more were requested; "));
}

TEST(Program, SaysOtherErrorsOfLibTorchInOneLine) {
  const std::string text = text_of([] { (void)at::mm(at::ones({2, 3}), at::ones({4, 5})); });
  EXPECT_THAT(text, StartsWith("mat1 and mat2 shapes cannot be multiplied"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_EQ(text_of([] { throw std::runtime_error("first\nsecond"); }), "first\nsecond");  // not changed
}

TEST(Program, PutsThePlaceBeforeAnError) {
  const auto at_layer = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const c10::Error& e) { rethrow_at("layer \"fc1\", forward", e); }
  };
  EXPECT_THAT([&] { at_layer([] { (void)at::empty({std::int64_t{1} << 42}); }); },
              ThrowsMessage<DeviceError>(StartsWith("layer \"fc1\", forward: out of memory, 16.0 TiB")));
  EXPECT_THAT([&] { at_layer([] { (void)at::mm(at::ones({2, 3}), at::ones({4, 5})); }); },
              ThrowsMessage<std::runtime_error>(StartsWith("layer \"fc1\", forward: mat1 and mat2 shapes")));
}

TEST(Program, NamesTheAllocatorWithItsVersion) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer replaces it";
#endif
  EXPECT_THAT(allocator_name(), MatchesRegex("[a-z]+ [0-9]+[.][0-9.]+"));
}

TEST(Program, NamesWhatItWasBuiltWith) {
  const std::string first = ", LibTorch 2.11.0, " + allocator_name() + ", ";
  ASSERT_THAT(program_versions(), StartsWith(first));
  EXPECT_THAT(
      program_versions().substr(first.size()),
      MatchesRegex(device_library_versions().empty() ? "without CUDA"
                                                     : "CUDA 13[.][0-9]+, CUPTI 13[.][0-9]+, NCCL 2[.]28[.][0-9]+"));
}

}  // namespace
}  // namespace stagecraft::device
