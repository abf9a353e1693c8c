#include "costmodel/interchange/nccl_tests.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <stdexcept>

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/utf8.h"
#include "costmodel/index.h"
#include "costmodel/links/monotone_fit.h"

namespace stagecraft::interchange {
namespace {

const std::vector<std::string> kOperations = {"all_gather", "all_reduce", "reduce_scatter", "sendrecv"};
constexpr std::int64_t kMostRanks = 1 << 20;

/// "all_reduce" of "./build/all_reduce_perf_mpi"; empty if none of the four.
std::string operation_of(const std::string& program) {
  const std::string name = program.substr(program.find_last_of('/') + 1);
  for (const std::string& operation : kOperations) {
    if (name.starts_with(operation)) return operation;
  }
  return "";
}

/// NCCL's version code from 2.9 on: 22807 is 2.28.7.
std::string version_text(std::int64_t code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

template <class T>
bool read_number(std::string_view token, T& out) {
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), out);
  return error == std::errc() && end == token.data() + token.size();
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

/// The text form, line by line.
class TextReader {
 public:
  explicit TextReader(const std::string& file) : file_(file) { out_.operation = operation_of(file); }

  void take(std::string line) {
    ++line_;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.starts_with("[") && line.find(">:") != line.npos && line.find("]<std") != line.npos) {
      line = line.substr(line.find(">:") + 2);
    }
    const std::vector<std::string> found = words(line);
    if (found.empty()) return;
    if (found[0].starts_with("#")) return take_comment(found, line);
    if (columns_.empty() || line.find(" NCCL ") != line.npos) return;
    take_row(found);
  }

  NcclTest done() {
    if (columns_.empty()) fail("found no table, expected the line \"# size count type redop root time ...\"");
    if (out_.operation.empty()) {
      fail("found no line \"# Collective test starting:\", expected a file named after its test: " + kOperations[0] +
           ", " + kOperations[1] + ", " + kOperations[2] + " or " + kOperations[3]);
    }
    for (const auto& [rank, host] : hosts_) {
      if (rank != static_cast<std::int64_t>(out_.hosts.size())) {
        fail("found no line of rank " + std::to_string(out_.hosts.size()) + " under \"# Using devices\"");
      }
      out_.hosts.push_back(host);
    }
    if (out_.hosts.empty()) fail("found no ranks under \"# Using devices\"");
    if (out_.curve.points.empty()) fail("found no row of measurements");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(file_ + ": line " + std::to_string(line_) + ": " + message);
  }

  void take_comment(const std::vector<std::string>& found, const std::string& line) {
    const auto begins = [&found](std::initializer_list<const char*> wanted) {
      return found.size() > wanted.size() && std::equal(wanted.begin(), wanted.end(), found.begin());
    };
    if (begins({"#", "Collective", "test", "starting:"})) {
      out_.operation = operation_of(found[4]);
      if (out_.operation.empty()) fail(unknown_name("test", found[4], kOperations));
    } else if (begins({"#", "nccl-tests", "version"})) {
      out_.versions["nccl-tests"] = found[3];
      const std::string key = "nccl-library=";
      std::int64_t code = 0;
      if (found.back().starts_with(key) && read_number(found.back().substr(key.size()), code)) {
        out_.versions["nccl"] = version_text(code);
      }
    } else if (begins({"#", "Rank"})) {
      take_rank(found, line);
    } else if (begins({"#", "size"})) {
      take_header(found);
    } else if (begins({"#", "Out", "of", "bounds", "values", ":"}) && found[6] != "0") {
      fail("found " + found[6] + " values out of bounds, expected 0");
    }
  }

  /// "# Rank 0 [Group 0] Pid 7 on HOST device 0 [0000:07:00] NAME".
  void take_rank(const std::vector<std::string>& found, const std::string& line) {
    std::int64_t rank = -1;
    if (!read_number(found[2], rank) || rank < 0 || rank >= kMostRanks) fail("found rank " + found[2]);
    const auto after = [&](const char* word) -> std::string {
      const auto at = std::find(found.begin(), found.end(), word);
      return at == found.end() || at + 1 == found.end() ? "" : *(at + 1);
    };
    const std::string host = after("on");
    if (host.empty() || after("device").empty()) fail("found a rank without host or device");
    if (const std::string group = after("Group"); !group.empty() && group != "0") {
      fail("found ranks in several groups; all ranks must be in one test");
    }
    if (!hosts_.emplace(rank, host).second) fail("rank " + found[2] + " appears twice");
    const std::size_t name = line.find("] ");
    if (rank == 0 && name != line.npos) out_.device = line.substr(line.find_first_not_of(' ', name + 1));
  }

