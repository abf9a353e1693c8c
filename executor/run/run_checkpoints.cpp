#include "executor/run/run_checkpoints.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/index.h"
#include "costmodel/version.h"
#include "executor/channel/control_tags.h"
#include "executor/intake/layer_sources.h"
#include "executor/stage/gradients/finite.h"

namespace stagecraft::run {
namespace {

constexpr std::int64_t kNoCheckpoint = -1;

at::Tensor numbers(const std::vector<std::int64_t>& values) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::ranges::copy(values, out.data_ptr<std::int64_t>());
  return out;
}

/// The manifest of a checkpoint after `done` steps, without its files.
format::CheckpointManifest manifest_of(const BoundModel& bound, const CheckpointOptions& options,
                                       const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                                       std::int64_t done) {
  const Plan& plan = bound.plan.plan();
  const model::Model& model = bound.model;
  format::CheckpointManifest out;
  out.step = done;
  out.seed = seed;
  out.model = model.name;
  out.options = model.options;
  out.optimizer = optimizer.name;
  out.learning_rate = optimizer.learning_rate;
  out.momentum = optimizer.momentum;
  out.weight_decay = optimizer.weight_decay;
  out.beta1 = optimizer.beta1;
  out.beta2 = stage::beta2_of(optimizer);
  out.epsilon = stage::epsilon_of(optimizer);
  out.optimizer_settings = stage::further_settings(with_types(optimizer, plan));
  out.data = options.data;
  out.microbatches = plan.microbatches;
  out.microbatch_samples = *plan.microbatch_samples;
  out.samples = done * out.microbatches * out.microbatch_samples;
  out.plan_hash = fmt::format("{:016x}", format::plan_hash(bound.plan));
  out.provenance.tool = "stagecraft-run " + std::string(version());
  return out;
}

/// A checksum of a checkpoint's content: of its manifest without what does not change what a run loads.
std::int64_t content_digest(format::CheckpointManifest manifest) {
  manifest.manifest_crc32 = 0;
  manifest.plan_hash.clear();
  manifest.provenance = {};
  return files::crc32_of(format::checkpoint_json(manifest));
}

/// Whether getting the result would not wait; false if there is none.
template <class Result>
bool is_ready(const std::future<Result>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// Replaces the pieces' values, which share memory with the model and its optimizer, by copies in host memory. Those
/// from a GPU are enqueued on the current stream, and have arrived when the returned event has occurred.
std::unique_ptr<c10::Event> copy_to_host(std::vector<checkpoint::StatePiece>& pieces) {
  std::optional<c10::Device> gpu;
  for (checkpoint::StatePiece& piece : pieces) {
    const at::Tensor values = std::exchange(piece.values, {});
    if (!values.is_cpu()) gpu = values.device();
    piece.values = at::empty_like(values, values.options().device(at::kCPU).pinned_memory(!values.is_cpu()));
    piece.values.copy_(values, /*non_blocking=*/true);
  }
  if (!gpu) return nullptr;
  auto copied = std::make_unique<c10::Event>(gpu->type());
  copied->record(at::accelerator::getCurrentStream(gpu->index()));
  return copied;
}

/// Writes the file of `rank`, once the pieces have been `copied`; without pieces only that of rank 0. For a thread of
/// its own, which leaves the processors to the training: it mostly works while the training waits.
RunCheckpoints::Part write_part(const std::string& partial, int rank, std::vector<checkpoint::StatePiece> pieces,
                                std::unique_ptr<c10::Event> copied) {
  constexpr int kYielding = 10;
  [[maybe_unused]] const int ignored = ::nice(kYielding);  // on Linux, of this thread alone
  if (copied) copied->synchronize();
  RunCheckpoints::Part out;
  out.finite = std::ranges::all_of(pieces, [](const auto& piece) { return stage::all_finite(piece.values); });
  if (rank == 0 || !pieces.empty()) out.file = checkpoint::write_pieces(partial, rank, pieces);
  return out;
}

/// Refuses a checkpoint of another run than that of `ours`. `trains`: whether the run continues training.
void check_fits(const checkpoint::FoundCheckpoint& found, const format::CheckpointManifest& ours, bool trains) {
  const format::CheckpointManifest& theirs = found.manifest;
  const auto refuse = [&](const char* pointer, const auto& is, const auto& wanted) {
    throw FormatError(ErrorKind::OtherCheckpoint,
                      fmt::format("{}/manifest.json: /{}: found {}, this run has {}", found.path, pointer, is, wanted));
  };
  const auto quoted = [](const std::string& text) { return '"' + text + '"'; };
  const auto set = [](const std::map<std::string, std::string>& options) {
    std::string out = "{";
    for (const auto& [key, value] : options) out += (out.size() > 1 ? ", " : "") + key + "=" + value;
    return out + "}";
  };
  if (theirs.model != ours.model) refuse("model", quoted(theirs.model), quoted(ours.model));
  if (theirs.options != ours.options) refuse("options", set(theirs.options), set(ours.options));
  if (!trains) return;
  if (theirs.seed != ours.seed) refuse("seed", theirs.seed, ours.seed);
  if (theirs.data != ours.data) refuse("data", quoted(theirs.data), quoted(ours.data));
  if (theirs.samples != ours.samples) refuse("samples", theirs.samples, ours.samples);
  if (theirs.optimizer != ours.optimizer) refuse("optimizer/name", quoted(theirs.optimizer), quoted(ours.optimizer));
  if ((theirs.momentum == 0) != (ours.momentum == 0)) refuse("optimizer/momentum", theirs.momentum, ours.momentum);
  if (stage::keeps(checkpoint::saved_optimizer(theirs)) != stage::keeps(checkpoint::saved_optimizer(ours)))
    refuse("optimizer/settings", set(theirs.optimizer_settings), set(ours.optimizer_settings));
}

}  // namespace

void check_can_resume(const BoundModel& bound, const CheckpointOptions& options,
                      const stage::OptimizerOptions& optimizer, std::uint64_t seed) {
  if (!options.resume || options.folder.empty() || !bound.plan.plan().microbatch_samples) return;
  const std::vector<std::int64_t> steps =
      checkpoint::finite_checkpoints(options.folder, std::numeric_limits<std::int64_t>::max());
  if (steps.empty()) return;
  const std::string path = checkpoint::checkpoint_path(options.folder, steps.back());
  const std::string name = path + "/manifest.json";
  const checkpoint::FoundCheckpoint found{path, format::parse_checkpoint(format::read_text(name), name)};
  check_fits(found, manifest_of(bound, options, optimizer, seed, found.manifest.step), bound.plan.schedule().trains);
}

RunCheckpoints::RunCheckpoints(const BoundModel& bound, const CheckpointOptions& options,
                               const stage::OptimizerOptions& optimizer, std::uint64_t seed, int rank,
                               channel::Channel& channel)
    : bound_(bound),
      options_(options),
      optimizer_(optimizer),
      seed_(seed),
      rank_(rank),
      channel_(channel),
      trains_(bound.plan.schedule().trains) {
  const model::Model& model = bound.model;
  if (!options.folder.empty()) {
    if (trains_) checkpoint::check_can_save(model);
    if (!trains_ && !options.resume) {
      throw std::invalid_argument(
          "schedule \"" + bound.plan.plan().schedule +
          "\" does not train and writes no checkpoints; use --resume to evaluate the newest one");
    }
    find();
  }
  if (!files_ && !options.weights.empty()) {
    const checkpoint::TiedNames tied = intake::tied_names(model.name);
    files_ = checkpoint::open_weights(options.weights, model, tied);
    weights_alone_ = true;
    checkpoint::check_weight_names(*files_, model, tied);
  }
}

format::CheckpointManifest RunCheckpoints::manifest(std::int64_t done) const {
  return manifest_of(bound_, options_, optimizer_, seed_, done);
}

void RunCheckpoints::find() {
  std::int64_t step = kNoCheckpoint;
  std::int64_t digest = 0;
  if (rank_ == 0) {
    if (trains_) checkpoint::check_checkpoint_folder(options_.folder, options_.resume);
    if (options_.resume) {
      const auto found = checkpoint::latest_checkpoint(options_.folder, [&](const std::string& text) { tell(text); });
      if (found) {
        check_fits(*found, manifest(found->manifest.step), trains_);
        step = found->manifest.step;
        digest = content_digest(found->manifest);
        finite_ = checkpoint::finite_checkpoints(options_.folder, step);
        tell((trains_ ? "resuming from " : "evaluating ") + found->path);
      } else if (trains_) {
        tell(fmt::format("no complete checkpoint in {}; starting at step 0", options_.folder));
      } else {
        throw FormatError(ErrorKind::NoCheckpoint, options_.folder + ": no complete checkpoint to evaluate");
      }
    }
    std::vector<std::unique_ptr<channel::Sending>> sends;
    for (int other = 1; other < channel_.ranks(); ++other)
      sends.push_back(channel_.send(numbers({step, digest}), other, channel::kFirstStepTag));
    for (const auto& sending : sends) sending->wait();
  } else {
    const at::Tensor arrived = channel_.receive({{2}, at::kLong}, 0, channel::kFirstStepTag)->wait();
    step = arrived.const_data_ptr<std::int64_t>()[0];
    digest = arrived.const_data_ptr<std::int64_t>()[1];
  }
  if (step == kNoCheckpoint) return;
  if (finite_.empty()) finite_ = {step};
  if (trains_) first_step_ = step;
  open(step, digest);
}

void RunCheckpoints::open(std::int64_t step, std::int64_t digest) {
  const std::string path = checkpoint::checkpoint_path(options_.folder, step);
  const std::string name = path + "/manifest.json";
  const format::CheckpointManifest found = format::parse_checkpoint(format::read_text(name), name);
  if (content_digest(found) != digest) {
    throw FormatError(ErrorKind::OtherCheckpoint,
                      fmt::format("{}: rank {} has another checkpoint of step {} than rank 0; use a folder that all "
                                  "ranks share, or copy rank 0's {} to the host of rank {}",
                                  name, rank_, step, path, rank_));
  }
  if (found.loss_scale) loss_scale_ = {*found.loss_scale, found.loss_scale_steps};
  if (found.plateau) {
    plateau_ = {.factor = found.plateau->factor, .waited = found.plateau->waited};
    if (found.plateau->best) plateau_->best = *found.plateau->best;
  }
  files_.emplace(path, found);
  checkpoint::check_names(*files_, bound_.model, checkpoint::saved_optimizer(found));
  if (!trains_) (void)checkpoint::use_averages(*files_);
}

void RunCheckpoints::load(stage::StageProgram& program, stage::Optimizer& optimizer) const {
  if (!files_) return;
  const auto updated = [&](const std::string& name) { return owned_range(bound_.homes.at(name), rank_); };
  if (weights_alone_ || !trains_) {
    checkpoint::load_weights(*files_, program, &optimizer, updated);
  } else {
    checkpoint::load_state(*files_, program, optimizer, updated);
  }
}

bool RunCheckpoints::after_step(StageWorker& worker, std::int64_t done, std::int64_t steps) {
  if (options_.folder.empty() || !trains_) return false;
  const bool due = done == steps || done % options_.every == 0;
  if (is_ready(committed_)) committed_.get();
  if (writing_ && !writing_->written && (due || is_ready(writing_->part))) writing_->written = writing_->part.get();
  bool stop = false;
  bool unfinished = false;
  if (options_.stop || writing_) {
    at::Tensor ranks = at::empty({2}, at::kFloat);  // those asked to stop, and those that are still writing
    ranks.data_ptr<float>()[0] = options_.stop && options_.stop() ? 1 : 0;
    ranks.data_ptr<float>()[1] = writing_ && !writing_->written ? 1 : 0;
    channel_
        .start({.kind = Collective::AllReduce,
                .values = ranks,
                .members = channel::all_ranks(channel_),
                .tag = channel::kStopTag})
        ->wait();
    stop = ranks.const_data_ptr<float>()[0] > 0;
    unfinished = ranks.const_data_ptr<float>()[1] > 0;
  }
  const bool last = stop || done == steps;
  if (writing_ && (last || !unfinished)) finish();
  if (last || due) begin(worker, done);
  if (last) {
    finish();
    if (committed_.valid()) committed_.get();
  }
  return stop;
}

void RunCheckpoints::begin(StageWorker& worker, std::int64_t done) {
  channel_.activity().begin({.action = "checkpoint", .step = done - 1});
  if (committed_.valid()) committed_.get();
  const std::string partial = rank_ == 0 ? checkpoint::begin_checkpoint(options_.folder, done)
                                         : checkpoint::partial_path(options_.folder, done);
  channel_.barrier();
  format::CheckpointManifest written = manifest(done);
  if (const stage::LossScaler* const scaler = worker.loss_scaler()) {
    written.loss_scale = scaler->state().scale;
    written.loss_scale_steps = scaler->state().steps;
  }
  if (saved_plateau_) {
    written.plateau = {.factor = saved_plateau_->factor, .best = {}, .waited = saved_plateau_->waited};
    if (std::isfinite(saved_plateau_->best)) written.plateau->best = saved_plateau_->best;
  }
  std::vector<checkpoint::StatePiece> pieces;
  std::set<std::string> divided;  // several stages of a rank may have a tied parameter
  worker.visit_stages([&](int stage, stage::StageProgram& program, stage::Optimizer& optimizer) {
    const auto owned = [&](const std::string& name, std::int64_t values) {
      const ParameterHome& home = bound_.homes.at(name);
      ValueRange range{0, values};
      bool writes = home.stage == stage && home.owner == rank_;
      if (!home.parts.empty()) {
        range = owned_range(home, rank_);
        writes = range.count > 0 && divided.insert(name).second;
      }
      return writes ? std::optional(range) : std::nullopt;
    };
    checkpoint::collect_state(program, optimizer, owned, pieces);
  });
  std::unique_ptr<c10::Event> copied = copy_to_host(pieces);
  writing_.emplace(std::move(written),
                   std::async(std::launch::async, write_part, partial, rank_, std::move(pieces), std::move(copied)));
}

void RunCheckpoints::finish() {
  Writing writing = *std::exchange(writing_, std::nullopt);
  format::CheckpointManifest& written = writing.manifest;
  channel_.activity().begin({.action = "checkpoint", .step = written.step - 1});
  auto [file, finite] = writing.written ? *writing.written : writing.part.get();
  if (rank_ != 0) {
    channel_.send(numbers({file.bytes.value, file.crc32, finite ? 1 : 0}), 0, channel::kReportTag)->wait();
    if (finite) finite_ = {written.step};
    return;
  }
  written.files = {file};
  for (int other = 1; other < channel_.ranks(); ++other) {
    const at::Tensor arrived = channel_.receive({{3}, at::kLong}, other, channel::kReportTag)->wait();
    const std::int64_t* values = arrived.const_data_ptr<std::int64_t>();
    finite = finite && values[2] == 1;
    if (values[0] > 0)
      written.files.push_back({checkpoint::part_name(other), Bytes(values[0]), static_cast<std::uint32_t>(values[1])});
  }
  written.finite = finite;
  const auto stay = to_index(options_.keep - (finite ? 1 : 0));
  if (finite_.size() > stay) finite_.erase(finite_.begin(), finite_.end() - static_cast<std::ptrdiff_t>(stay));
  committed_ = std::async(std::launch::async, checkpoint::commit_checkpoint, options_.folder, written, finite_);
  if (finite) {
    finite_.push_back(written.step);
  } else {
    tell(fmt::format("{} contains infinities or NaNs; earlier checkpoints are kept",
                     checkpoint::checkpoint_path(options_.folder, written.step)));
  }
}

std::string RunCheckpoints::newest() const {
  return finite_.empty() ? "" : checkpoint::checkpoint_path(options_.folder, finite_.back());
}

void RunCheckpoints::tell(const std::string& text) const {
  if (options_.tell) options_.tell(text);
}

}  // namespace stagecraft::run
