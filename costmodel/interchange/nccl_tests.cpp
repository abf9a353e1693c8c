#include "costmodel/interchange/nccl_tests.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "costmodel/format/cursor.h"
#include "costmodel/format/escaping.h"
#include "costmodel/index.h"
#include "costmodel/links/collectives.h"
#include "costmodel/text/number.h"

namespace stagecraft::interchange {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

/// "all_reduce" of "./build/all_reduce_perf_mpi", "all_to_all" of "alltoall_perf"; empty if it is not a program of
/// nccl-tests.
std::string operation_of(const std::string& program) {
  const std::string name = program.substr(program.find_last_of('/') + 1);
  const std::size_t end = name.find("_perf");
  if (end == name.npos || end == 0) return "";
  const std::string operation = name.substr(0, end);
  return operation == "alltoall" ? "all_to_all" : operation;
}

/// NCCL's version code from 2.9 on: 22807 is 2.28.7.
std::string version_text(std::int64_t code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

/// `line` without the labels that launchers add.
std::string without_labels(std::string line) {
  static const std::regex tag(R"((\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[[^\[\]]*\]<std(out|err|diag)>: ?)");
  static const std::regex label(R"(^\s*(\d+: |\[\d+\] |\[pod/[^\]]*\] ))");
  constexpr std::size_t kLongest = 4096;  // std::regex recurses by character
  if (line.size() > kLongest) return line;
  if (line.find(">:") != line.npos) line = std::regex_replace(line, tag, " ");
  const std::size_t first = line.find_first_not_of(' ');
  const bool may_have_label = first != line.npos && (line[first] == '[' || std::isdigit(line[first]) != 0);
  return may_have_label ? std::regex_replace(line, label, "", std::regex_constants::format_first_only) : line;
}

/// The text form, line by line.
class TextReader {
 public:
  explicit TextReader(const std::string& file) : file_(file), named_(operation_of(file)) {
    if (!named_.empty()) return;
    const std::string name = file.substr(file.find_last_of('/') + 1);
    for (const auto& [operation, collective] : tested_collectives()) {
      if (name.starts_with(operation)) named_ = operation;
    }
    if (name.starts_with(kSendReceive)) named_ = kSendReceive;
  }

  void take(std::string line) {
    ++line_;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    line = without_labels(line);
    const std::vector<std::string> found = words(line);
    if (found.empty()) return;
    if (found[0].starts_with("#")) return take_comment(found, line);
    if (!columns_.empty() && is_row(found)) return take_row(found);
    for (const std::string& word : found) {
      if (const std::string operation = operation_of(word); !operation.empty()) named_ = operation;
    }
  }

  std::vector<NcclTest> done() {
    finish();
    if (tests_.empty()) fail("found no table, expected the line \"# size count type redop root time ...\"");
    return std::move(tests_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(file_ + ": line " + std::to_string(line_) + ": " + message);
  }

  /// Whether it has a size and a count.
  static bool is_row(const std::vector<std::string>& found) {
    return found.size() > 1 && number_in<double>(found[0]) && number_in<double>(found[1]);
  }

  /// Ends the run whose table was read, if any.
  void finish() {
    if (columns_.empty()) return;
    if (test_.operation.empty()) {
      fail("found no line \"# Collective test starting:\", expected a file named after its test: " +
           tested_operations());
    }
    for (const auto& [rank, host] : hosts_) {
      if (rank != static_cast<std::int64_t>(test_.hosts.size())) {
        fail("found no line of rank " + std::to_string(test_.hosts.size()) + " under \"# Using devices\"");
      }
      test_.hosts.push_back(host);
    }
    if (test_.hosts.empty()) fail("found no ranks under \"# Using devices\"");
    if (test_.curve.points.empty()) fail("found no row of measurements");
    tests_.push_back(std::exchange(test_, {}));
    columns_.clear();
    hosts_.clear();
  }

  void take_comment(const std::vector<std::string>& found, const std::string& line) {
    const auto begins = [&found](std::initializer_list<const char*> wanted) {
      return found.size() > wanted.size() && std::equal(wanted.begin(), wanted.end(), found.begin());
    };
    if (begins({"#", "Collective", "test", "starting:"})) {
      finish();
      test_.operation = operation_of(found[4]);
      if (test_.operation.empty()) fail("found test \"" + found[4] + "\", expected a program such as all_reduce_perf");
    } else if (begins({"#", "nccl-tests", "version"}) || begins({"#", "nThread"}) || begins({"#", "Using"})) {
      finish();
      if (found[1] == "Using") hosts_.clear();  // of a run that ended before its table
      if (found[1] != "nccl-tests") return;
      test_.versions["nccl-tests"] = found[3];
      const std::string key = "nccl-library=";
      if (found.back().starts_with(key)) {
        if (const auto code = number_in<std::int64_t>(found.back().substr(key.size())))
          test_.versions["nccl"] = version_text(*code);
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
    const std::int64_t rank = number_in<std::int64_t>(found[2]).value_or(-1);
    if (rank < 0 || rank >= kMostRanks) fail("found rank " + found[2]);
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
    if (rank == 0 && name != line.npos) test_.device = line.substr(line.find_first_not_of(' ', name + 1));
  }

  void take_header(const std::vector<std::string>& found) {
    finish();
    if (test_.operation.empty()) test_.operation = named_;
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
    // Before 2.11, the largest difference stood there, which is that of rounding.
    const bool is_old = bandwidth + 2 < columns_.size() && columns_[bandwidth + 2] == "error";
    wrong_ = is_old ? columns_.size() : wanted(bandwidth + 2, "#wrong");
    in_place_wrong_ = columns_.size();
    for (std::size_t i = wrong_ + 1; i < columns_.size(); ++i) {
      if (columns_[i] == "#wrong") in_place_wrong_ = i;
    }
  }

  void take_row(const std::vector<std::string>& found) {
    if (found.size() < columns_.size()) {
      fail("found " + std::to_string(found.size()) + " columns, expected " + std::to_string(columns_.size()));
    }
    CurvePoint point;
    point.bytes.value = number_in<std::int64_t>(found[0]).value_or(-1);
    if (point.bytes < Bytes(0) || point.bytes.value > format::Cursor::kMostBytes) {
      fail("found size " + found[0] + ", expected bytes");
    }
    const double microseconds = number_in<double>(found[time_]).value_or(0);
    if (microseconds <= 0) fail("found time " + found[time_] + ", expected microseconds above 0");
    point.time = Seconds(microseconds * 1e-6);
    for (const std::size_t column : {wrong_, in_place_wrong_}) {
      if (column >= columns_.size() || found[column] == "N/A") continue;
      const std::optional<std::int64_t> wrong = number_in<std::int64_t>(found[column]);
      if (!wrong) fail("found #wrong " + found[column] + ", expected a number or N/A");
      if (*wrong != 0) fail("found #wrong " + found[column] + ", expected 0 or N/A: the test computed wrong values");
    }
    if (point.bytes == Bytes(0)) {
      ++test_.left_out;
    } else if (!test_.curve.points.empty() && point.bytes <= test_.curve.points.back().bytes) {
      fail("found size " + found[0] + " after " + std::to_string(test_.curve.points.back().bytes.value) +
           ", expected sizes that ascend, of one type and one operation");
    } else {
      test_.curve.points.push_back(point);
    }
  }

  std::string file_;
  std::string named_;  ///< operation of the last program named outside of a run's own lines
  std::size_t line_ = 0;
  std::vector<NcclTest> tests_;
  NcclTest test_;
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
  if (out.operation.empty()) args.fail_type("a program of nccl-tests first, such as all_reduce_perf");
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

}  // namespace

const std::vector<std::pair<std::string, Collective>>& tested_collectives() {
  static const std::vector<std::pair<std::string, Collective>> table{{"all_reduce", Collective::AllReduce},
                                                                     {"all_gather", Collective::AllGather},
                                                                     {"reduce_scatter", Collective::ReduceScatter},
                                                                     {"all_to_all", Collective::AllToAll}};
  return table;
}

std::string tested_operations() {
  std::vector<std::string> names{kSendReceive};
  for (const auto& [name, collective] : tested_collectives()) names.push_back(name);
  std::sort(names.begin(), names.end());
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::vector<NcclTest> parse_nccl_tests(const std::string& text, const std::string& file) {
  if (!format::is_utf8(text)) throw FormatError(file + ": not UTF-8");
  if (text.starts_with("{")) {
    const format::Json json = format::parse_document(text, file);
    return {read_json(format::Cursor(json, file))};
  }
  TextReader reader(file);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) reader.take(line);
  return reader.done();
}

}  // namespace stagecraft::interchange
