#pragma once

#include <exception>
#include <string>

namespace c10 {
class Error;
}

namespace stagecraft::device {

/// Call first in a program that computes: hides LibTorch's warnings and notes (unless TORCH_CPP_LOG_LEVEL is set), and
/// calls keep_freed_memory, reserve_huge_pages and skip_library_destructors.
void prepare_program();

/// Lets the process end without the destructors of LibTorch's operator tables, a third of the time of a short program.
/// What is registered with atexit after this call, and the objects of main, end as usual; open C streams are flushed.
/// Without effect under a sanitizer, which looks for leaks at the end, under a profiler that was preloaded or injected
/// (LD_PRELOAD, CUDA_INJECTION64_PATH), which writes at the end, and where the C library has no on_exit.
void skip_library_destructors();

/// What such a program was built with, for --version: ", LibTorch 2.11.0, mimalloc 2.0.9, CUDA 13.0, CUPTI 13.0, NCCL
/// 2.28.9", where "without CUDA" replaces the last three in a build without it.
[[nodiscard]] std::string program_versions();

/// The message of `error` in one line; LibTorch's errors without stack frames. If memory ran out: how much was
/// requested, and advice.
[[nodiscard]] std::string error_text(const std::exception& error);

/// Throws a std::runtime_error (DeviceError if memory ran out) with `where`, then the text of `error`.
[[noreturn]] void rethrow_at(const std::string& where, const c10::Error& error);

}  // namespace stagecraft::device
