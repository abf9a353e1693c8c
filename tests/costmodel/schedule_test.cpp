#include "costmodel/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "costmodel/format/files/files.h"
#include "costmodel/prediction/memory.h"
#include "tests/support/known_names.h"
#include "tests/support/places.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string text(const std::vector<Action>& actions) {
  std::string out;
  for (const Action& a : actions) {
    const char letter = a.kind == ActionKind::Forward    ? 'F'
                        : a.kind == ActionKind::Backward ? 'B'
                        : a.kind == ActionKind::Update   ? 'U'
                                                         : 'W';
    out += (out.empty() ? "" : " ") + std::string(1, letter);
    if (a.microbatch >= 0) out += std::to_string(a.microbatch);
  }
  return out;
}

PipelineShape shape(int stages, int microbatches, const std::vector<int>& replicas = {}, int chunks = 1) {
  PipelineShape out;
  out.stages = stages;
  out.microbatches = microbatches;
  out.chunks = chunks;
  out.replicas = replicas.empty() ? std::vector<int>(static_cast<std::size_t>(stages), 1) : replicas;
  out.warmups = warmup_counts(out.replicas);
  return out;
}

TEST(Schedule, GPipeRunsAllForwardsThenAllBackwardsAscending) {
  EXPECT_EQ(text(schedule_by_name("gpipe").compute_actions(shape(2, 3), 0, 0)), "F0 F1 F2 B0 B1 B2");
}

