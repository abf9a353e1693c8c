#include "costmodel/project/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <regex>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/links/channel_traits.h"

namespace stagecraft::project {
namespace {

/// Composes the arguments of a command from keys.
class Command {
 public:
  explicit Command(const Project& project) : project_(&project) {}

  Command& add(std::vector<std::string> words) {
    words_.insert(words_.end(), words.begin(), words.end());
    return *this;
  }
  /// `option` with the key's value, if the file gives it: a flag alone, words joined by commas.
  Command& key(const std::string& section, const std::string& name, const std::string& option) {
    const KeyValue* value = project_->find(section, name);
    if (value == nullptr) return *this;
    if (const auto* flag = std::get_if<bool>(value)) return *flag ? add({option}) : *this;
    if (const auto* integer = std::get_if<std::int64_t>(value)) return add({option, std::to_string(*integer)});
    if (const auto* number = std::get_if<double>(value)) return add({option, fmt::format("{}", *number)});
    if (const auto* pair = std::get_if<std::array<double, 2>>(value))
      return add({option, fmt::format("{},{}", (*pair)[0], (*pair)[1])});
    if (const auto* words = std::get_if<std::vector<std::string>>(value))
      return words->empty() ? *this : add({option, fmt::format("{}", fmt::join(*words, ","))});
    return add({option, std::get<std::string>(*value)});
  }
  /// The same for a key with the option's name: --learning-rate of learning_rate.
  Command& key(const std::string& section, const std::string& option) {
    std::string name = option.substr(2);
    std::ranges::replace(name, '-', '_');
    return key(section, name, option);
  }
  /// `option` once for each of the key's words.
  Command& each_word(const std::string& section, const std::string& name, const std::string& option) {
    if (const KeyValue* value = project_->find(section, name)) {
      for (const std::string& word : std::get<std::vector<std::string>>(*value)) add({option, word});
    }
    return *this;
  }
  /// The words of [section] options, as they are.
  Command& more(const std::string& section) {
    if (const KeyValue* value = project_->find(section, "options")) add(std::get<std::vector<std::string>>(*value));
    return *this;
  }
  [[nodiscard]] const std::vector<std::string>& words() const { return words_; }

 private:
  const Project* project_;
  std::vector<std::string> words_;
};

/// Options of the optimizer and the seed, which profile takes too; with `all`, the others of [training].
void add_training(Command& command, bool all) {
  for (const char* option :
       {"--optimizer", "--learning-rate", "--momentum", "--weight-decay", "--betas", "--eps", "--dampening",
        "--nesterov", "--amsgrad", "--alpha", "--centered", "--rho", "--lr-decay", "--initial-accumulator-value",
        "--momentum-decay", "--decoupled-weight-decay", "--ema-decay", "--seed"}) {
    command.key("training", option);
  }
  if (!all) return;
  command.each_word("training", "group", "--group");
  for (const char* option :
       {"--rate-schedule", "--warmup-steps", "--last-rate", "--lr-power", "--lr-step-size", "--lr-gamma",
        "--lr-patience", "--lr-threshold", "--pct-start", "--div-factor", "--final-div-factor", "--anneal-strategy",
        "--clip-norm", "--loss-scale", "--loss-scale-growth-interval"}) {
    command.key("training", option);
  }
}

/// Makes the steps one by one, each with the documents of those before it.
class Maker {
 public:
  Maker(const Project& project, const FindExample& find_example)
      : p_(project), files_(files_of(project)), untrusted_(project.flag("cluster", "accept_untrusted")) {
    const std::string topology = p_.text("cluster", "topology", "this-machine");
    measured_links_ = topology == "this-machine";
    graph_ = p_.text("model", "graph", files_.graph);
    topology_ = measured_links_ ? files_.topology : topology;
    if (topology.starts_with("example:")) {
      try {
        topology_ = find_example(topology.substr(8));
      } catch (const std::invalid_argument& e) {
        throw InputError(kind_of(e), std::string("[cluster] topology: ") + e.what());
      }
    }
  }

