#pragma once

#include <nccl.h>

#include <initializer_list>
#include <vector>

// Only for files that are built with CUDA.

namespace stagecraft::channel {

/// Whether a communicator carries messages from one rank to another, or reduces.
enum class NcclUse { Edge, Reduction };

/// The configuration of every communicator, in a run and where links are measured: what is measured is what runs.
/// A transfer that waits for its peer occupies as many multiprocessors as it has thread blocks, so edges, many of which
/// wait at a time, get at most `most_ctas`; reductions get what NCCL chooses. `name` must outlive the communicator.
[[nodiscard]] inline ncclConfig_t nccl_config(NcclUse use, int most_ctas, const char* name) {
  ncclConfig_t out = NCCL_CONFIG_INITIALIZER;
  out.blocking = 0;  // otherwise nothing could abort a call that waits for a lost peer
  if (use == NcclUse::Edge) out.maxCTAs = most_ctas;
  out.commName = name;
  return out;
}

/// Ends all transfers of these communicators on this process and releases them. No other thread may be inside a call on
/// one of them. An abort waits for its communicator's stream, on which a send may wait for compute that waits for
/// another communicator: so all are aborted as a group, which waits for none before all have been told. The abort of a
/// communicator with a call under way also waits for that call: `busy` come last.
inline void abort_together(const std::vector<ncclComm_t>& idle, const std::vector<ncclComm_t>& busy = {}) noexcept {
  (void)ncclGroupStart();
  for (const auto* list : {&idle, &busy}) {
    for (const ncclComm_t communicator : *list) (void)ncclCommAbort(communicator);
  }
  (void)ncclGroupEnd();
}

}  // namespace stagecraft::channel
