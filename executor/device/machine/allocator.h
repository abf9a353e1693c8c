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

// Huge pages: the processor's table of recent address translations (TLB) covers a few MiB of ordinary pages, far less
// than a model's weights, gradients and activations.

/// Whether Linux may use huge pages, from the text of /sys/kernel/mm/transparent_hugepage/enabled: "always [madvise]
/// never". An empty text means no.
[[nodiscard]] bool allows_huge_pages(const std::string& enabled);

/// Call first in a program that computes, before it allocates: lets malloc begin with address space, a quarter of the
/// machine's memory and at most 16 GiB, that Linux fills with pages of 2 MiB as it is written. Takes 1 ms and 1 MiB of
/// memory per GiB. Only for tcmalloc, which keeps what is freed; does nothing if the environment has
/// STAGECRAFT_HUGE_PAGES=0, if the system allows no huge pages, or if it limits address space (ulimit -v,
/// overcommit_memory 2).
void reserve_huge_pages();

/// What reserve_huge_pages did: "used", or the reason why not: "off", "not allowed", "not with this allocator", "not
/// with limited address space", or "not reserved" if it was not called.
[[nodiscard]] std::string huge_page_use();

}  // namespace stagecraft::device
