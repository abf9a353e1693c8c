#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/launch/spawn.h"
#include "executor/run/run.h"
#include "executor/run/run_job.h"
#include "executor/run/run_report.h"
#include "executor/tool_options.h"

// The command line of stagecraft run, and what it says about a run.

namespace stagecraft {

/// The options.
struct RunCommand {
  std::string plan;
  std::string model;
  std::vector<std::string> set;
  std::string data = "synthetic";
  bool data_given = false;
  std::string validate_data;
  std::string channel;
  std::string device = "cpu";
  bool share_gpu = false;
  bool deterministic = false;
  bool allow_tf32 = false;
  bool spawn = false;
  std::string hosts;
  std::string remote_shell = launch::SpawnOptions{}.remote_shell;
  std::string logs;
  bool dry_run = false;
  int restarts = 0;
  std::vector<std::string> replan;  ///< graph and topology; empty: not given
  double timeout_s = 60;
  std::string output;
  std::string trace;
  bool force = false;
  run::RunOptions run;
  bool scales_loss = false;  ///< a loss-scale option was given
  bool steps_given = false;
  std::int64_t epochs = 0;  ///< 0: not given
  run::ReportOptions report;
  AgreedOptions agreed;                                    ///< which options ranks compare
  std::function<std::vector<std::string>()> agreed_lines;  ///< see AgreedOptions::lines
};

/// Declares the options, which fill `o`; it must outlive the app.
void add_run_options(CLI::App& app, RunCommand& o);

/// What the command runs. An unknown model or model option is a usage error of the option that named it.
[[nodiscard]] run::JobRequest job_request(const RunCommand& o);

/// A run is long: checks first whether its results can be written, and that they replace nothing that it reads. Throws
/// as format::check_outputs.
void check_outputs(const RunCommand& o);

/// Sets options that follow from the job, which must outlive the command, and refuses those that do not fit it: a usage
/// error, or std::invalid_argument if the plan is what does not fit.
void fit(RunCommand& o, const run::RunJob& job);

/// Whether the output is a file that can be replaced repeatedly; a pipe gets one document, at the end.
[[nodiscard]] bool saves_as_it_goes(const RunCommand& o);

/// The kind of device on which ranks compute, as the table of channels has it.
[[nodiscard]] std::string device_kind(const RunCommand& o);

/// What must be equal on all ranks before anything is sent: the plan, the model file, the contents of data files (see
/// files::fingerprint), and every option except those that are declared as per rank.
[[nodiscard]] std::vector<std::string> agreed_lines(const RunCommand& o, const BoundPlan& plan);

}  // namespace stagecraft