  void take_header(const std::vector<std::string>& found) {
    if (!columns_.empty()) fail("a second run starts; use one file per run");
    columns_.assign(found.begin() + 1, found.end());
    const auto wanted = [this](std::size_t at, const char* column) {
      if (at >= columns_.size() || columns_[at] != column) {
        fail("found " + (at < columns_.size() ? "column \"" + columns_[at] + "\"" : "no column") + ", expected \"" +
             column + "\"");
      }
      return at;
    };
    // The first "algbw" is the out-of-place one, whatever options -I or -S add.
    const std::size_t bandwidth = to_index(std::find(columns_.begin(), columns_.end(), "algbw") - columns_.begin());
    wanted(bandwidth, "algbw");
    time_ = wanted(bandwidth - 1, "time");
    wrong_ = wanted(bandwidth + 2, "#wrong");
    in_place_wrong_ =
        to_index(std::find(columns_.begin() + static_cast<std::ptrdiff_t>(wrong_) + 1, columns_.end(), "#wrong") -
                 columns_.begin());
  }

  void take_row(const std::vector<std::string>& found) {
    if (found.size() < columns_.size()) {
      fail("found " + std::to_string(found.size()) + " columns, expected " + std::to_string(columns_.size()));
    }
    CurvePoint point;
    if (!read_number(found[0], point.bytes.value) || point.bytes < Bytes(0) ||
        point.bytes.value > format::Cursor::kMostBytes) {
      fail("found size " + found[0] + ", expected bytes");
    }
    double microseconds = 0;
    if (!read_number(found[time_], microseconds) || !(microseconds > 0) || !std::isfinite(microseconds)) {
      fail("found time " + found[time_] + ", expected microseconds above 0");
    }
    point.time = Seconds(microseconds * 1e-6);
    for (const std::size_t column : {wrong_, in_place_wrong_}) {
      if (column < columns_.size() && found[column] != "0" && found[column] != "N/A") {
        fail("found #wrong " + found[column] + ", expected 0 or N/A: the test computed wrong values");
      }
    }
    if (point.bytes == Bytes(0)) {
      ++out_.left_out;
    } else if (!out_.curve.points.empty() && point.bytes <= out_.curve.points.back().bytes) {
      fail("found size " + found[0] + " after " + std::to_string(out_.curve.points.back().bytes.value) +
           ", expected sizes that ascend, of one type and one operation");
    } else {
      out_.curve.points.push_back(point);
    }
  }