  std::vector<ProjectStep> steps() {
    if (p_.find("model", "graph") == nullptr) profile();
    if (measured_links_) links();
    if (p_.find("cluster", "estimate") != nullptr) estimate();
    plan();
    predict();
    if (p_.has("run")) {
      run();
      if (p_.has("evaluate")) evaluate();
      compare();
    }
    report();
    return std::move(steps_);
  }

 private:
  ProjectStep& step(const std::string& name, const Command& command) {
    ProjectStep& out = steps_.emplace_back();
    out.name = name;
    out.arguments = command.words();
    if (untrusted_ && (name == "profile" || name == "links" || name == "plan" || name == "predict")) {
      out.arguments.emplace_back("--accept-untrusted");
      out.unhashed = {"--accept-untrusted"};
    }
    return out;
  }
  /// Whether the ranks are threads of one process.
  bool connects_threads() const {
    const ChannelTraits* channel = find_channel_traits(p_.text("cluster", "channel", ""));
    return channel != nullptr && channel->connects_threads;
  }
  bool cuda() const { return p_.text("cluster", "device", "cpu") == "cuda"; }
  std::string devices() const { return std::to_string(p_.integer("cluster", "devices", 2)); }

  void profile() {
    const std::string model = p_.text("model", "name", "");
    Command c(p_);
    c.add({model});
    if (const KeyValue* options = p_.find("model", "options")) {
      for (const auto& [name, value] : std::get<std::map<std::string, std::string>>(*options))
        c.add({"--set", name + "=" + value});
    }
    c.key("model", "layers", "--layers").key("model", "loss", "--loss").key("model", "loss_output", "--loss-output");
    c.each_word("model", "inputs", "--input").each_word("model", "input_ranges", "--input-range");
    c.key("model", "microbatch", "--microbatch").key("model", "dtype", "--dtype");
    for (const char* option : {"--parameter-dtype", "--gradient-dtype", "--moment-dtype"}) c.key("model", option);
    c.key("model", "allow_tf32", "--allow-tf32").key("data", "source", "--data").key("cluster", "device", "--device");
    c.key("cluster", "threads", "--threads");
    add_training(c, false);
    c.key("profile", "max_seconds", "--max-seconds").key("profile", "concurrent", "--concurrent");
    if (p_.find("profile", "concurrent") == nullptr && measured_links_ && !cuda()) c.add({"--concurrent", devices()});
    c.more("profile").add({"-o", files_.graph});
    ProjectStep& s = step("profile", c);
    if (is_model_file(model)) s.inputs = {model};
    s.data = data_files(p_.text("data", "source", ""));
    s.outputs = {files_.graph};
  }

  void links() {
    Command c(p_);
    if (cuda()) {
      c.key("cluster", "devices", "--ranks").add({"--channel", p_.text("cluster", "channel", "nccl")});
    } else {
      c.add({"--ranks", devices()});
      if (!connects_threads()) c.add({"--spawn"});
      c.key("cluster", "channel", "--channel").key("cluster", "threads", "--threads");
    }
    c.key("links", "seconds", "--seconds").key("links", "max_bytes", "--max-bytes").more("links");
    step("links", c.add({"-o", files_.topology})).outputs = {files_.topology};
  }

  void estimate() {
    Command c(p_);
    c.add({graph_}).key("cluster", "estimate", "--device").add({"-o", files_.estimated_graph});
    ProjectStep& s = step("estimate", c);
    s.inputs = {graph_};
    s.outputs = {graph_ = files_.estimated_graph};
  }

