#pragma once

#include <string>

namespace stagecraft {

/// The memory allocator behind malloc in this process, with its version: "mimalloc 2.0.9", "tcmalloc 2.10",
/// "glibc 2.36". The name of the library that malloc comes from if it is none of the known ones.
[[nodiscard]] std::string allocator_name();

/// To be called first in a program that computes. If malloc is glibc's, makes it keep freed memory: by default it gives
/// each large block back to the system, and LibTorch, which frees and allocates the same tensors in every step, then
/// waits for the system to hand over and zero the pages again. Other allocators keep memory by themselves, and a user
/// who set GLIBC_TUNABLES has chosen.
void keep_freed_memory();

}  // namespace stagecraft
