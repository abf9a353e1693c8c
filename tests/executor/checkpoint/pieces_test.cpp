#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <numeric>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/run/run.h"
#include "tests/costmodel/documents.h"
#include "tests/support/models/laid_out_model.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::cut_plan;
using ::testing::HasSubstr;
using testing::planned_model;
using testing::PlannedModel;
using ::testing::ThrowsMessage;

class CheckpointPieces : public ::testing::Test {
 protected:
  [[nodiscard]] std::string folder(const std::string& name = "saved") const { return (files_.path() / name).string(); }
  /// Adds the slices of a tensor to what one rank writes.
  static void add(std::vector<StatePiece>& out, const std::string& name, const at::Tensor& tensor,
                  const std::vector<TensorSlice>& parts) {
    for (const TensorSlice& part : parts)
      out.push_back({name, tensor.sizes().vec(), part, files::narrowed(tensor, part)});
  }
  /// Makes `manifest` a checkpoint in `into` whose files the ranks write from `pieces`.
  static void commit(const std::string& into, format::CheckpointManifest manifest,
                     const std::vector<std::vector<StatePiece>>& pieces) {
    manifest.files.clear();
    const std::string partial = begin_checkpoint(into, manifest.step);
    for (const std::vector<StatePiece>& of_rank : pieces)
      manifest.files.push_back(write_pieces(partial, to_int(manifest.files.size()), of_rank));
    commit_checkpoint(into, manifest, {});
  }
  static files::TensorFiles opened(const std::string& path) { return {path, check_checkpoint(path)}; }
  [[nodiscard]] files::TensorFiles saved(const std::vector<std::vector<StatePiece>>& pieces) const {
    commit(folder(), full_checkpoint(), pieces);
    return opened(folder() + "/step-3");
  }
  /// Replaces the manifest of the checkpoint at `path`, with its checksum.
  static void rewrite(const std::string& path, format::CheckpointManifest manifest, int version) {
    const std::string now = "\"version\": 6";
    manifest.manifest_crc32 = 0;
    std::string text = format::checkpoint_json(manifest);
    text.replace(text.find(now), now.size(), "\"version\": " + std::to_string(version));
    const std::string zero = "\"00000000\"";
    text.replace(text.find(zero), zero.size(), fmt::format("\"{:08x}\"", files::crc32_of(text)));
    format::write_text(path + "/manifest.json", text);
  }

  testing::CommandFolder files_;
};

/// Small tensors of many kinds.
files::NamedTensors all_kinds() {
  return {{"matrix", at::arange(4, at::kFloat).view({2, 2})},
          {"turned", at::arange(4, at::kDouble).view({2, 2}).t()},
          {"cube", at::arange(8, at::kBFloat16).view({2, 2, 2})},
          {"complex", at::view_as_complex(at::arange(8, at::kFloat).view({4, 2}))},
          {"row", at::arange(5, at::kLong)},
          {"scalar", at::scalar_tensor(7, at::kHalf)},
          {"empty", at::empty({0, 2}, at::kFloat)}};
}

/// All slices of a tensor of `shape`, also those without elements.
std::vector<TensorSlice> all_slices(const std::vector<std::int64_t>& shape) {
  std::vector<TensorSlice> out{{}};
  for (const std::int64_t extent : shape) {
    std::vector<TensorSlice> next;
    for (const TensorSlice& slice : out) {
      for (std::int64_t begin = 0; begin <= extent; ++begin) {
        for (std::int64_t count = 0; begin + count <= extent; ++count) {
          next.push_back(slice);
          next.back().begin.push_back(begin);
          next.back().shape.push_back(count);
        }
      }
    }
    out = next;
  }
  return out;
}

/// Compares every slice and every range of elements with LibTorch's of the whole tensor.
void expect_equal(const files::TensorFiles& files, const files::NamedTensors& expected, const std::string& what) {
  for (const auto& [name, tensor] : expected) {
    const at::Tensor whole = files.read(name);
    EXPECT_EQ(files::kind_of(whole), files::kind_of(tensor)) << name << what;
    EXPECT_TRUE(at::equal(whole, tensor)) << name << what;
    for (const TensorSlice& slice : all_slices(tensor.sizes().vec())) {
      at::Tensor part = tensor;
      for (std::size_t d = 0; d < slice.begin.size(); ++d)
        part = part.slice(static_cast<std::int64_t>(d), slice.begin[d], slice.begin[d] + slice.shape[d]);
      EXPECT_TRUE(at::equal(files.read(name, slice), part)) << name << slice_text(slice) << what;
    }
    const at::Tensor flat = tensor.flatten();
    for (std::int64_t first = 0; first < flat.numel(); ++first) {
      for (std::int64_t count = 1; first + count <= flat.numel(); ++count) {
        std::vector<at::Tensor> parts;
        for (const TensorSlice& slice : slices_of_range(tensor.sizes().vec(), first, count))
          parts.push_back(files.read(name, slice).flatten());
        EXPECT_TRUE(at::equal(at::cat(parts), flat.slice(0, first, first + count)))
            << name << " " << first << " to " << first + count << what;
      }
    }
  }
}

