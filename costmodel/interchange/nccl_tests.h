#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/topology.h"

namespace stagecraft::interchange {

// The output of NVIDIA's nccl-tests (and AMD's rccl-tests), as of version 2.18.3: the text, whose tables have a
// column "#wrong" (before 2.11 "error"), and the JSON of option -J, versions 1 and 2. Source:
// github.com/NVIDIA/nccl-tests, src/common.cu and src/util.cu.

/// The test in which every rank sends to the next and receives at the same time.
inline constexpr const char* kSendReceive = "sendrecv";
/// The names of the tests of collectives that a topology can have.
[[nodiscard]] const std::vector<std::pair<std::string, Collective>>& tested_collectives();
/// "all_gather, all_reduce, ...": all tests that a topology can have, sorted.
[[nodiscard]] std::string tested_operations();

/// One run of one test. Bytes are the tests' "size", which counts the whole buffer, as Link does; times are out of
/// place, the mean over iterations and, unless the tests' option -a changed that, over ranks.
struct NcclTest {
  std::string operation;           ///< "all_gather", "all_reduce", "all_to_all", "sendrecv", ..., "broadcast"
  std::string device;              ///< the first rank's GPU
  std::vector<std::string> hosts;  ///< by rank
  Curve curve;
  int left_out = 0;  ///< rows of 0 bytes, to which small sizes round down
  std::map<std::string, std::string> versions;
  friend bool operator==(const NcclTest&, const NcclTest&) = default;
};

/// The runs in `text`, one or more: JSON if it begins with "{", which has one. The operation is the one that the run
/// names, else (text before 2.17) the one of the last program named before it, "./build/all_reduce_perf", else the one
/// that the file name of `file` begins with. In text, labels of mpirun ("[1,0]<stdout>:", also amid a line), srun
/// ("3: ") and kubectl ("[pod/NAME/CONTAINER] ") and all lines that are not part of a run, such as NCCL's log, are
/// skipped. Throws FormatError "FILE: line N: found, expected" (JSON: the pointer instead of the line) for an unnamed
/// test, ranks that are not 0..n-1 or in several groups, a missing column, a malformed row, sizes that do not ascend, a
/// time that is not positive, a #wrong other than 0 and N/A, values out of bounds, and no rows.
[[nodiscard]] std::vector<NcclTest> parse_nccl_tests(const std::string& text, const std::string& file);

/// The topology measured by `tests`: a level "node" with the tests of one host, a level "cluster" with those of several
/// hosts, or both; each as large as its largest test. Curves are those of fit_monotone; what that moved is in the
/// notes, "fit of all_reduce of 8 ranks". "sendrecv", in which every rank sends to the next and receives at the same
/// time, becomes send_receive. Latency and bandwidth of a link are those of send_receive; without it, of all-reduce,
/// all-gather, reduce-scatter or all-to-all (the first of these, with the most ranks n) by inverting the ring formula.
/// Bandwidth: the last point's bytes, times 2(n-1)/n or (n-1)/n, over its time. Latency: the first point's time over
/// its steps, 2(n-1) or n-1, if latency_of is that time; else 5 us in a node and 10 us between nodes, with a note.
/// Tests of several ranks on each of several hosts are spans of "cluster". If it has no others, its link is the one
/// with which collective_time has their times: bandwidth from the last point, latency from the first one or as above.
/// Operations that Link does not have are left out, with a note. Throws std::invalid_argument for no tests of its
/// operations, fewer than 2 ranks, unequal numbers of ranks on hosts, several on each without a test inside one host,
/// GPUs of several kinds, an operation twice for one shape, and as validate does.
[[nodiscard]] Topology measured_topology(const std::vector<NcclTest>& tests);

}  // namespace stagecraft::interchange
