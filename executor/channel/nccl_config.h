#pragma once

#include <nccl.h>

// Only for files that are built with CUDA.

namespace stagecraft::channel {

/// Whether a communicator carries messages from one rank to another, or reduces.
enum class NcclUse { Edge, Reduction };

/// The configuration of every communicator, in a run and where links are measured: what is measured is what runs.
/// A transfer that waits for its peer occupies as many multiprocessors as it has thread blocks, so edges, many of which
/// wait at a time, get at most `most_ctas`; reductions get what NCCL chooses. `name` must outlive the communicator's
/// creation.
[[nodiscard]] inline ncclConfig_t nccl_config(NcclUse use, int most_ctas, const char* name) {
  ncclConfig_t out = NCCL_CONFIG_INITIALIZER;
  out.blocking = 0;  // otherwise nothing could abort a call that waits for a lost peer
  if (use == NcclUse::Edge) out.maxCTAs = most_ctas;
  out.commName = name;
  return out;
}

}  // namespace stagecraft::channel