// Four elements cut at every three places. A file may be empty, so these are the cuts for one to four files.
TEST_F(CheckpointPieces, OfEveryCutOfTheElementsAreTheWhole) {
  const files::NamedTensors tensors = all_kinds();
  const auto check = [&](const std::vector<std::int64_t>& cuts) {
    std::vector<std::vector<StatePiece>> pieces(cuts.size() + 1);
    for (const auto& [name, tensor] : tensors) {
      std::int64_t first = 0;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const std::int64_t end = i < cuts.size() ? cuts[i] * tensor.numel() / 4 : tensor.numel();
        add(pieces[i], name, tensor, slices_of_range(tensor.sizes().vec(), first, end - first));
        first = end;
      }
      if (tensor.numel() == 0) add(pieces.back(), name, tensor, {whole_slice(tensor.sizes().vec())});
    }
    expect_equal(saved(pieces), tensors, ", cut at " + ::testing::PrintToString(cuts));
  };
  for (std::int64_t a = 0; a <= 4; ++a) {
    for (std::int64_t b = a; b <= 4; ++b) {
      for (std::int64_t c = b; c <= 4; ++c) check({a, b, c});
    }
  }
}

/// All ways to cut `extent` indices into parts, as (begin, count).
std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> all_cuts(std::int64_t extent) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> out;
  for (unsigned mask = 0; mask < 1U << (extent - 1); ++mask) {
    out.push_back({{0, 1}});
    for (std::int64_t i = 1; i < extent; ++i) {
      if ((mask >> (i - 1)) & 1U)
        out.back().emplace_back(i, 1);
      else
        ++out.back().back().second;
    }
  }
  return out;
}

TEST_F(CheckpointPieces, OfEveryGridOverOneToFourFilesAreTheWhole) {
  const at::Tensor tensor = at::arange(9, at::kFloat).view({3, 3});
  for (const auto& rows : all_cuts(3)) {
    for (const auto& columns : all_cuts(3)) {
      for (std::size_t files = 1; files <= 4; ++files) {
        std::vector<std::vector<StatePiece>> pieces(files);
        std::size_t next = 0;
        for (const auto& [row, height] : rows) {
          for (const auto& [column, width] : columns)
            add(pieces[next++ % files], "grid", tensor, {{{row, column}, {height, width}}});
        }
        add(pieces.front(), "grid", tensor, {{{1, 1}, {0, 2}}});  // no elements
        expect_equal(saved(pieces), {{"grid", tensor}}, fmt::format(", {} pieces in {} files", next, files));
      }
    }
  }
}

TEST_F(CheckpointPieces, AreReadNoFurtherThanTheWantedPart) {
  const at::Tensor tensor = at::arange(12, at::kFloat).view({3, 4});
  const files::TensorFiles files = saved({{{"a", {3, 4}, whole_slice({3, 4}), tensor}}});
  const std::string path = files.path_of("a");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 6 * sizeof(float));  // from [1, 2] on
  EXPECT_TRUE(at::equal(files.read("a", {{0, 0}, {1, 4}}), tensor.narrow(0, 0, 1)));
  EXPECT_TRUE(at::equal(files.read("a", {{0, 0}, {2, 2}}), tensor.slice(0, 0, 2).slice(1, 0, 2)));
  for (const TensorSlice& part : {TensorSlice{{0, 0}, {2, 3}}, TensorSlice{{2, 0}, {1, 1}}}) {
    EXPECT_THAT([&] { (void)files.read("a", part); },
                ThrowsMessage<FormatError>(path + ": tensor \"a\": the file was truncated"));
  }
  EXPECT_THAT([&] { (void)files.read("a", {{2, 0}, {2, 4}}); },
              ThrowsMessage<std::invalid_argument>(path + ": tensor \"a\": [2:4, 0:4] is not inside [0:3, 0:4]"));
  EXPECT_THAT([&] { (void)files.read("b", {{0}, {1}}); },
              ThrowsMessage<FormatError>(path + ": unknown tensor \"b\", known are a"));
}