  std::string file_;
  std::size_t line_ = 0;
  NcclTest out_;
  std::map<std::int64_t, std::string> hosts_;
  std::vector<std::string> columns_;
  std::size_t time_ = 0;
  std::size_t wrong_ = 0;
  std::size_t in_place_wrong_ = 0;
};

void check_wrong(format::Fields& body) {
  if (const auto wrong = body.optional("nwrong"); wrong && wrong->number() != 0) {
    wrong->fail_type("0 or null: the test computed wrong values");
  }
}

NcclTest read_json(const format::Cursor& root) {
  format::Fields fields(root);
  NcclTest out;
  const format::Cursor version = fields.required("version");
  if (const std::int64_t v = version.integer(0, 1'000'000); v < 1 || v > 2) version.fail_type("version 1 or 2");
  if (const auto v = fields.optional("nccl_version")) out.versions["nccl"] = version_text(v->integer(0, 1'000'000'000));
  const format::Cursor args = fields.required("args");
  if (args.elements() > 0) out.operation = operation_of(args.at(0).text());
  if (out.operation.empty()) out.operation = operation_of(root.file());
  if (out.operation.empty()) args.fail_type("a program of nccl-tests first");
  format::Fields config(fields.required("config"));
  // The list has one device per process, however many the process uses.
  const std::int64_t ranks_per_process =
      config.required("nthreads").integer(1, 1024) * config.required("ngpus").integer(1, 1024);
  const format::Cursor devices = config.required("devices");
  for (std::size_t i = 0; i < devices.elements(); ++i) {
    format::Fields device(devices.at(i));
    const std::string host = device.required("hostname").text();
    if (i == 0) out.device = device.required("device_info").text();
    const format::Cursor group = device.required("group");
    if (group.integer(0, kMostRanks) != 0) group.fail_type("0: all ranks must be in one test");
    if (static_cast<std::int64_t>(out.hosts.size()) + ranks_per_process > kMostRanks)
      devices.fail("more than 2^20 ranks");
    out.hosts.insert(out.hosts.end(), to_index(ranks_per_process), host);
  }
  if (out.hosts.empty()) devices.fail_type("a device");
  const format::Cursor results = fields.required("results");
  for (std::size_t i = 0; i < results.elements(); ++i) {
    format::Fields row(results.at(i));
    const format::Cursor size = row.required("size");
    format::Fields body(row.required("out_of_place"));
    const CurvePoint point{size.bytes(), Seconds(body.required("time").positive() * 1e-6)};
    check_wrong(body);
    if (const auto in_place = row.optional("in_place")) {
      format::Fields other(*in_place);
      check_wrong(other);
    }
    if (point.bytes == Bytes(0)) {
      ++out.left_out;
    } else if (!out.curve.points.empty() && point.bytes <= out.curve.points.back().bytes) {
      size.fail_type("sizes that ascend, of one type and one operation");
    } else {
      out.curve.points.push_back(point);
    }
  }
  if (out.curve.points.empty()) results.fail("found no row of measurements");
  if (const auto bounds = fields.optional("out_of_bounds")) {
    const format::Cursor okay = format::Fields(*bounds).required("okay");
    if (okay.text() != "true") okay.fail_type("\"true\": no values out of bounds");
  }
  return out;
}

/// Steps of the ring, and the share of the bytes that each rank sends.
std::pair<double, double> ring(const std::string& operation, int ranks) {
  const double n = ranks;
  if (operation == "all_reduce") return {2 * (n - 1), 2 * (n - 1) / n};
  return {n - 1, (n - 1) / n};
}

void set_ends(Link& link) {
  const auto set = [&link](const Curve& curve, double steps, double share) {
    const CurvePoint& last = curve.points.back();
    link.latency = curve.points.front().time / steps;
    link.bandwidth = last.bytes / last.time * share;
  };
  if (!link.send_receive.points.empty()) return set(link.send_receive, 1, 1);
  const auto of = [&](const char* operation, const std::map<int, Curve>& curves) {
    if (curves.empty()) return false;
    const auto& [ranks, curve] = *curves.rbegin();
    const auto [steps, share] = ring(operation, ranks);
    set(curve, steps, share);
    return true;
  };
  of("all_reduce", link.all_reduce) || of("all_gather", link.all_gather) || of("reduce_scatter", link.reduce_scatter);
}

}  // namespace

NcclTest parse_nccl_test(const std::string& text, const std::string& file) {
  if (!format::is_utf8(text)) throw FormatError(file + ": not UTF-8");
  if (text.starts_with("{")) {
    const format::Json json = format::parse_document(text, file);
    return read_json(format::Cursor(json, file));
  }
  TextReader reader(file);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) reader.take(line);
  return reader.done();
}

Topology measured_topology(const std::vector<NcclTest>& tests) {
  if (tests.empty()) throw std::invalid_argument("no tests");
  Topology out;
  out.device.name = tests.front().device;
  out.device.kind = DeviceKind::Gpu;
  Level node{"node", 0, {}};
  Level cluster{"cluster", 0, {}};
  for (const NcclTest& test : tests) {
    const int ranks = to_int(test.hosts.size());
    const std::string what = test.operation + " of " + std::to_string(ranks) + " ranks";
    const std::set<std::string> hosts(test.hosts.begin(), test.hosts.end());
    if (ranks < 2) throw std::invalid_argument(what + ", must be at least 2");
    if (test.device != out.device.name) {
      throw std::invalid_argument(what + ": found \"" + test.device + "\" and \"" + out.device.name + "\"");
    }
    if (hosts.size() > 1 && hosts.size() < test.hosts.size()) {
      throw std::invalid_argument(what + " on " + std::to_string(hosts.size()) +
                                  " hosts, expected one host, or one rank on each, as a level can express");
    }
    Level& level = hosts.size() == 1 ? node : cluster;
    level.count = std::max(level.count, ranks);
    Link& link = level.link;
    link.origin = LinkOrigin::Measured;
    const MonotoneFit fit = fit_monotone(test.curve);
    bool is_new = link.send_receive.points.empty();
    if (test.operation == "sendrecv") {
      link.send_receive = fit.curve;
    } else {
      auto& curves = test.operation == "all_reduce"   ? link.all_reduce
                     : test.operation == "all_gather" ? link.all_gather
                                                      : link.reduce_scatter;
      is_new = curves.emplace(ranks, fit.curve).second;
    }
    if (!is_new) throw std::invalid_argument(what + " appears twice for level \"" + level.name + "\"");
    if (fit.moved > 0) out.provenance.notes["fit of " + what] = moved_text(fit);
    if (test.left_out > 0) {
      out.provenance.notes["left out of " + what] = std::to_string(test.left_out) + " rows of 0 bytes";
    }
    out.provenance.versions.insert(test.versions.begin(), test.versions.end());
  }
  for (Level* level : {&node, &cluster}) {
    if (level->count == 0) continue;
    set_ends(level->link);
    out.levels.push_back(*level);
  }
  out.name = std::to_string(device_count(out)) + " x " + out.device.name + ", nccl-tests";
  out.provenance.device = out.device.name;
  validate(out);
  return out;
}

}  // namespace stagecraft::interchange
