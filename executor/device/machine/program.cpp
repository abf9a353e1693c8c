#include "executor/device/machine/program.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <regex>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"
#include "costmodel/text/units_text.h"
#include "executor/device/machine/allocator.h"
#include "executor/device/machine/device_versions.h"

namespace stagecraft::device {
namespace {

constexpr int kErrorsOnly = 2;  // of caffe2_log_level, glog's scale

/// The size that an allocator of LibTorch could not get: "2.00 GiB"; absent for other errors.
std::optional<std::string> refused_memory(const std::string& text) {
  std::smatch found;
  if (std::regex_search(text, found, std::regex("tried to allocate (\\d+) bytes"))) {
    return format_bytes(Bytes(number_in<std::int64_t>(found[1].str()).value_or(0)));
  }
  if (std::regex_search(text, found, std::regex("[Oo]ut of memory. Tried to allocate ([0-9.]+ [KMGT]?i?B)")))
    return found[1];
  return std::nullopt;
}

}  // namespace

void prepare_program() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kErrorsOnly;
  keep_freed_memory();
  reserve_huge_pages();
  skip_library_destructors();
}

void skip_library_destructors() {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (std::getenv("LD_PRELOAD") || std::getenv("CUDA_INJECTION64_PATH")) return;
  // What was registered before, by the libraries that the program was linked with, would follow.
  on_exit(
      [](int status, void*) {
        std::cout.flush();
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
#endif
}

std::string program_versions() {
  const std::map<std::string, std::string> built = compiled_device_library_versions();
  const std::string cuda = built.empty() ? "without CUDA"
                                         : fmt::format("CUDA {}, CUPTI {}, NCCL {}", built.at("cuda runtime"),
                                                       built.at("cupti"), built.at("nccl"));
  return fmt::format(", LibTorch {}, {}, {}", TORCH_VERSION, allocator_name(), cuda);
}

std::string error_text(const std::exception& error) {
  const auto* const library = dynamic_cast<const c10::Error*>(&error);
  std::string text = library ? library->what_without_backtrace() : error.what();
  if (!library) return text;
  if (const auto bytes = refused_memory(text)) {
    return "out of memory, " + *bytes +
           " more were requested; use smaller microbatches, bfloat16 (profile --dtype) or, in a run, more stages or "
           "recomputation (plan --recompute)";
  }
  return text.substr(0, text.find('\n'));
}

void rethrow_at(const std::string& where, const c10::Error& error) {
  const std::string text = (where.empty() ? "" : where + ": ") + error_text(error);
  if (refused_memory(error.what_without_backtrace())) throw DeviceError(ErrorKind::OutOfMemory, text);
  throw std::runtime_error(text);
}

}  // namespace stagecraft::device