TEST_F(CheckpointPieces, ThatLeaveAGapOrOverlapAreNoCheckpoint) {
  const at::Tensor tensor = at::arange(6, at::kFloat).view({3, 2});
  const auto pieces = [&](const std::vector<TensorSlice>& parts) {
    std::vector<std::vector<StatePiece>> out;
    for (const TensorSlice& part : parts) add(out.emplace_back(), "a", tensor, {part});
    return out;
  };
  (void)saved(pieces({{{0, 0}, {3, 2}}}));
  const std::string message = folder() + "/step-3.partial/manifest.json: /tensors/0/pieces";
  EXPECT_THAT([&] { (void)saved(pieces({{{0, 0}, {1, 2}}, {{2, 0}, {1, 2}}})); },
              ThrowsMessage<FormatError>(message + ": tensor \"a\": found pieces with 4 of 6 elements, expected all in "
                                                   "one piece or more"));
  EXPECT_THAT([&] { (void)saved(pieces({{{0, 0}, {2, 2}}, {{1, 0}, {2, 2}}})); },
              ThrowsMessage<FormatError>(message + "/1: tensor \"a\": found the piece [1:3, 0:2], which overlaps [0:2, "
                                                   "0:2], expected each element once"));
  EXPECT_THAT(
      [&] { (void)saved({{pieces({{{0, 0}, {1, 2}}})[0][0], pieces({{{0, 0}, {1, 2}}})[0][0]}}); },
      ThrowsMessage<std::invalid_argument>(folder() + "/step-3.partial/part-0.safetensors: two pieces are named "
                                                      "\"a[0:1, 0:2]\""));
  EXPECT_EQ(check_checkpoint(folder() + "/step-3").tensors.at("a").pieces.size(), 1U) << "the old one is kept";
}

TEST_F(CheckpointPieces, ThatAreNotInTheirFilesAreNamed) {
  const at::Tensor tensor = at::arange(6, at::kFloat).view({3, 2});
  const std::string path = folder() + "/step-3";
  const auto verdict = [&](const std::function<void(format::CheckpointManifest&)>& change) -> std::string {
    std::vector<std::vector<StatePiece>> pieces(2);
    add(pieces[0], "a", tensor, {{{0, 0}, {1, 2}}});
    add(pieces[1], "a", tensor, {{{1, 0}, {2, 2}}});
    add(pieces[1], "b", tensor, {whole_slice({3, 2})});
    (void)saved(pieces);
    format::CheckpointManifest manifest = check_checkpoint(path);
    change(manifest);
    rewrite(path, manifest, 6);
    try {
      (void)opened(path);
    } catch (const FormatError& e) { return e.what(); }
    return "";
  };
  EXPECT_EQ(verdict([](auto&) {}), "");
  const std::string manifest = path + "/manifest.json: ";
  EXPECT_EQ(verdict([](auto& m) { m.tensors.at("a").pieces[0].file = "part-1.safetensors"; }),
            manifest + "tensor \"a\": found nothing as \"a[0:1, 0:2]\" in part-1.safetensors, expected Float [1, 2]");
  EXPECT_EQ(verdict([](auto& m) { m.tensors.at("b").dtype = "I32"; }),
            manifest + "tensor \"b\": found Float [3, 2] as \"b\" in part-1.safetensors, expected Int [3, 2]");
  EXPECT_EQ(verdict([](auto& m) {
              m.tensors.at("b").shape = {2, 3};
              m.tensors.at("b").pieces[0].part.shape = {2, 3};
            }),
            manifest + "tensor \"b\": found Float [3, 2] as \"b\" in part-1.safetensors, expected Float [2, 3]");
  EXPECT_EQ(verdict([](auto& m) { m.tensors.erase("b"); }),
            manifest + "does not list tensor \"b\", which is in part-1.safetensors");
}

TEST(SlicesOfMemory, AreBoxesOfTheTensorInTheOrderOfItsMemory) {
  // 2 x 3 x 4, the first axis innermost: memory goes over (1, 2, 0).
  const at::Tensor tensor = at::arange(24, at::kFloat).view({3, 4, 2}).permute({2, 0, 1});
  for (std::int64_t first = 0; first <= 24; ++first) {
    for (std::int64_t count = 0; first + count <= 24; ++count) {
      const at::Tensor values = at::arange(first, first + count, at::kFloat);
      std::int64_t elements = 0;
      for (const TensorSlice& part : files::slices_of_memory(tensor, first, count)) {
        EXPECT_TRUE(at::equal(files::part_of_memory(values, first, part, tensor), files::narrowed(tensor, part)));
        elements += element_count(part.shape);
      }
      EXPECT_EQ(elements, count);
    }
  }
}