TEST(Schedule, OneForwardOneBackwardWarmsUpByItsDistanceFromTheEnd) {
  const auto& schedule = schedule_by_name("1f1b");
  EXPECT_EQ(text(schedule.compute_actions(shape(3, 4), 0, 0)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text(schedule.compute_actions(shape(3, 4), 1, 0)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text(schedule.compute_actions(shape(3, 4), 2, 0)), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(Schedule, AReplicaRunsEveryRthMicrobatch) {
  EXPECT_EQ(text(schedule_by_name("1f1b").compute_actions(shape(2, 5, {2, 1}), 0, 1)), "F1 F3 B1 B3");
  EXPECT_THAT(own_microbatches(5, 2, 0), ElementsAre(0, 2, 4));
  EXPECT_THAT(own_microbatches(1, 2, 1), ElementsAre());
}

TEST(Schedule, ZeroBubbleKeepsAsManyWeightGradientsPendingAsItsStageNumber) {
  // Stage 1 of 2: no warm-up; one weight gradient lags behind.
  EXPECT_EQ(text(schedule_by_name("zb-h1").compute_actions(shape(2, 3), 1, 0)), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  // The second of two replicas of stage 1, of microbatches 1, 3 and 5.
  EXPECT_EQ(text(schedule_by_name("zb-h1").compute_actions(shape(2, 6, {1, 2}), 1, 1)), "F1 B1 F3 B3 W1 F5 B5 W3 W5");
}

TEST(Schedule, EachReplicaInterleavesItsOwnMicrobatches) {
  // Rank 1 of 2 with two chunks, microbatches 0 and 2: a warm-up of 2, then a forward and a backward in turn.
  const auto& schedule = schedule_by_name("interleaved-1f1b");
  EXPECT_EQ(text(schedule.compute_actions(shape(4, 4, {2, 2, 2, 2}, 2), 1, 0)), "F0 F2 F0 B0 F2 B2 B0 B2");
  EXPECT_EQ(text(schedule.compute_actions(shape(4, 4, {2, 2, 2, 2}, 2), 1, 1)), "F1 F3 F1 B1 F3 B3 B1 B3");
}

/// The stage too.
std::string cells(const std::vector<Action>& actions) {
  std::string out;
  for (const Action& a : actions) out += (out.empty() ? "" : " ") + action_text(a);
  return out;
}

// Rank 1 of 2 in a V has the stages 1 and 2. By hand, from the orders in the papers.
TEST(Schedule, PutsTheSecondHalfOfAVBackOnTheRanks) {
  const PipelineShape s = shape(4, 4, {}, 2);
  EXPECT_EQ(cells(schedule_by_name("zb-v").compute_actions(s, 1, 0)),
            "1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1F3 1B1 1W1 2F3 2B2 2W2 1B2 2B3 1B3 1W2 2W3 1W3");
  EXPECT_EQ(cells(schedule_by_name("dualpipev").compute_actions(s, 0, 0)),
            "0F0 0F1 0F2 3F0 3B0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0B2 0W2 0B3 0W3");
  // Slots of rank 0, x = 0: F of stage 0 at 0, 6, F of 3 at 4, 10, B of 3 at 8, 14, B of 0 at 13, 19.
  EXPECT_EQ(cells(schedule_by_name("v-half").compute_actions(shape(4, 2, {}, 2), 0, 0)),
            "0F0 3F0 0F1 3B0 3W0 3F1 0B0 3B1 0W0 3W1 0B1 0W1");
}

TEST(Schedule, FindsThePlacementOfLists) {
  EXPECT_EQ(position_of(5, 3, Placement::Loop), 2);
  EXPECT_EQ(position_of(5, 3, Placement::V), 0);
  EXPECT_EQ(position_of(3, 3, Placement::V), 2);
  EXPECT_THAT(stages_at(1, 6, 3, Placement::V), ElementsAre(1, 4));
  const auto forwards = [](const std::vector<std::vector<int>>& ranks) {
    std::vector<std::vector<Action>> out;
    for (const std::vector<int>& stages : ranks) {
      out.emplace_back();
      for (const int stage : stages) out.back().push_back({ActionKind::Forward, stage, 0, -1});
    }
    return placement_of(out);
  };
  EXPECT_EQ(forwards({{0, 3}, {1, 2}}), Placement::V);
  EXPECT_EQ(forwards({{0, 2}, {1, 3}}), Placement::Loop);
  EXPECT_EQ(forwards({{0, 1, 2}}), Placement::Loop);
  EXPECT_EQ(forwards({{0}, {1}, {2}}), Placement::Loop);
  EXPECT_EQ(forwards({}), Placement::Loop);
}

TEST(Schedule, PipeDreamUpdatesAfterEveryBackwardAndDoesNotEmptyBetweenSteps) {
  PipelineShape s = shape(2, 2);
  s.steps = 2;
  const auto& schedule = schedule_by_name("pipedream");
  EXPECT_EQ(text(schedule.compute_actions(s, 0, 0)), "F0 F1 B0 U F2 B1 U F3 B2 U B3 U");
  EXPECT_EQ(text(schedule.compute_actions(s, 1, 0)), "F0 B0 U F1 B1 U F2 B2 U F3 B3 U");
}

TEST(Schedule, PipeDreamUpdatesAfterEveryRoundOfTheReplicas) {
  // Microbatches 0..4 on two replicas: rounds 01, 23 and 4; replica 1 contributes nothing to the last.
  const PipelineShape s = shape(1, 5, {2});
  EXPECT_EQ(text(schedule_by_name("pipedream").compute_actions(s, 0, 0)), "F0 B0 U F2 B2 U F4 B4 U");
  EXPECT_EQ(text(schedule_by_name("pipedream").compute_actions(s, 0, 1)), "F1 B1 U F3 B3 U U");
  EXPECT_EQ(update_of(schedule_by_name("pipedream"), s, 0, 4), 2);
}

TEST(Schedule, TwoBufferedWeightsUpdateAfterEveryStep) {
  PipelineShape s = shape(2, 2);
  s.steps = 2;
  const auto& schedule = schedule_by_name("pipedream-2bw");
  EXPECT_EQ(text(schedule.compute_actions(s, 0, 0)), "F0 F1 B0 F2 B1 U F3 B2 B3 U");
  EXPECT_EQ(text(schedule.compute_actions(s, 1, 0)), "F0 B0 F1 B1 U F2 B2 F3 B3 U");
  // Replicas split a step of 3 as 2 and 1, the next as 1 and 2: microbatch 3 belongs to the second replica.
  PipelineShape uneven = shape(1, 3, {2});
  uneven.steps = 2;
  EXPECT_EQ(text(schedule.compute_actions(uneven, 0, 0)), "F0 B0 F2 B2 U F4 B4 U");
  EXPECT_EQ(text(schedule.compute_actions(uneven, 0, 1)), "F1 B1 U F3 B3 F5 B5 U");
}

TEST(Schedule, ForwardRunsForwardsAlone) {
  EXPECT_EQ(text(schedule_by_name("forward").compute_actions(shape(2, 5, {2, 1}), 0, 1)), "F1 F3");
}

bool can_run(const ScheduleEntry& schedule, const PipelineShape& s) {
  try {
    check_shape(schedule, s);
    return true;
  } catch (const std::invalid_argument&) { return false; }
}

TEST(Schedule, EveryMicrobatchIsForwardThenBackwardExactlyOnce) {
  for (const ScheduleEntry& schedule : schedules()) {
    if (schedule.needs_lists) continue;  // the plan lists its actions
    int shapes = 0;
    for (int positions = 1; positions <= 4; ++positions) {
      for (int microbatches = 1; microbatches <= 8; ++microbatches) {
        for (int r = 1; r <= 3; ++r) {
          const int chunks = schedule.chunked && microbatches % (positions * r) == 0 ? 2 : least_chunks(schedule);
          const PipelineShape s = shape(positions * chunks, microbatches,
                                        std::vector<int>(static_cast<std::size_t>(positions * chunks), r), chunks);
          if (!can_run(schedule, s)) continue;
          ++shapes;
          std::map<std::tuple<int, int>, std::string> seen;
          for (int position = 0; position < positions; ++position) {
            for (int replica = 0; replica < r; ++replica) {
              for (const Action& a : schedule.compute_actions(s, position, replica)) {
                EXPECT_EQ(position_of(a.stage, positions, schedule.placement), position);
                EXPECT_EQ(std::max(a.microbatch, replica) % r, replica);
                if (a.kind == ActionKind::Update) continue;
                seen[{a.stage, a.microbatch}] += a.kind == ActionKind::Forward    ? 'F'
                                                 : a.kind == ActionKind::Backward ? 'B'
                                                                                  : 'W';
              }
            }
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(positions * chunks * microbatches)) << schedule.name;
          for (const auto& [key, order] : seen) {
            const bool split = schedule.mixes_backwards ? order.size() == 3 : schedule.splits_backward;
            EXPECT_EQ(order, !schedule.trains ? "F" : split ? "FBW" : "FB") << schedule.name;
          }
        }
      }
    }
    EXPECT_GT(shapes, 20) << schedule.name;
  }
}

/// What a rank holds at most is what its entry says, and in chunks of a device what the schedules' authors say.
TEST(Schedule, HoldsAsManyMicrobatchesAsItsBoundSays) {
  for (int p = 1; p <= 8; ++p) {
    const std::map<std::string, int> most{{"interleaved-zb", 2 * p},
                                          {"zb-v", 2 * p},
                                          {"v-half", 2 * ((p + 2) / 2)},
                                          {"v-min", 2 * ((p + 4) / 3)},
                                          {"dualpipev", 2 * p + 1}};
    for (const auto& [name, chunks] : most) {
      const ScheduleEntry& schedule = schedule_by_name(name);
      const PipelineShape s = shape(2 * p, 4 * p, {}, 2);
      int fullest = 0;
      for (int position = 0; position < p; ++position) {
        EXPECT_EQ(schedule.in_flight_bound(s, position), chunks) << name;
        std::map<std::pair<int, int>, bool> split;
        const std::vector<Action> list = schedule.compute_actions(s, position, 0);
        for (const Action& a : list) split[{a.stage, a.microbatch}] = a.kind == ActionKind::WeightGradient;
        int held = 0;
        int peak = 0;
        for (const Action& a : list) {
          held += a.kind == ActionKind::Forward ? 1 : 0;
          peak = std::max(peak, held);
          const bool releases =
              split[{a.stage, a.microbatch}] ? a.kind == ActionKind::WeightGradient : a.kind == ActionKind::Backward;
          held -= releases ? 1 : 0;
        }
        EXPECT_LE(peak, chunks) << name << " " << position;
        fullest = std::max(fullest, peak);
      }
      EXPECT_EQ(fullest, chunks) << name << " on " << p;
    }
  }
}

/// The 1F1B list from its definition: warm-up forwards, then a forward and a backward in turn, then the other
/// backwards.
std::vector<Action> alternating(const PipelineShape& shape, int position, int replica) {
  const std::size_t p = static_cast<std::size_t>(position);
  const std::vector<int> microbatches = own_microbatches(shape.microbatches, shape.replicas[p], replica);
  const std::size_t warmup = std::min(microbatches.size(), static_cast<std::size_t>(shape.warmups[p]));
  std::vector<Action> out;
  for (std::size_t i = 0; i < warmup; ++i) out.push_back({ActionKind::Forward, position, microbatches[i], -1});
  for (std::size_t i = warmup; i < microbatches.size(); ++i) {
    out.push_back({ActionKind::Forward, position, microbatches[i], -1});
    out.push_back({ActionKind::Backward, position, microbatches[i - warmup], -1});
  }
  for (std::size_t i = microbatches.size() - warmup; i < microbatches.size(); ++i)
    out.push_back({ActionKind::Backward, position, microbatches[i], -1});
  return out;
}

/// ScheduleEntry::alternates holds for every shape if it is set, and not for all of them if it is not.
TEST(Schedule, AlternatesForwardsAndBackwardsIfItSaysSo) {
  for (const ScheduleEntry& schedule : schedules()) {
    if (schedule.needs_lists) continue;
    bool always = runs_chunks(schedule, 1);
    if (!always) {
      EXPECT_FALSE(schedule.alternates) << schedule.name;
      continue;
    }
    for (int stages = 1; stages <= 4; ++stages) {
      for (int microbatches = 1; microbatches <= 8; ++microbatches) {
        for (int r = 1; r <= 3; ++r) {
          std::vector<int> replicas(static_cast<std::size_t>(stages), schedule.equal_replicas ? r : 1);
          replicas.front() = r;
          const PipelineShape s = shape(stages, microbatches, replicas);
          for (int position = 0; position < stages; ++position) {
            for (int replica = 0; replica < s.replicas[static_cast<std::size_t>(position)]; ++replica)
              always = always && schedule.compute_actions(s, position, replica) == alternating(s, position, replica);
          }
        }
      }
    }
    EXPECT_EQ(schedule.alternates, always) << schedule.name;
  }
}

TEST(Schedule, SuggestsEntriesOfTheTable) { EXPECT_EQ(chunked_schedule().name, "interleaved-1f1b"); }

TEST(Schedule, SaysHowManyStagesOfARankItRuns) {
  EXPECT_EQ(least_chunks(schedule_by_name("zb-v")), 2);
  EXPECT_EQ(least_chunks(schedule_by_name("looped-bfs")), 1);
  EXPECT_TRUE(runs_chunks(schedule_by_name("looped-bfs"), 3));
  EXPECT_FALSE(runs_chunks(schedule_by_name("zb-v"), 4));
  EXPECT_FALSE(runs_chunks(schedule_by_name("1f1b"), 2));
}

TEST(Warmup, CountsTheStagesThatFollowWithoutReplicas) {
  EXPECT_THAT(warmup_counts({1, 1, 1, 1}), ElementsAre(3, 2, 1, 0));
}

TEST(Warmup, FollowsTheRecurrenceWithReplicas) {
  // By hand, from the last stage: w_2 = 0; w_1 = ceil((0+1)*1/3) = 1; w_0 = ceil((1+1)*3/2) = 3.
  EXPECT_THAT(warmup_counts({2, 3, 1}), ElementsAre(3, 1, 0));
  EXPECT_THAT(warmup_counts({3, 1}), ElementsAre(1, 0));
  EXPECT_THAT(warmup_counts({15, 1}), ElementsAre(1, 0));
  // A hop of half a period adds one more: ceil((1 + 2 * 0.5) / 1) = 2.
  EXPECT_THAT(warmup_counts({1, 1}, 0.5), ElementsAre(2, 0));
}

TEST(Warmup, BoundsTheMicrobatchesInFlight) {
  const PipelineShape s = shape(4, 16);
  for (int position = 0; position < 4; ++position) {
    EXPECT_EQ(in_flight(schedule_by_name("1f1b").compute_actions(s, position, 0), position), 4 - position);
    EXPECT_EQ(in_flight(schedule_by_name("gpipe").compute_actions(s, position, 0), position), 16);
  }
}

TEST(Schedule, RefusesWhatItCannotRun) {
  EXPECT_THAT([] { (void)schedule_by_name("2f2b"); },
              ThrowsMessage<std::invalid_argument>("unknown schedule \"2f2b\", known are " + known_names(schedules())));
  EXPECT_THAT(
      [] { check_shape(schedule_by_name("interleaved-1f1b"), shape(4, 4, {2, 1, 2, 1}, 2)); },
      ThrowsMessage<std::invalid_argument>(
          "schedule \"interleaved-1f1b\" needs the same number of replicas at every position, but stage 0 has 2 "
          "and stage 1 has 1; give all 2, or use 1f1b, which takes any numbers"));
  EXPECT_THAT([] { check_shape(schedule_by_name("interleaved-1f1b"), shape(4, 3, {}, 2)); },
              ThrowsMessage<std::invalid_argument>(
                  "schedule \"interleaved-1f1b\": 3 microbatches are not a multiple of 2 devices, 2 or 4 are"));
  EXPECT_THAT([] { check_shape(schedule_by_name("interleaved-1f1b"), shape(4, 3, {2, 2, 2, 2}, 2)); },
              ThrowsMessage<std::invalid_argument>(
                  "schedule \"interleaved-1f1b\": 3 microbatches are not a multiple of 4 devices, 2 positions of 2 "
                  "replicas, 4 are"));
  EXPECT_THAT([] { check_shape(schedule_by_name("zb-v"), shape(3, 4)); },
              ThrowsMessage<std::invalid_argument>("schedule \"zb-v\" runs 2 stages per device, found 1"));
  EXPECT_THAT([] { check_shape(schedule_by_name("dualpipev"), shape(4, 7, {2, 2, 2, 2}, 2)); },
              ThrowsMessage<std::invalid_argument>("schedule \"dualpipev\": 7 microbatches are fewer than the 4 stages "
                                                   "of 2 replicas, at least 8 can run"));
  EXPECT_THAT([] { check_shape(schedule_by_name("pipedream-2bw"), shape(2, 3, {1, 4})); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("3 microbatches per step are fewer than the 5 that stage 0 has in flight")));
  EXPECT_THAT([] { check_shape(schedule_by_name("1f1b"), shape(4, 4, {}, 2)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("one stage per device")));
}

TEST(Weights, VersionsAreAsManyAsTheScheduleMayMix) {
  const PipelineShape s = shape(4, 8);
  for (int position = 0; position < 4; ++position) {
    EXPECT_EQ(weight_versions_bound(schedule_by_name("1f1b"), s, position), 1);
    EXPECT_EQ(weight_versions_bound(schedule_by_name("pipedream"), s, position), 4 - position);
    EXPECT_EQ(weight_versions_bound(schedule_by_name("pipedream-2bw"), s, position), 2);
  }
}

TEST(Schedules, AreDescribedByTheDocumentationAsByHelp) {
  const std::string page = format::read_text(source_folder() + "/docs/planning.md");
  for (const ScheduleEntry& schedule : schedules()) {
    EXPECT_FALSE(schedule.help.empty()) << schedule.name;
    if (schedule.needs_lists) continue;
    EXPECT_THAT(page, HasSubstr("\n| `" + schedule.name + "`"));
    EXPECT_THAT(page, HasSubstr(" | " + schedule.help + " |\n"));
  }
}

// vectors.json: as many rounds as the pipeline holds microbatches (PipeDream, SOSP 2019).
TEST(Weights, VersionsOfPipedreamAreThePublishedOnes) {
  const auto vectors =
      nlohmann::json::parse(format::read_text(source_folder() + "/tests/golden/costmodel/vectors.json"));
  for (const auto& vector : vectors.at("pipedream_versions")) {
    const auto replicas = vector.at("replicas").get<std::vector<int>>();
    const PipelineShape s = shape(static_cast<int>(replicas.size()), 64, replicas);
    std::vector<int> versions;
    for (int position = 0; position < s.stages; ++position)
      versions.push_back(weight_versions_bound(schedule_by_name("pipedream"), s, position));
    EXPECT_EQ(versions, vector.at("versions").get<std::vector<int>>()) << vector;
  }
}

TEST(ActionText, IsTorchsAndNamesAPeerThatIsNoNeighbour) {
  EXPECT_EQ(action_text({ActionKind::Forward, 2, 0, -1}), "2F0");
  EXPECT_EQ(action_text({ActionKind::SendActivation, 1, 3, 2}), "1SEND_F3");
  EXPECT_EQ(action_text({ActionKind::ReceiveGradient, 0, 3, 1}), "0RECV_B3");
  EXPECT_EQ(action_text({ActionKind::Reduce, 1, -1, -1}), "1REDUCE_GRAD");
  EXPECT_EQ(action_text({ActionKind::SendActivation, 0, 3, 2}), "0SEND_F3 to stage 2");
  EXPECT_EQ(action_text({ActionKind::ReceiveActivation, 2, 3, 0}), "2RECV_F3 from stage 0");
}

TEST(ActionKind, ReadsTheWordsItWrites) {
  for (int i = 0; i <= static_cast<int>(ActionKind::Update); ++i) {
    EXPECT_EQ(action_kind(to_string(static_cast<ActionKind>(i))), static_cast<ActionKind>(i));
  }
  EXPECT_THAT([] { (void)action_kind("jump"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("unknown action \"jump\", known are forward")));
}

}  // namespace
}  // namespace stagecraft