  void plan() {
    Command c(p_);
    c.add({graph_, topology_}).key("plan", "strategy", "--strategy").key("plan", "schedule", "--schedule");
    c.key("plan", "stages", "--stages").key("plan", "chunks", "--chunks").key("plan", "replicas", "--replicas");
    c.key("plan", "split_at", "--split-at").key("plan", "microbatches", "--microbatches");
    if (p_.find("plan", "global_batch") != nullptr) {
      c.add({"--microbatches",
             std::to_string(p_.integer("plan", "global_batch", 1) / p_.integer("model", "microbatch", 1))});
    }
    c.key("plan", "memory_limit", "--memory-limit").key("plan", "recompute", "--recompute");
    c.key("plan", "recompute_every", "--recompute-every");
    c.key("plan", "gradient_bucket_bytes", "--gradient-bucket-bytes").key("plan", "shard", "--shard");
    c.key("plan", "time_limit", "--time-limit");
    if (searches_settings()) c.add({"--settings", "best"});
    c.key("plan", "accept_other_device", "--accept-other-device").more("plan").add({"-o", files_.plan});
    ProjectStep& s = step("plan", c);
    s.inputs = {graph_, topology_};
    const std::string schedule = p_.text("plan", "schedule", "");
    if (schedule.starts_with("csv:")) s.inputs.push_back(schedule.substr(4));
    s.outputs = {files_.plan};
  }

  /// Whether `plan` chooses schedule, recomputation and gradient buckets: if the file says so, and by default where
  /// nothing else says how stages are chosen.
  bool searches_settings() const {
    const std::string strategy = p_.text("plan", "strategy", "optimal");
    const bool is_open = strategy == "optimal" && p_.find("plan", "split_at") == nullptr &&
                         p_.find("plan", "options") == nullptr && !p_.text("plan", "schedule", "").starts_with("csv:");
    return p_.text("plan", "settings", is_open ? "best" : "given") == "best";
  }

  void predict() {
    Command c(p_);
    c.add({graph_, topology_, files_.plan}).key("predict", "calibration", "--calibration");
    c.key("plan", "accept_other_device", "--accept-other-device").more("predict").add({"-o", files_.prediction});
    if (p_.flag("output", "traces")) c.add({"--trace", files_.folder + "/predicted-trace.json"});
    ProjectStep& s = step("predict", c);
    s.inputs = {graph_, topology_, files_.plan};
    if (const std::string file = p_.text("predict", "calibration", ""); !file.empty()) s.inputs.push_back(file);
    s.outputs = {files_.prediction};
    if (p_.flag("output", "traces")) s.outputs.push_back(files_.folder + "/predicted-trace.json");
  }

  void run() {
    Command training(p_);
    training.add({files_.plan}).key("data", "source", "--data").key("cluster", "device", "--device");
    training.key("cluster", "threads", "--threads");
    add_training(training, true);
    training.key("run", "weights", "--weights").key("run", "on_nonfinite", "--on-nonfinite");
    training.key("run", "--deterministic").key("run", "check", "--check").more("run");
    Command c = training;
    c.key("cluster", "channel", "--channel");
    if (p_.find("cluster", "hosts") != nullptr) {
      c.key("cluster", "--hosts").key("cluster", "--remote-shell").add({"--logs", files_.run_folder + "/logs"});
    } else if (!connects_threads()) {
      c.add({"--spawn"});
    }
    c.key("run", "steps", "--steps").key("run", "epochs", "--epochs").key("run", "log_every", "--log-every");
    c.key("run", "--validate-data").key("run", "--validate-every").key("run", "--validate-samples");
    c.key("run", "--timeout");
    if (p_.flag("run", "checkpoint", true)) {
      c.add({"--checkpoint", files_.checkpoints, "--resume"}).key("run", "checkpoint_every", "--checkpoint-every");
      c.key("run", "keep", "--keep").key("run", "restart", "--restart");
    }
    c.add({"--metrics", files_.metrics, "-o", files_.measured});
    if (p_.flag("output", "tensorboard")) c.add({"--tensorboard", files_.tensorboard});
    if (p_.flag("output", "traces")) c.add({"--trace", files_.run_folder + "/trace.json"});
    ProjectStep& s = step("run", c);
    s.training = training.words();
    s.training.push_back(p_.find("run", "epochs") == nullptr ? "steps" : "epochs");
    s.length = p_.integer("run", "epochs", p_.integer("run", "steps", 10));
    s.inputs = {files_.plan};
    if (const std::string file = p_.text("run", "weights", ""); !file.empty()) s.inputs.push_back(file);
    if (const std::string file = p_.text("model", "name", ""); is_model_file(file)) s.inputs.push_back(file);
    s.data = data_files(p_.text("data", "source", ""));
    for (const std::string& file : data_files(p_.text("run", "validate_data", ""))) {
      if (std::ranges::find(s.data, file) == s.data.end()) s.beside.push_back(file);
    }
    s.data.insert(s.data.end(), s.beside.begin(), s.beside.end());
    s.outputs = {files_.measured};
  }