/// Small trainings that write checkpoints.
class RunFromPieces : public CheckpointPieces {
 protected:
  [[nodiscard]] run::RunOptions options(const std::string& where, std::int64_t steps) const {
    run::RunOptions out;
    out.steps = steps;
    out.optimizer.name = "nadam";  // keeps two tensors and two scalars of each parameter
    out.optimizer.ema_decay = 0.5;
    out.checkpoint.folder = folder(where);
    out.checkpoint.resume = true;
    out.checkpoint.data = "synthetic";
    return out;
  }
  run::RunResult run(const PlannedModel& planned, const Plan& plan, const std::string& where,
                     std::int64_t steps) const {
    return run::run_local(plan, planned.model, *planned.data, options(where, steps), milliseconds(60000));
  }
  run::RunResult run(const Plan& plan, const std::string& where, std::int64_t steps) const {
    return run(gpt_, plan, where, steps);
  }
  /// Trains under each of `plans`, which train alike, for two steps, and continues under each other one: the end is
  /// that of a training without an interruption under the first.
  void expect_same_under(const PlannedModel& planned, const std::vector<Plan>& plans) const {
    (void)run(planned, plans.front(), "uninterrupted", 4);
    for (std::size_t first = 0; first < plans.size(); ++first) {
      const std::string begun = "begun" + std::to_string(first);
      (void)run(planned, plans[first], begun, 2);
      for (std::size_t second = 0; second < plans.size(); ++second) {
        std::filesystem::copy(folder(begun), folder("on"), std::filesystem::copy_options::recursive);
        EXPECT_EQ(run(planned, plans[second], "on", 4).first_step, 2);
        SCOPED_TRACE("plan " + std::to_string(first) + ", then plan " + std::to_string(second));
        expect_same("on/step-4", "uninterrupted/step-4");
        std::filesystem::remove_all(folder("on"));
      }
    }
  }
  void expect_same(const std::string& a, const std::string& b) const {
    const files::TensorFiles one = opened(folder(a));
    const files::TensorFiles two = opened(folder(b));
    EXPECT_EQ(one.names(), two.names());
    for (const std::string& name : one.names()) EXPECT_TRUE(at::equal(one.read(name), two.read(name))) << name;
  }

