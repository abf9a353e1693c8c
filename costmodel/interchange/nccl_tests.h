#pragma once

#include <map>
#include <string>
#include <vector>

#include "costmodel/topology.h"

namespace stagecraft::interchange {

// The output of NVIDIA's nccl-tests (and AMD's rccl-tests), as of version 2.18.3: the text since 2.11, whose tables
// have a column "#wrong", and the JSON of option -J, versions 1 and 2. Source: github.com/NVIDIA/nccl-tests,
// src/common.cu and src/util.cu.

/// One run of one test. Bytes are the tests' "size", which counts the whole buffer, as Link does; times are out of
/// place, the mean over iterations and, unless the tests' option -a changed that, over ranks.
struct NcclTest {
  std::string operation;           ///< "all_gather", "all_reduce", "reduce_scatter" or "sendrecv"
  std::string device;              ///< the first rank's GPU
  std::vector<std::string> hosts;  ///< by rank
  Curve curve;
  int left_out = 0;  ///< rows of 0 bytes, to which small sizes round down
  std::map<std::string, std::string> versions;
  friend bool operator==(const NcclTest&, const NcclTest&) = default;
};

/// The run in `text`, JSON if it begins with "{". The operation is the one that the run names, else (text before 2.17)
/// the one that the file name of `file` begins with: "all_reduce_perf.txt". In text, prefixes of mpirun
/// ("[1,0]<stdout>:") and lines of NCCL's log are recognised and skipped.
/// Throws FormatError "FILE: line N: found, expected" (JSON: the pointer instead of the line) for another test, ranks
/// that are not 0..n-1 or in several groups, a missing column, a malformed row, sizes that do not ascend, a time that
/// is not positive, a #wrong other than 0 and N/A, values out of bounds, a second run, and no rows.
[[nodiscard]] NcclTest parse_nccl_test(const std::string& text, const std::string& file);

/// The topology measured by `tests`: a level "node" with the tests of one host, a level "cluster" with those of one
/// rank on each of several hosts, or both; each as large as its largest test. Curves are those of fit_monotone; what
/// that moved is in the notes, "fit of all_reduce of 8 ranks". "sendrecv", in which every rank sends to the next and
/// receives at the same time, becomes send_receive. Latency is the first point's time, bandwidth the last point's bytes
/// over time, of send_receive; without it, of all-reduce, all-gather or reduce-scatter (the first of these, with the
/// most ranks n) by inverting the ring formula: the time of one of 2(n-1), n-1 and n-1 steps, and 2(n-1)/n, (n-1)/n and
/// (n-1)/n of the bytes over time. Throws std::invalid_argument for no tests, fewer than 2 ranks, several ranks on each
/// of several hosts (no level can express that), GPUs of several kinds, an operation twice for one number of ranks, and
/// as validate does.
[[nodiscard]] Topology measured_topology(const std::vector<NcclTest>& tests);

}  // namespace stagecraft::interchange
