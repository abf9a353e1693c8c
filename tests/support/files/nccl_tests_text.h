#pragma once

#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// The output of nccl-tests 2.18.3, for tests of the importer.

namespace stagecraft::testing {

using NcclRows = std::vector<std::pair<long, double>>;  ///< bytes and microseconds

/// The text that std::snprintf writes.
template <class... Arguments>
std::string formatted(const char* format, Arguments... arguments) {
  std::string out(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, arguments...)), ' ');
  std::snprintf(out.data(), out.size() + 1, format, arguments...);
  return out;
}

/// The text output of `program` with one GPU per entry of `hosts`; in-place times are 5 % less.
inline std::string nccl_tests_text(const std::string& program, const std::vector<std::string>& hosts,
                                   const NcclRows& rows) {
  std::ostringstream out;
  out << "# nccl-tests version 2.18.3 nccl-headers=22807 nccl-library=22807\n# Collective test starting: " << program
      << "\n# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
         "validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n";
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const int r = static_cast<int>(rank);
    out << formatted("#  Rank %2d Group %2d Pid %6d on %10s device %2d [0000:%02x:00] NVIDIA H100 80GB HBM3\n", r, 0,
                     1000 + r, hosts[rank].c_str(), r, r + 5);
  }
  out << "#\n#                                                              out-of-place                       "
         "in-place          \n"
         "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
         "busbw  #wrong \n"
         "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
         "(GB/s)         \n";
  for (const auto& [bytes, time] : rows) {
    out << formatted("%12li  %12li  %8s  %6s  %6d  %7.2f  %6.2f  %6.2f  %6g  %7.2f  %6.2f  %6.2f  %6s\n", bytes,
                     bytes / 4, "float", "sum", -1, time, 1.0, 1.5, 0.0, time * 0.95, 1.0, 1.5, "N/A");
  }
  out << "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5 \n#\n# Collective test concluded: " << program
      << "\n#\n";
  return out.str();
}

/// The JSON output of `program` with one process that drives `gpus` GPUs.
inline std::string nccl_tests_json(const std::string& program, const std::string& host, int gpus,
                                   const NcclRows& rows) {
  std::ostringstream out;
  out << R"({"version":2,"start_time":"2026-01-02 03:04:05","args":["./build/)" << program
      << R"("],"env":["PATH=\/bin"],"nccl_version":22807,"config":{"nthreads":1,"ngpus":)" << gpus
      << R"(,"minimum_bytes":8,"blocking_collectives":"false","devices":[{"rank":0,"group":0,"pid":7,"hostname":")"
      << host << R"(","device":0,"device_hex":"0000:05:00","device_info":"NVIDIA H100 80GB HBM3"}]},"results":[)";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out << (i > 0 ? "," : "") << R"({"size":)" << rows[i].first
        << R"(,"count":2,"type":"float","redop":"sum","root":"    -1",)"
        << R"("out_of_place":{"time":)" << formatted("%lf", rows[i].second)
        << R"(,"alg_bw":1.0,"bus_bw":1.5,"nwrong":0.000000},"in_place":{"time":19.0,"alg_bw":1.0,"bus_bw":1.5,)"
        << R"("nwrong":null},"actual_iterations":20,"experiment_name":""})";
  }
  out << R"(],"out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":1.5,"okay":"unchecked"},)"
      << R"("errors":[],"end_time":"2026-01-02 03:04:06"})";
  return out.str();
}

}  // namespace stagecraft::testing