  PlannedModel gpt_ = planned_model(
      "gpt", {{"layers", "1"}, {"width", "8"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}, 2);
  int half_ = to_int(gpt_.model.layers.size()) / 2;
};

TEST_F(RunFromPieces, OfThreeWritersContinuesBitForBitUnderOtherNumbersOfWriters) {
  (void)run(cut_plan(gpt_, {half_}, {1, 1}, "1f1b", 2), "whole", 2);
  const std::string whole = folder("whole") + "/step-2";
  // Each of three ranks has the state of all layers, and writes a range of each tensor's elements.
  std::vector<int> layers(gpt_.model.layers.size());
  std::iota(layers.begin(), layers.end(), 0);
  stage::StageProgram program(gpt_.model, layers, {}, {}, 1);
  const std::unique_ptr<stage::Optimizer> optimizer =
      stage::optimizer_of(options("", 2).optimizer, program.parameters());
  load_state(opened(whole), program, *optimizer);
  std::vector<std::vector<StatePiece>> pieces(3);
  for (std::int64_t writer = 0; writer < 3; ++writer) {
    const OwnedRanges owned = [&](const std::string&, std::int64_t n) {
      const std::array<std::int64_t, 4> bounds{0, n / 5, 4 * n / 7, n};
      const std::int64_t first = bounds[to_index(writer)];
      return ValueRange{first, bounds[to_index(writer + 1)] - first};
    };
    collect_state(program, *optimizer, owned, pieces[to_index(writer)]);
  }
  commit(folder("pieces"), check_checkpoint(whole), pieces);
  expect_same("whole/step-2", "pieces/step-2");
  EXPECT_EQ(check_checkpoint(folder("pieces") + "/step-2").files.size(), 3U);

  const TiedNames tied{{"lm_head.weight", "wte.weight"}};
  const files::NamedTensors state = state_dict(opened(whole), gpt_.model, tied);
  for (const auto& [name, value] : state_dict(opened(folder("pieces") + "/step-2"), gpt_.model, tied))
    EXPECT_TRUE(at::equal(value, state.at(name))) << name;
  EXPECT_TRUE(at::equal(state.at("lm_head.weight"), state.at("wte.weight")));

  const Plan one = cut_plan(gpt_, {}, {1}, "1f1b", 2);
  const Plan four = cut_plan(gpt_, {1, half_, half_ + 1}, {1, 1, 1, 1}, "gpipe", 2);
  for (const Plan* plan : {&one, &four}) {
    std::filesystem::copy(folder("pieces"), folder("on"), std::filesystem::copy_options::recursive);
    std::filesystem::copy(folder("whole"), folder("whole_on"), std::filesystem::copy_options::recursive);
    const run::RunResult result = run(*plan, "on", 4);
    EXPECT_EQ(result.first_step, 2);
    EXPECT_EQ(result.measurement.losses, run(*plan, "whole_on", 4).measurement.losses);
    expect_same("on/step-4", "whole_on/step-4");
    std::filesystem::remove_all(folder("on"));
    std::filesystem::remove_all(folder("whole_on"));
  }
}

TEST_F(RunFromPieces, OrFromACheckpointWithoutAListOfTensors) {
  const Plan plan = cut_plan(gpt_, {half_}, {2, 1}, "1f1b", 2);
  (void)run(plan, "new", 2);
  std::filesystem::copy(folder("new"), folder("old"), std::filesystem::copy_options::recursive);
  format::CheckpointManifest manifest = check_checkpoint(folder("old") + "/step-2");
  EXPECT_EQ(manifest.files.size(), 2U) << "a replica that owns nothing writes no file";
  manifest.tensors.clear();
  rewrite(folder("old") + "/step-2", manifest, 5);
  EXPECT_THAT(format::read_text(folder("old") + "/step-2/manifest.json"), ::testing::Not(HasSubstr("tensors\": ")));
  expect_same("new/step-2", "old/step-2");
  EXPECT_EQ(run(plan, "old", 4).measurement.losses, run(plan, "new", 4).measurement.losses);
  expect_same("new/step-4", "old/step-4");
}

Plan divided(Plan plan) {
  plan.sharding = StateSharding::Optimizer;
  return plan;
}

TEST_F(RunFromPieces, OfReplicasThatDivideTheOptimizersStateContinuesUnderAnyPlan) {
  // Its weights' memory is transposed, and has several blocks. Two microbatches, so that all sums have the same order.
  const PlannedModel mlp = planned_model(
      testing::laid_out_model(intake::build_model("mlp", {{"inputs", "30"}, {"width", "50"}, {"layers", "3"}})), 2);
  expect_same_under(mlp,
                    {cut_plan(mlp, {}, {1}, "1f1b", 2), cut_plan(mlp, {}, {2}, "1f1b", 2),
                     divided(cut_plan(mlp, {}, {2}, "1f1b", 2)), divided(cut_plan(mlp, {}, {3}, "gpipe", 2)),
                     divided(cut_plan(mlp, {2}, {2, 1}, "1f1b", 2)), divided(cut_plan(mlp, {3}, {2, 2}, "1f1b", 2))});
  // Each of two replicas has written its part of one parameter.
  const format::CheckpointManifest manifest = check_checkpoint(folder("begun2") + "/step-2");
  const auto has_parts = [](const auto& tensor) { return tensor.second.pieces.size() > 1; };
  EXPECT_GT(std::ranges::count_if(manifest.tensors, has_parts), 0);
  EXPECT_EQ(manifest.files.size(), 2U);
}

TEST_F(RunFromPieces, OfRanksThatDivideMasterValuesContinuesUnderAnyPlan) {
  const PlannedModel gpt =
      planned_model("gpt", {{"layers", "1"}, {"width", "24"}, {"heads", "2"}, {"vocabulary", "64"}, {"sequence", "4"}},
                    2, at::kBFloat16, {StateType::Bfloat16, StateType::Float32, StateType::Bfloat16});
  const Plan plan = cut_plan(gpt, {to_int(gpt.model.layers.size()) / 2}, {2, 1}, "1f1b", 2);
  expect_same_under(gpt, {plan, divided(plan)});
}

TEST_F(RunFromPieces, OfRanksThatDivideATiedParametersStateContinuesWithoutTheDivision) {
  const Plan plan = cut_plan(gpt_, {half_}, {2, 1}, "1f1b", 2);
  expect_same_under(gpt_, {plan, divided(plan)});
}

}  // namespace
}  // namespace stagecraft::checkpoint
