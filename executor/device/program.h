#pragma once

#include <exception>
#include <string>

namespace c10 {
class Error;
}

namespace stagecraft {

/// To be called first in a program that computes: LibTorch's own warnings and notes do not reach the terminal (unless
/// TORCH_CPP_LOG_LEVEL asks for them), and freed memory is kept, see keep_freed_memory.
void prepare_program();

/// The versions that --version of such a program adds: ", LibTorch 2.11.0, mimalloc 2.0.9".
[[nodiscard]] std::string program_versions();

/// What `error` says, in one line: LibTorch's errors without the frames of its stack. Where memory ran out, how much
/// was asked for, and what would help.
[[nodiscard]] std::string error_text(const std::exception& error);

/// Throws a std::runtime_error (DeviceError where memory ran out) that begins with `where` and goes on with the text of
/// `error`.
[[noreturn]] void rethrow_at(const std::string& where, const c10::Error& error);

}  // namespace stagecraft