  void evaluate() {
    Command c(p_);
    c.add({files_.checkpoints}).key("evaluate", "source", "--data").key("evaluate", "samples", "--samples");
    c.key("cluster", "device", "--device").more("evaluate").add({"-o", files_.evaluation});
    ProjectStep& s = step("evaluate", c);
    s.inputs = {files_.measured};
    s.data = data_files(p_.text("evaluate", "source", ""));
    s.outputs = {files_.evaluation};
  }

  void compare() {
    ProjectStep& s = step("compare", Command(p_).add({files_.prediction, files_.measured}));
    s.inputs = s.arguments;
    s.outputs = {s.standard_output = files_.comparison};
  }

  void report() {
    Command c(p_);
    c.add({graph_, topology_, files_.plan, files_.prediction});
    if (p_.has("run")) c.add({files_.measured});
    const std::vector<std::string> inputs = c.words();
    c.add({"-o", files_.report});
    if (p_.flag("output", "pictures")) {
      c.add({"--pictures", files_.folder + "/pictures"});
      if (p_.flag("output", "png")) c.add({"--png"});
    }
    ProjectStep& s = step("report", c);
    s.inputs = inputs;
    s.outputs = {files_.report};
  }

  const Project& p_;
  Files files_;
  bool untrusted_;
  bool measured_links_ = true;
  std::string graph_, topology_;
  std::vector<ProjectStep> steps_;
};

}  // namespace

std::vector<std::string> data_files(const std::string& source) {
  const std::size_t colon = source.find(':');
  if (colon == std::string::npos) return {};
  const std::string kind = source.substr(0, colon);
  std::string rest = source.substr(colon + 1);
  if (kind == "images" || kind == "tokens") {
    const std::regex option(",[a-z]+=");
    std::smatch first;
    return {std::regex_search(rest, first, option) ? first.prefix().str() : rest};
  }
  if (!kind.starts_with("tensors") || rest.find('=') == std::string::npos) return {rest};
  std::vector<std::string> out;
  while (!rest.empty()) {  // NAME=FILE.npy,NAME=FILE.npy
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string one = rest.substr(0, comma);
    out.push_back(one.substr(one.find('=') + 1));
    rest.erase(0, std::min(comma + 1, rest.size()));
  }
  return out;
}

bool is_model_file(const std::string& model) { return model.find_first_of("./") != std::string::npos; }

Files files_of(const Project& project) {
  Files out;
  out.folder = project.text("output", "folder", "stagecraft-out");
  while (out.folder.size() > 1 && out.folder.ends_with('/')) out.folder.pop_back();
  const auto in = [&](const char* name) { return out.folder + "/" + name; };
  out.state = in("steps.json");
  out.logs = in("logs");
  out.graph = in("graph.json");
  out.estimated_graph = in("estimated-graph.json");
  out.topology = in("topology.json");
  out.plan = in("plan.json");
  out.prediction = in("prediction.json");
  out.report = in("report.html");
  out.comparison = in("comparison.txt");
  out.run_folder = in("run");
  out.checkpoints = out.run_folder + "/checkpoints";
  out.metrics = out.run_folder + "/metrics.jsonl";
  out.tensorboard = out.run_folder + "/tensorboard";
  out.measured = out.run_folder + "/measured.json";
  out.evaluation = out.run_folder + "/evaluation.json";
  return out;
}

std::vector<ProjectStep> steps_of(const Project& project, const FindExample& find_example) {
  return Maker(project, find_example).steps();
}

const std::vector<std::string>& step_names() {
  static const std::vector<std::string> names{"profile", "links",    "estimate", "plan",  "predict",
                                              "run",     "evaluate", "compare",  "report"};
  return names;
}

}  // namespace stagecraft::project
