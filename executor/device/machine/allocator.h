#pragma once

#include <string>

namespace stagecraft::device {

/// The memory allocator behind malloc in this process, with its version: "mimalloc 2.0.9", "tcmalloc 2.10",
/// "glibc 2.36". The name of the library that provides malloc if it is not a known one.
[[nodiscard]] std::string allocator_name();

/// Call first in a program that computes. If malloc is glibc's, makes it keep freed memory. By default it returns each
/// large block to the system, and LibTorch, which frees and allocates the same tensors in every step, then waits for
/// the system to map and zero the pages again. Other allocators keep memory anyway. Does nothing if the user has set
/// GLIBC_TUNABLES.
void keep_freed_memory();

}  // namespace stagecraft::device
