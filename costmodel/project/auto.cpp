#include "costmodel/project/auto.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <set>
#include <vector>

#include "costmodel/accuracy/compare.h"
#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/format/escaping.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/steps_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/index.h"
#include "costmodel/project/process.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "costmodel/version.h"

namespace stagecraft::project {
namespace {

/// Of a file that may be too large to be read: its bytes and the time of its last change. A folder's own.
std::string data_hash(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return "";
  return fmt::format("{} bytes, changed at {}.{:09d}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

bool exists(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0;
}

/// The first difference between what was recorded and what is now; empty if there is none.
std::string difference(const format::StepRecord& then, const format::StepRecord& now) {
  if (!then.ended) return "it did not finish";
  if (then.version != now.version) return "it was run by version " + then.version;
  if (then.command != now.command) return "its command has changed";
  for (const auto& [path, hash] : now.inputs) {
    const auto before = then.inputs.find(path);
    if (before == then.inputs.end() || before->second != hash) return path + " has changed";
  }
  return then.inputs.size() == now.inputs.size() ? "" : "its inputs have changed";
}

/// A plan or prediction without its provenance, so that another command with the same result changes nothing; any other
/// text as it is.
std::string hashed_part(const std::string& text) {
  const std::string kind = format::text_kind(text);
  if (kind != "stagecraft.plan" && kind != "stagecraft.prediction") return text;
  format::Json document = format::Json::parse(text, nullptr, false);
  if (!document.is_object()) return text;
  document.erase("provenance");
  return document.dump();
}

namespace fs = std::filesystem;

constexpr int kStoppedWithCheckpoint = 75;  // of stagecraft run

void say(const std::string& text) { fmt::print(stderr, "stagecraft-auto: {}\n", text); }

/// The last line that is not empty: the cause of a failure.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t begin = text.find_last_of('\n', end) + 1;  // 0 if there is none
  return text.substr(begin, end + 1 - begin);
}

std::string parent_of(const std::string& path) { return fs::path(path).parent_path().string(); }

/// Keeps other processes out of a project's folder while it exists.
class Lock {
 public:
  explicit Lock(const std::string& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw FormatError(ErrorKind::CannotRead, folder + ": cannot open: " + std::strerror(errno));
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    ::close(descriptor_);
    throw FormatError(ErrorKind::CannotWrite, folder + ": another stagecraft auto is using it");
  }
  ~Lock() { ::close(descriptor_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FormatError(ErrorKind::CannotWrite, path + ": cannot create this folder: " + error.message());
}

class Doer {
 public:
  Doer(const Project& project, const AutoOptions& options)
      : options_(options), files_(files_of(project)), steps_(steps_of(project, options.find_example)) {
    first_ = options.from.empty() ? 0 : index_of(options.from);
    last_ = options.until.empty() ? steps_.size() - 1 : index_of(options.until);
    if (first_ > last_)
      throw std::invalid_argument("--until " + options.until + " comes before --from " + options.from);
    if (exists(files_.state)) records_ = format::parse_steps(format::read_text(files_.state), files_.state);
    for (std::size_t i = 0; i <= last_; ++i) {
      const ProjectStep& step = steps_[i];
      if (i < first_) {
        made_.insert(step.outputs.begin(), step.outputs.end());
        continue;
      }
      if (!options.dry_run && !options.program(step.name) && decide(step, record(step.name), again(i)).todo) {
        throw DeviceError(
            ErrorKind::MissingProgram,
            fmt::format(
                "step {} needs the program stagecraft-{}, which was not found{}", step.name, step.name,
                step.name == "profile" ? ": it was built without LibTorch. Build it with scripts/setup, or give "
                                         "[model] graph = \"graph.json\" instead of a name"
                : step.name == "plan"
                    ? ""
                    : ": it was built without LibTorch. Build it with scripts/setup, or stop before it with --until"));
      }
    }
  }

  int print() {
    std::set<std::string> changing;
    for (std::size_t i = 0; i <= last_; ++i) {
      const ProjectStep& step = steps_[i];
      if (i < first_) {
        fmt::print("# {}: left unchanged\n", step.name);
        continue;
      }
      Decision decision = decide(step, record(step.name), again(i));
      const auto changes = [&](const std::string& path) { return changing.contains(path); };
      if (const auto input = std::ranges::find_if(step.inputs, changes); !decision.todo && input != step.inputs.end())
        decision = {true, *input + " will change", !step.training.empty()};
      if (!decision.todo) {
        fmt::print("# {}: up to date\n", step.name);
        continue;
      }
      fmt::print("# {}: {}\n", step.name, decision.reason);
      if (!step.training.empty() && decision.new_training && exists(files_.run_folder))
        fmt::print("{}\n", format::shell_line({"mv", files_.run_folder, free_name(files_.run_folder)}));
      std::set<std::string> folders;
      for (const std::string& output : step.outputs) folders.insert(parent_of(output));
      for (const std::string& folder : folders) {
        if (folders_shown_.insert(folder).second && (!exists(folder) || folder == files_.run_folder))
          fmt::print("{}\n", format::shell_line({"mkdir", "-p", folder}));
      }
      fmt::print("{}\n", command(step));
      changing.insert(step.outputs.begin(), step.outputs.end());
    }
    return 0;
  }

  int perform() {
    make_folder(files_.folder);
    make_folder(files_.logs);
    const Lock lock(files_.folder);
    for (std::size_t i = 0; i <= last_; ++i) {
      const ProjectStep& step = steps_[i];
      position_ = fmt::format("[{}/{}] {}", i + 1, last_ + 1, step.name);
      if (i < first_) {
        say(position_ + ": left unchanged because of --from");
        continue;
      }
      const Decision decision = decide(step, record(step.name), again(i));
      if (!decision.todo) {
        say(position_ + ": up to date" + (decision.reason.empty() ? "" : "; " + decision.reason));
        continue;
      }
      if (step.name == "run" && !may_run(step)) return 1;
      if (const int status = perform(step, decision); status != 0) return status;
    }
    print_summary();
    return 0;
  }

 private:
  std::size_t index_of(const std::string& name) const {
    const auto at = std::ranges::find(steps_, name, &ProjectStep::name);
    if (at != steps_.end()) return to_index(at - steps_.begin());
    std::vector<std::string> names;
    for (const ProjectStep& step : steps_) names.push_back(step.name);
    throw InputError(ErrorKind::UnknownName, unknown_name("step of this project", name, names));
  }
  bool again(std::size_t i) const { return !options_.from.empty() && i >= first_; }
  const format::StepRecord* record(const std::string& name) const {
    const auto at = std::ranges::find(records_, name, &format::StepRecord::name);
    return at == records_.end() ? nullptr : &*at;
  }
  void keep(format::StepRecord record) {
    std::erase_if(records_, [&](const format::StepRecord& other) { return other.name == record.name; });
    records_.push_back(std::move(record));
    format::write_text(files_.state, format::steps_json(records_));
  }
  std::string command(const ProjectStep& step) const {
    std::string out = options_.call(step.name) + " " + format::shell_line(step.arguments);
    if (!step.standard_output.empty()) out += " > " + format::shell_line({step.standard_output});
    return out;
  }
  static std::string free_name(const std::string& path) {
    for (int i = 1;; ++i) {
      std::string name = path + "." + std::to_string(i);
      if (!exists(name)) return name;
    }
  }
  std::string log_of(const ProjectStep& step) const { return files_.logs + "/" + step.name + ".log"; }

  /// Asks on a terminal, because a run may take long and occupy other machines.
  bool may_run(const ProjectStep& step) const {
    if (options_.yes || ::isatty(STDIN_FILENO) != 1 || ::isatty(STDERR_FILENO) != 1) return true;
    const Seconds predicted = format::read_prediction(files_.prediction).iteration;
    const bool steps = step.training.back() == "steps";
    std::string how_long = fmt::format("{} {}", step.length, step.training.back());
    if (steps) how_long += fmt::format(", predicted {}", format_seconds(predicted * static_cast<double>(step.length)));
    fmt::print(stderr, "{}: {}. Train now? [Y/n] ", position_, how_long);
    std::string answer;
    if (!std::getline(std::cin, answer)) answer = "n";
    if (answer.empty() || answer == "y" || answer == "Y" || answer == "yes") return true;
    say("not run; to continue: " + options_.shown);
    return false;
  }

  int perform(const ProjectStep& step, const Decision& decision) {
    for (const std::string& input : step.inputs) {
      if (!made_.contains(input) || exists(input)) continue;
      throw FormatError(ErrorKind::CannotRead,
                        input + ": does not exist, and the steps before --from are not run; omit --from");
    }
    say(fmt::format("{}: {}", position_, decision.reason));
    if (!step.training.empty()) {
      if (decision.new_training && exists(files_.run_folder)) {
        const std::string name = free_name(files_.run_folder);
        fs::rename(files_.run_folder, name);
        say(fmt::format("{}: moved the previous training from {} to {}", position_, files_.run_folder, name));
      }
      make_folder(files_.run_folder);
    }
    say(command(step));
    const auto start = std::chrono::steady_clock::now();
    const DeferredSignals deferred;
    format::StepRecord record = record_of(step);
    keep(record);
    const Ended ended = run_process(*options_.program(step.name), step.arguments, log_of(step),
                                    "$ " + command(step) + "\n", !step.standard_output.empty());
    if (ended.status != 0) return failed(step, ended);
    if (!step.standard_output.empty()) format::write_text(step.standard_output, ended.output);
    for (const std::string& output : step.outputs) record.outputs[output] = file_hash(output);
    record.ended = true;
    keep(record);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    say(fmt::format("{}: done in {}", position_, format_seconds(Seconds(took.count()))));
    const std::optional<int> signal = ended.signal ? ended.signal : deferred.taken();
    if (!signal) return 0;
    say("interrupted; to continue: " + options_.shown);
    return 128 + *signal;
  }

  int failed(const ProjectStep& step, const Ended& ended) const {
    const bool saved = ended.status == kStoppedWithCheckpoint && step.name == "run";
    say(fmt::format("step {} {}", step.name,
                    saved          ? "was interrupted and saved a checkpoint"
                    : ended.signal ? "was interrupted"
                                   : fmt::format("failed with status {}", ended.status)));
    fmt::print(stderr, "  command:  {}\n  log:      {}\n  continue: {}{}\n", command(step), log_of(step),
               ended.signal ? "" : "fix the cause, then ", options_.shown);
    if (!ended.signal && last_line(format::read_text(log_of(step))).find("--accept-untrusted") != std::string::npos) {
      fmt::print(stderr, "  or:       {} --accept-untrusted   (accepts times measured on a busy machine)\n",
                 options_.shown);
    }
    if (saved) return ended.status;
    if (ended.signal) return 128 + *ended.signal;
    return ended.status == 2 ? 1 : ended.status;  // the project file is wrong, not the command line
  }

  void print_summary() const {
    const auto is_there = [&](const char* name, const std::string& file) {
      const auto at = std::ranges::find(steps_, std::string(name), &ProjectStep::name);
      return at != steps_.end() && to_index(at - steps_.begin()) <= last_ && exists(file);
    };
    std::string text;
    if (is_there("predict", files_.prediction)) {
      const Prediction prediction = format::read_prediction(files_.prediction);
      std::optional<Measurement> measured;
      if (is_there("run", files_.measured)) measured = format::read_measurement(files_.measured);
      text += summary_text(prediction, measured ? &*measured : nullptr);
    }
    if (is_there("run", files_.checkpoints)) text += "weights: " + files_.checkpoints + "\n";
    if (is_there("report", files_.report)) text += "report: " + files_.report + "\n";
    format::write_text("-", text);
  }

  const AutoOptions& options_;
  Files files_;
  std::vector<ProjectStep> steps_;
  std::size_t first_ = 0;
  std::size_t last_ = 0;
  std::set<std::string> made_;  ///< outputs of the steps before the first
  std::vector<format::StepRecord> records_;
  std::set<std::string> folders_shown_;
  std::string position_;
};

std::string error_text(std::optional<double> error) { return error ? fmt::format("{:+.1f} %", *error * 100) : "-"; }

Bytes most(const std::vector<RankMemory>& ranks) {
  Bytes out;
  for (const RankMemory& rank : ranks) out = std::max(out, rank.total);
  return out;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

}  // namespace

std::string file_hash(const std::string& path) {
  try {
    return format::text_hash(hashed_part(format::read_text(path)));
  } catch (const FormatError&) { return ""; }
}

format::StepRecord record_of(const ProjectStep& step) {
  format::StepRecord out;
  out.name = step.name;
  std::vector<std::string> words{step.name};
  std::ranges::copy_if(step.arguments, std::back_inserter(words), [&](const std::string& word) {
    return std::ranges::find(step.unhashed, word) == step.unhashed.end();
  });
  out.command = format::shell_line(words);
  out.version = version();
  out.ended = false;
  for (const std::string& path : step.inputs) out.inputs[path] = file_hash(path);
  for (const std::string& path : step.data) out.inputs[path] = data_hash(path);
  if (!step.training.empty()) {
    std::string all = format::shell_line(step.training) + "\n" + out.version + "\n";
    for (const auto& [path, hash] : out.inputs) {
      if (std::ranges::find(step.beside, path) == step.beside.end()) all += path + " " + hash + "\n";
    }
    out.training = format::StartedTraining{format::text_hash(all), step.length};
  }
  return out;
}

Decision decide(const ProjectStep& step, const format::StepRecord* recorded, bool again) {
  Decision out{true, again ? "asked for" : "not done yet", !step.training.empty()};
  if (recorded == nullptr) return out;
  const format::StepRecord now = record_of(step);
  if (!again) {
    std::string reason = difference(*recorded, now);
    const auto missing = std::ranges::find_if_not(step.outputs, exists);
    if (reason.empty() && missing != step.outputs.end()) reason = *missing + " is missing";
    if (reason.empty()) {
      out = {};
      for (const auto& [path, hash] : recorded->outputs) {
        if (file_hash(path) != hash) out.reason = path + " has changed since; it is kept";
      }
      return out;
    }
    out.reason = reason;
  }
  if (now.training && recorded->training && recorded->training->hash == now.training->hash) {
    const bool longer = now.training->length > recorded->training->length;
    out.new_training = recorded->ended && !longer;
  }
  return out;
}

int do_steps(const Project& project, const AutoOptions& options) {
  Doer doer(project, options);
  return options.dry_run ? doer.print() : doer.perform();
}

std::string summary_text(const Prediction& predicted, const Measurement* measured) {
  std::vector<TableColumn> columns{{"", true}, {"predicted"}};
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& name, const std::string& one, const std::string& other,
                       const std::string& error) {
    rows.push_back({name, one});
    if (measured != nullptr) rows.back().insert(rows.back().end(), {other, error});
  };
  const Bytes memory = most(predicted.timeline.memory);
  if (measured == nullptr) {
    row("step", format_seconds(predicted.iteration), "", "");
    if (predicted.samples_per_s) row("samples per second", fmt::format("{:.1f}", *predicted.samples_per_s), "", "");
    row("idle", fmt::format("{:.1f} %", predicted.bubble * 100), "", "");
    if (memory > Bytes(0)) row("peak memory", format_bytes(memory), "", "");
  } else {
    columns.insert(columns.end(), {{"measured"}, {"error"}});
    const Comparison c = compare(predicted, *measured);
    row("step", format_seconds(c.step.predicted), format_seconds(c.step.measured), error_text(c.step.error()));
    if (c.samples_per_s) {
      row("samples per second", fmt::format("{:.1f}", c.samples_per_s->predicted),
          fmt::format("{:.1f}", c.samples_per_s->measured), error_text(c.samples_per_s->error()));
    }
    std::vector<double> idle_predicted;
    std::vector<double> idle_measured;
    for (const BubbleComparison& rank : c.bubbles) {
      idle_predicted.push_back(rank.share.predicted);
      idle_measured.push_back(rank.share.measured);
    }
    row("idle in a run", fmt::format("{:.1f} %", mean(idle_predicted) * 100),
        fmt::format("{:.1f} %", mean(idle_measured) * 100),
        fmt::format("{:+.1f} pt", (mean(idle_predicted) - mean(idle_measured)) * 100));
    const Compared<Bytes> peak{memory, most(measured->timeline.memory)};
    if (memory > Bytes(0) && peak.measured > Bytes(0)) {
      row("peak memory", format_bytes(peak.predicted), format_bytes(peak.measured), error_text(peak.error()));
    }
  }
  return table_text(columns, rows, output_screen());
}

}  // namespace stagecraft::project
