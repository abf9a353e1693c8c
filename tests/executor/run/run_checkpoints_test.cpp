#include "executor/run/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/files/safetensors.h"
#include "executor/launch/rank_group.h"
#include "executor/run/run.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::run {
namespace {

using std::chrono::milliseconds;
using testing::cut_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::planned_model;
using testing::PlannedModel;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

/// A training on two ranks, each of which may have a folder of its own, as on two hosts without a common file system.
class RunCheckpointsOnHosts : public ::testing::Test {
 protected:
  RunCheckpointsOnHosts() {
    RunOptions trained;
    trained.steps = 2;
    trained.seed = kSeed;
    trained.checkpoint = options(0);
    trained.checkpoint.resume = false;
    (void)run_local(plan_, planned_.model, *planned_.data, trained, milliseconds(60000));
  }

  [[nodiscard]] std::string folder(int rank) const { return (files_.path() / std::to_string(rank)).string(); }
  [[nodiscard]] std::string manifest(int rank) const { return folder(rank) + "/step-2/manifest.json"; }
  [[nodiscard]] CheckpointOptions options(int rank) const {
    CheckpointOptions out;
    out.folder = folder(rank);
    out.resume = true;
    out.data = "synthetic";
    return out;
  }
  /// Copies rank 0's folder for rank 1, with another manifest.
  void copy(const std::function<void(format::CheckpointManifest&)>& change) const {
    fs::remove_all(folder(1));
    fs::copy(folder(0), folder(1), fs::copy_options::recursive);
    format::CheckpointManifest changed = format::parse_checkpoint(format::read_text(manifest(1)), manifest(1));
    change(changed);
    changed.manifest_crc32 = 0;
    changed.manifest_crc32 = files::crc32_of(format::checkpoint_json(changed));
    format::write_text(manifest(1), format::checkpoint_json(changed));
  }
  /// The first step of each rank, rank 1 having its folder.
  [[nodiscard]] std::vector<std::int64_t> resume() const {
    const BoundPlan plan(plan_);
    const BoundModel bound = bind_model(plan, planned_.model);
    const stage::OptimizerOptions optimizer;
    std::vector<std::int64_t> out(2, -1);
    launch::run_as_threads(channel::make_local_channels(2, milliseconds(60000)), [&](channel::Channel& channel) {
      const CheckpointOptions of_rank = options(channel.rank());
      const RunCheckpoints checkpoints(bound, of_rank, optimizer, kSeed, channel.rank(), channel);
      out[to_index(channel.rank())] = checkpoints.first_step();
      EXPECT_EQ(checkpoints.newest(), folder(channel.rank()) + "/step-2");
    });
    return out;
  }

  static constexpr std::uint64_t kSeed = 1;
  testing::CommandFolder files_;
  PlannedModel planned_ = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "3"}}, 3);
  Plan plan_ = cut_plan(planned_, {3}, {1, 1}, "1f1b", 2);
};

TEST_F(RunCheckpointsOnHosts, ResumeFromCopiesOfOneCheckpoint) {
  copy([](format::CheckpointManifest&) {});
  EXPECT_THAT(resume(), ElementsAre(2, 2));
}

// A rank loads neither the hash of the plan that wrote the checkpoint nor where that ran.
TEST_F(RunCheckpointsOnHosts, ResumeFromEqualStatesOfOtherPlansAndMachines) {
  copy([](format::CheckpointManifest& manifest) {
    manifest.plan_hash = "0123456789abcdef";
    manifest.provenance.date = "2020-01-01T00:00:00Z";
  });
  EXPECT_THAT(resume(), ElementsAre(2, 2));
}

TEST_F(RunCheckpointsOnHosts, RefuseAnotherCheckpointOfTheSameStep) {
  const std::vector<std::function<void(format::CheckpointManifest&)>> changes{
      [](format::CheckpointManifest& manifest) { manifest.seed = 2; },
      [](format::CheckpointManifest& manifest) { manifest.learning_rate *= 2; },
      [](format::CheckpointManifest& manifest) { manifest.loss_scale = 1024; },
      [](format::CheckpointManifest& manifest) { manifest.files.front().crc32 ^= 1U; },
  };
  for (const auto& change : changes) {
    copy(change);
    EXPECT_THAT([&] { (void)resume(); },
                ThrowsMessage<FormatError>(manifest(1) +
                                           ": rank 1 has another checkpoint of step 2 than rank 0; use a folder that "
                                           "all ranks share, or copy rank 0's " +
                                           folder(1) + "/step-2 to the host of rank 1"));
  }
}

TEST_F(RunCheckpointsOnHosts, NameACheckpointThatARankDoesNotHave) {
  fs::create_directories(folder(1));
  EXPECT_THAT([&] { (void)resume(); }, ThrowsMessage<FormatError>(HasSubstr(manifest(1))));
}

}  // namespace
}  // namespace stagecraft::run
