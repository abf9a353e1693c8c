#include "costmodel/prediction/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "costmodel/bound_plan.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using stagecraft::testing::Interleavings;
using stagecraft::testing::row_plan;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Lists = std::vector<std::vector<Action>>;
using Verdict = Interleavings::Verdict;

std::string refusal(const Plan& plan, const Lists& lists, const VerifyOptions& options = {}) {
  const auto result = verify(BoundPlan(plan), lists, options);
  const auto* infeasible = std::get_if<Infeasible>(&result);
  return infeasible ? infeasible->reason : "";
}

constexpr Queues kAllQueues[] = {Queues::Edge, Queues::Boundary, Queues::Pair, Queues::Rank};

/// All vectors of `stages` numbers from 1 to `most`.
std::vector<std::vector<int>> replica_vectors(int stages, int most) {
  std::vector<std::vector<int>> out{{}};
  for (int s = 0; s < stages; ++s) {
    std::vector<std::vector<int>> longer;
    for (const auto& begun : out) {
      for (int r = 1; r <= most; ++r) {
        longer.push_back(begun);
        longer.back().push_back(r);
      }
    }
    out = std::move(longer);
  }
  return out;
}

/// Every schedule with every shape it accepts: up to four positions, three replicas and `most_microbatches`.
void for_each_plan(int most_positions, int most_microbatches,
                   const std::function<void(const Plan&, int steps)>& visit) {
  for (const ScheduleEntry& schedule : schedules()) {
    for (int positions = 1; positions <= most_positions; ++positions) {
      for (const int chunks : {1, 2}) {
        if (chunks > 1 && !schedule.chunked) continue;
        for (const auto& replicas : replica_vectors(positions, 3)) {
          for (int m = 1; m <= most_microbatches; ++m) {
            std::vector<int> stages = replicas;
            if (chunks == 2) stages.insert(stages.end(), replicas.begin(), replicas.end());
            Plan plan = row_plan(schedule.name, stages, m, chunks);
            try {
              validate(plan);
            } catch (const std::invalid_argument&) { continue; }
            visit(plan, schedule.weights == Weights::Flushed ? 1 : 3);
          }
        }
      }
    }
  }
}

TEST(Verify, ProvesEverySchedule) {
  int plans = 0;
  for_each_plan(4, 8, [&](const Plan& plan, int steps) {
    for (const int prefetch : {1, 2, 3}) {
      VerifyOptions options;
      options.steps = steps;
      EXPECT_EQ(refusal(plan, BoundPlan(plan).action_lists(steps, prefetch), options), "")
          << plan.schedule << " of " << plan.stages.size() << " stages, " << plan.microbatches << " microbatches";
    }
    ++plans;
  });
  EXPECT_GT(plans, 3000);
}

TEST(Verify, SaysInOneLineWhatItProved) {
  // Two stages, two microbatches: stage 0 F0 S F1 S R B0 R B1 and an update, stage 1 R R F0 B0 S F1 B1 S and an update.
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  const auto proof = std::get<Verified>(verify(BoundPlan(plan), BoundPlan(plan).action_lists()));
  EXPECT_EQ(proof.actions, 18u);
  EXPECT_EQ(proof.messages, 4u);
  EXPECT_EQ(proof.summary,
            "2 ranks, 18 actions, 4 messages: each microbatch runs once on every stage, each edge keeps one order, no "
            "deadlock with one queue for each edge, at most 2 in flight on a rank");
  EXPECT_EQ(proof.ranks[0].in_flight, 2);
  EXPECT_EQ(proof.ranks[1].in_flight, 1);
}

TEST(Verify, PrintsTheCycleOfTheSmallestDeadlock) {
  // Rank 0 has F0 SEND_F0 F1 SEND_F1 RECV_B0 B0, rank 1 RECV_F0 F0 B0 SEND_B0 RECV_F1 F1: SEND_F1 and SEND_B0 block
  // each other.
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  const std::string circle =
      "deadlock: 0SEND_F1 of rank 0 waits for 1RECV_F1 of rank 1, which is queued behind 1SEND_B0; 1SEND_B0 of rank 1 "
      "waits for 0RECV_B0 of rank 0, which is queued behind 0SEND_F1. Stuck: rank 0 before 0B0 (entry 6), rank 1 "
      "before 1F1 (entry 6)";
  for (const Queues queues : kAllQueues) {
    VerifyOptions options;
    options.queues = queues;
    const bool shared = queues == Queues::Pair || queues == Queues::Rank;
    EXPECT_EQ(refusal(plan, BoundPlan(plan).action_lists(1, 1), options), shared ? circle : "") << to_string(queues);
    EXPECT_EQ(
        refusal(row_plan("gpipe", {1, 1}, 2), BoundPlan(row_plan("gpipe", {1, 1}, 2)).action_lists(1, 1), options), "");
  }
}

// Plans with 2 to 4 stages, 1 to 4 replicas per stage and 1 to 15 microbatches. In an independent replay of such plans,
// 69 % deadlocked with a queue per pair of ranks and 77 % with a queue per rank, none with finer queues.
TEST(Verify, FindsDeadlocksOfFiveThousandUnevenPlansOnlyWhereDirectionsShareAQueue) {
  std::map<Queues, int> stuck;
  int plans = 0;
  for (int stages = 2; stages <= 4; ++stages) {
    for (const auto& replicas : replica_vectors(stages, 4)) {
      for (int m = 1; m <= 15; ++m, ++plans) {
        const Plan plan = row_plan("1f1b", replicas, m);
        const Lists lists = BoundPlan(plan).action_lists(1, 1);
        for (const Queues queues : kAllQueues) {
          VerifyOptions options;
          options.queues = queues;
          const std::string reason = refusal(plan, lists, options);
          if (reason.empty()) continue;
          ++stuck[queues];
          EXPECT_THAT(reason, StartsWith("deadlock: "));
        }
      }
    }
  }
  EXPECT_EQ(plans, 5040);
  EXPECT_EQ(stuck[Queues::Edge], 0);
  EXPECT_EQ(stuck[Queues::Boundary], 0);
  EXPECT_NEAR(100.0 * stuck[Queues::Pair] / plans, 69, 2);
  EXPECT_NEAR(100.0 * stuck[Queues::Rank] / plans, 77, 2);
}

TEST(Verify, AgreesWithEveryInterleavingOfEverySchedule) {
  std::mt19937 random(3);
  int followed = 0;
  int whole = 0;
  int stuck = 0;
  for_each_plan(4, 6, [&](const Plan& plan, int all_steps) {
    const int ranks = static_cast<int>(BoundPlan(plan).ranks().size());
    const int steps = std::min(all_steps, plan.microbatches > 2 ? 1 : 2);
    const Lists lists = BoundPlan(plan).action_lists(steps, 1 + static_cast<int>(random() % 2));
    VerifyOptions options;
    options.steps = steps;
    options.queues = kAllQueues[random() % 4];
    Interleavings orders(plan, lists, options.queues);
    std::size_t states = 0;
    const Verdict verdict = orders.follow(3000, 3, random, states);
    const std::string reason = refusal(plan, lists, options);
    ASSERT_EQ(verdict, reason.empty() ? Verdict::Ends : Verdict::Sticks)
        << plan.schedule << " on " << ranks << " ranks, " << plan.microbatches << " microbatches, "
        << to_string(options.queues) << ": " << reason;
    ++followed;
    whole += states <= 3000 ? 1 : 0;
    stuck += reason.empty() ? 0 : 1;
  });
  std::cout << followed << " lists, " << whole << " in every order, " << stuck << " stick\n";
  EXPECT_GT(whole, 1000);
  EXPECT_GT(stuck, 200);
}

/// Swaps two actions of a rank, or two adjacent ones, or drops one, or repeats one. False if the rank has none.
bool break_one(Lists& lists, std::mt19937& random) {
  auto& list = lists[random() % lists.size()];
  if (list.empty()) return false;
  const std::size_t a = random() % list.size();
  const std::size_t b = random() % list.size();
  switch (random() % 4) {
    case 0:
      std::swap(list[a], list[b]);
      break;
    case 1:
      std::swap(list[a], list[std::min(a + 1, list.size() - 1)]);
      break;
    case 2:
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(a));
      break;
    default:
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(b), Action(list[a]));
  }
  return true;
}

TEST(Verify, RefusesBrokenListsThatTheInterleavingsCannotRunAndNoOthers) {
  const unsigned seed = 5;
  std::mt19937 random(seed);
  int broken = 0;
  int sound = 0;
  for (int round = 0; round < 1500; ++round) {
    const char* const names[] = {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"};
    const std::string name = names[random() % 4];
    const int positions = 1 + static_cast<int>(random() % 3);
    const bool chunked = name == "interleaved-1f1b";
    std::vector<int> replicas;
    const int equal = 1 + static_cast<int>(random() % 2);
    for (int s = 0; s < positions * (chunked ? 2 : 1); ++s)
      replicas.push_back(chunked ? equal : 1 + static_cast<int>(random() % 3));
    const int m =
        chunked ? positions * equal * (1 + static_cast<int>(random() % 2)) : 1 + static_cast<int>(random() % 4);
    const Plan plan = row_plan(name, replicas, m, chunked ? 2 : 1);
    const Lists whole = BoundPlan(plan).action_lists(1, 1 + static_cast<int>(random() % 2));
    Lists lists = whole;
    if (!break_one(lists, random)) continue;

    // Apart from being runnable, the lists must have the same actions as before and, for each stage, first all
    // gradients, then the reduce, then the update, with no forward after it.
    bool good = true;
    bool within = true;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      good = good && std::is_permutation(lists[r].begin(), lists[r].end(), whole[r].begin(), whole[r].end());
      std::map<int, int> phase;
      int in_flight = 0;
      for (const Action& action : lists[r]) {
        const int now = action.kind == ActionKind::Update   ? 2
                        : action.kind == ActionKind::Reduce ? 1
                        : action.peer >= 0                  ? -1
                                                            : 0;
        const bool gradient = action.kind == ActionKind::Backward || action.kind == ActionKind::WeightGradient;
        if (now == 0 && (gradient ? phase[action.stage] > 0 : phase[action.stage] > 1)) good = false;
        if (now > 0 && phase[action.stage] >= now) good = false;
        if (now > 0) phase[action.stage] = now;
        in_flight += action.kind == ActionKind::Forward ? 1 : 0;
        in_flight -= action.kind == (name == "zb-h1" ? ActionKind::WeightGradient : ActionKind::Backward) ? 1 : 0;
        within = within && in_flight <= schedule_by_name(name).in_flight_bound(pipeline_shape(plan),
                                                                               lists[r].front().stage % positions);
      }
    }
    std::size_t states = 0;
    if (good) {
      Interleavings orders(plan, lists, Queues::Edge);
      good = orders.follow(400, 2, random, states) == Verdict::Ends;
    }
    const std::string reason = refusal(plan, lists);
    ASSERT_EQ(reason.empty(), good && within) << "seed " << seed << " round " << round << " " << name << ": " << reason;
    if (good && !within) { EXPECT_THAT(reason, HasSubstr("microbatches at once, schedule")); }
    (reason.empty() ? sound : broken) += 1;
  }
  std::cout << broken << " refused, " << sound << " sound\n";
  EXPECT_GT(broken, 500);
  EXPECT_GT(sound, 50);
}

/// Trains a model whose parameters count their Updates. True if each Update of each stage applies exactly the gradients
/// that it should, of all replicas together, and none computed on parameters that do not exist.
bool trains_right(const Plan& plan, const Lists& lists, int steps) {
  const bool two = plan.schedule == "pipedream-2bw";
  std::map<std::pair<int, int>, std::multiset<int>> applied;  // (stage, update) -> microbatches
  for (const auto& list : lists) {
    int version = 0;
    std::map<int, int> taken;    // microbatch -> version
    std::vector<int> gradients;  // since the last update
    bool summed = false;
    for (const Action& a : list) {
      const int replicas = static_cast<int>(plan.stages[static_cast<std::size_t>(a.stage)].devices.size());
      const int step = a.microbatch / plan.microbatches;
      if (a.kind == ActionKind::Forward) {
        taken[a.microbatch] = two ? std::max(step - 1, 0) : version;
        if (two && taken[a.microbatch] != version && taken[a.microbatch] != version - 1) return false;
      } else if (a.kind == ActionKind::Backward) {
        if (summed || !taken.contains(a.microbatch)) return false;
        gradients.push_back(a.microbatch);
      } else if (a.kind == ActionKind::Reduce) {
        if (summed) return false;
        summed = true;
      } else if (a.kind == ActionKind::Update) {
        if (summed != (replicas > 1)) return false;
        applied[{a.stage, version}].insert(gradients.begin(), gradients.end());
        gradients.clear();
        summed = false;
        ++version;
      }
    }
    if (!gradients.empty()) return false;
  }
  for (const auto& [key, microbatches] : applied) {
    const int round =
        two ? plan.microbatches : static_cast<int>(plan.stages[static_cast<std::size_t>(key.first)].devices.size());
    std::multiset<int> wanted;
    for (int m = key.second * round; m < std::min((key.second + 1) * round, plan.microbatches * steps); ++m) {
      wanted.insert(m);
    }
    if (microbatches != wanted) return false;
  }
  return true;
}

TEST(Verify, RefusesBrokenAsynchronousListsThatDoNotTrainAsTheyShouldAndNoOthers) {
  const unsigned seed = 9;
  std::mt19937 random(seed);
  int broken = 0;
  int sound = 0;
  for (int round = 0; round < 1000; ++round) {
    std::vector<int> replicas;
    for (std::size_t s = 1 + random() % 3; s > 0; --s) replicas.push_back(1 + static_cast<int>(random() % 2));
    const int m = static_cast<int>(replicas.size()) + 2 + static_cast<int>(random() % 2);
    const Plan plan = row_plan(random() % 2 ? "pipedream" : "pipedream-2bw", replicas, m);
    try {
      validate(plan);
    } catch (const std::invalid_argument&) { continue; }
    VerifyOptions options;
    options.steps = 2;
    const Lists whole = BoundPlan(plan).action_lists(2, 1 + static_cast<int>(random() % 2));
    Lists lists = whole;
    ASSERT_TRUE(trains_right(plan, lists, 2)) << plan.schedule;
    if (!break_one(lists, random)) continue;
    bool good = trains_right(plan, lists, 2);
    bool within = true;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      good = good && std::is_permutation(lists[r].begin(), lists[r].end(), whole[r].begin(), whole[r].end());
      // PipeDream's bounds: at most warm-up + 1 microbatches in flight, and as many parameter versions including the
      // newest.
      std::map<int, int> version_of;
      int version = 0;
      for (const Action& a : lists[r]) {
        if (a.kind == ActionKind::Forward) version_of[a.microbatch] = version;
        if (a.kind == ActionKind::Backward) version_of.erase(a.microbatch);
        if (a.kind == ActionKind::Update) ++version;
        std::set<int> versions{version};
        for (const auto& [microbatch, taken] : version_of) versions.insert(taken);
        const std::size_t most = static_cast<std::size_t>(plan.warmups[static_cast<std::size_t>(a.stage)]) + 1;
        within = within && version_of.size() <= most && (plan.schedule != "pipedream" || versions.size() <= most);
      }
    }
    if (good) {
      Interleavings orders(plan, lists, Queues::Edge);
      std::size_t states = 0;
      good = orders.follow(200, 2, random, states) == Verdict::Ends;
    }
    const std::string reason = refusal(plan, lists, options);
    ASSERT_EQ(reason.empty(), good && within)
        << "seed " << seed << " round " << round << " " << plan.schedule << ": " << reason;
    (reason.empty() ? sound : broken) += 1;
  }
  EXPECT_GT(broken, 300);
  EXPECT_GT(sound, 30);
}

TEST(Verify, NamesWhatDoesNotHold) {
  struct Case {
    std::string message;
    std::function<void(Lists&)> change;
  };
  // rank 0: F0 SEND_F0 F1 SEND_F1 RECV_B0 RECV_B1 B0 B1 UPDATE (1 to 9)
  // rank 1: RECV_F0 RECV_F1 F0 B0 SEND_B0 F1 B1 SEND_B1 UPDATE
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  const auto erase = [](std::size_t rank, std::size_t entry) {
    return [=](Lists& l) { l[rank].erase(l[rank].begin() + static_cast<std::ptrdiff_t>(entry) - 1); };
  };
  const auto swap = [](std::size_t rank, std::size_t one, std::size_t other) {
    return [=](Lists& l) { std::swap(l[rank][one - 1], l[rank][other - 1]); };
  };
  const auto set = [](std::size_t entry, Action action) { return [=](Lists& l) { l[0][entry - 1] = action; }; };
  const std::vector<Case> cases{
      {"found 1 list, the plan has 2 ranks", [](Lists& l) { l.pop_back(); }},
      {"rank 0, entry 1: 1F0 belongs to stage 1, which the rank does not run", set(1, {ActionKind::Forward, 1, 0, -1})},
      {"rank 0, entry 1: 0F2 belongs to microbatch 2, there are 0..1", set(1, {ActionKind::Forward, 0, 2, -1})},
      {"rank 0, entry 9: 0UPDATE3 belongs to microbatch 3, there are 0..1", set(9, {ActionKind::Update, 0, 3, -1})},
      {"rank 0, entry 2: 0SEND_F0 to stage 5: there is no boundary between the two stages",
       set(2, {ActionKind::SendActivation, 0, 0, 5})},
      {"rank 0, entry 2: 0SEND_B0 is opposite to the boundary's direction",
       set(2, {ActionKind::SendGradient, 0, 0, 1})},
      {"rank 0, entry 3: 0F0 also appears at entry 1", set(3, {ActionKind::Forward, 0, 0, -1})},
      {"rank 0 lacks 0B1", erase(0, 8)},
      {"rank 0 lacks 0SEND_F1", erase(0, 4)},
      {"rank 0 lacks 0RECV_B0", erase(0, 5)},
      {"rank 0, entry 9: 0W0 is not allowed in schedule \"1f1b\"",
       [](Lists& l) { l[0].insert(l[0].end() - 1, {ActionKind::WeightGradient, 0, 0, -1}); }},
      {"rank 0, entry 1: 0SEND_F0 comes before 0F0, which it needs", swap(0, 1, 2)},
      {"rank 1, entry 3: 1B0 comes before 1F0, which it needs", swap(1, 3, 4)},
      {"rank 0, entry 5: 0B0 comes before 0RECV_B0, which it needs", swap(0, 5, 7)},
      {"rank 0 lacks 1 of 1 update of stage 0", erase(0, 9)},
      {"rank 0, entry 10: 0UPDATE exceeds the 1 expected",
       [](Lists& l) { l[0].push_back({ActionKind::Update, 0, -1, -1}); }},
      {"rank 0, entry 9: 0B1 belongs to update 0 but comes before update 1", swap(0, 8, 9)},
      {"rank 0, entry 9: 0REDUCE_GRAD: the stage has neither replicas nor tied parameters",
       [](Lists& l) { l[0].insert(l[0].end() - 1, {ActionKind::Reduce, 0, -1, -1}); }},
      {"on the edge from rank 0 to rank 1 message 1 is 0SEND_F0 at one end and 1RECV_F1 at the other", swap(1, 1, 2)},
      {"rank 1 holds 2 microbatches at once, schedule \"1f1b\" allows 1",
       [](Lists& l) {
         std::swap(l[1][3], l[1][5]);  // F0 F1 SEND_B0 B0 ..., then B0 before its send
         std::swap(l[1][4], l[1][5]);
       }},
  };
  ASSERT_EQ(refusal(plan, BoundPlan(plan).action_lists()), "");
  for (const Case& c : cases) {
    Lists lists = BoundPlan(plan).action_lists();
    c.change(lists);
    EXPECT_EQ(refusal(plan, lists), c.message);
  }
}

TEST(Verify, NamesWhatDoesNotHoldAmongReplicas) {
  const Plan plan = row_plan("gpipe", {2}, 2);  // each rank: F B REDUCE UPDATE
  const Lists sound = BoundPlan(plan).action_lists();
  ASSERT_EQ(refusal(plan, sound), "");
  Lists lists = sound;
  lists[0][0].microbatch = 1;
  EXPECT_EQ(refusal(plan, lists), "rank 0, entry 1: 0F1 belongs to rank 1");
  lists = sound;
  std::swap(lists[0][1], lists[0][2]);
  EXPECT_EQ(refusal(plan, lists), "rank 0, entry 3: 0B0 belongs to update 0 but comes between the reduce and update 0");
  lists = sound;
  lists[0].erase(lists[0].begin() + 2);
  EXPECT_EQ(refusal(plan, lists), "rank 0, entry 3: 0UPDATE: missing reduce before update 0");
  lists = sound;
  lists[0].insert(lists[0].begin() + 2, lists[0][2]);
  EXPECT_EQ(refusal(plan, lists), "rank 0, entry 4: 0REDUCE_GRAD appears twice before update 0");
}

TEST(Verify, FollowsReducesOfTiedStages) {
  // Stage 1 runs the backward of the only microbatch first but reduces together with stage 0, which waits for that
  // backward.
  const Plan untied = row_plan("gpipe", {1, 1}, 1);
  Plan plan = untied;
  plan.tied = {{"weight", {"l0", "l1"}}};
  Lists lists = BoundPlan(plan).action_lists(1, 1);
  EXPECT_EQ(refusal(plan, lists), "");
  EXPECT_EQ(refusal(plan, BoundPlan(untied).action_lists()),
            "rank 0, entry 5: 0UPDATE: missing reduce before update 0");
  // rank 1: RECV_F0 F0 B0 SEND_B0 REDUCE UPDATE, its send put off until after the reduce.
  std::swap(lists[1][3], lists[1][4]);
  EXPECT_EQ(refusal(plan, lists),
            "deadlock: 0B0 of rank 0 waits for 1SEND_B0 of rank 1, which is blocked at 1REDUCE_GRAD; 1REDUCE_GRAD of "
            "rank 1 waits for rank 0, which is blocked at 0B0. Stuck: rank 0 before 0B0 (entry 4), rank 1 before "
            "1REDUCE_GRAD (entry 4)");
}

TEST(Verify, RefusesWhatIsNoPartOfAnEvaluation) {
  const Plan plan = row_plan("forward", {1, 1}, 2);
  Lists lists = BoundPlan(plan).action_lists();
  EXPECT_EQ(refusal(plan, lists), "");
  lists[0].push_back({ActionKind::Update, 0, -1, -1});
  EXPECT_EQ(refusal(plan, lists), "rank 0, entry 5: 0UPDATE is not allowed in schedule \"forward\"");
}

TEST(Verify, CountsTheWeightVersionsOfAsynchronousSchedules) {
  // 1, 2 and 4 stages without replicas: stage s of S has S - s microbatches in flight.
  for (const int stages : {1, 2, 4}) {
    VerifyOptions options;
    options.steps = 3;
    Plan plan = row_plan("pipedream", std::vector<int>(static_cast<std::size_t>(stages), 1), 4);
    auto proof = std::get<Verified>(verify(BoundPlan(plan), BoundPlan(plan).action_lists(3), options));
    for (int s = 0; s < stages; ++s) EXPECT_EQ(proof.ranks[static_cast<std::size_t>(s)].versions, stages - s);
    plan.schedule = "pipedream-2bw";
    proof = std::get<Verified>(verify(BoundPlan(plan), BoundPlan(plan).action_lists(3), options));
    for (int s = 0; s < stages; ++s) EXPECT_EQ(proof.ranks[static_cast<std::size_t>(s)].versions, 2);
  }
}

TEST(Verify, RefusesUpdatesThatComeTooEarlyOrTooLateForTheirMicrobatches) {
  // One stage, two microbatches per step, no warm-up: F0 B0 F1 B1 U F2 B2 F3 B3 U ...
  const Plan plan = row_plan("pipedream-2bw", {1}, 2);
  VerifyOptions options;
  options.steps = 3;
  Lists lists = BoundPlan(plan).action_lists(3);
  ASSERT_EQ(lists[0].size(), 15u);
  ASSERT_EQ(refusal(plan, lists, options), "");
  std::swap(lists[0][4], lists[0][6]);  // B2 before the first update
  EXPECT_EQ(refusal(plan, lists, options), "rank 0, entry 5: 0B2 comes before 0F2, which it needs");
  lists = BoundPlan(plan).action_lists(3);
  std::rotate(lists[0].begin() + 4, lists[0].begin() + 5, lists[0].begin() + 7);  // F2 B2 U
  EXPECT_EQ(refusal(plan, lists, options), "rank 0, entry 6: 0B2 belongs to update 1 but comes before update 0");
  lists = BoundPlan(plan).action_lists(3);
  std::swap(lists[0][3], lists[0][4]);  // U B1
  EXPECT_EQ(refusal(plan, lists, options), "rank 0, entry 5: 0B1 belongs to update 0 but comes before update 1");
}

TEST(Verify, RefusesAForwardWhoseParametersAreNotMadeYet) {
  // Stage 0 of 2 with 2 microbatches per step: F0 F1 B0 F2 B1 U F3 B2 F4 ... ; F4, of step 2, needs one update first.
  const Plan plan = row_plan("pipedream-2bw", {1, 1}, 2);
  VerifyOptions options;
  options.steps = 3;
  Lists lists = BoundPlan(plan).action_lists(3);
  auto& list = lists[0];
  const auto of = [&](ActionKind kind, int m) {
    return std::find(list.begin(), list.end(), Action{kind, 0, m, kind == ActionKind::SendActivation ? 1 : -1});
  };
  for (const int m : {2, 3, 4}) {
    const Action action = *of(ActionKind::Forward, m);
    list.erase(of(ActionKind::Forward, m));
    list.insert(list.begin() + m, action);
  }
  EXPECT_EQ(refusal(plan, lists, options), "rank 0, entry 5: 0F4 comes after 0 updates, too few for its step 2");
}

TEST(Verify, ComparesPeakMemoryWithTheDevice) {
  const Graph graph = testing::chain_graph({1, 1}, {1, 1}, 100_B, 1000_B);
  Topology topology = testing::flat_topology(2);
  const Plan plan = testing::one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 4);
  const Lists lists = BoundPlan(plan).action_lists();
  // Stage 0 in its third backward: parameters and gradients 2000, 2 microbatches with 100 saved each, two gradients of
  // 100 received, workspace 100, and the 100 that it sent of each of the 2 earlier microbatches.
  const auto proof = std::get<Verified>(verify(BoundPlan(plan), lists, graph, topology));
  EXPECT_EQ(proof.ranks[0].peak, 2700_B);
  EXPECT_THAT(proof.summary, ::testing::EndsWith(", at most 2.64 KiB"));
  // The bound: 2 % of that, 54; twice the 100 of its boundary; 39 % of the 300 that were not measured, 117.
  topology.device.memory = 3071_B;
  EXPECT_TRUE(std::holds_alternative<Verified>(verify(BoundPlan(plan), lists, graph, topology)));
  topology.device.memory = 3070_B;
  EXPECT_TRUE(std::holds_alternative<Infeasible>(verify(BoundPlan(plan), lists, graph, topology)));
  topology.device.memory = 2000_B;
  EXPECT_THAT(std::get<Infeasible>(verify(BoundPlan(plan), lists, graph, topology)).reason,
              StartsWith("rank 0 needs up to 3.00 KiB, its device has 1.95 KiB"));
}

TEST(Verify, TellsWhatItProves) {
  const Graph graph = testing::chain_graph({1, 1}, {1, 1});
  const Topology topology = testing::flat_topology(2);
  const BoundPlan plan(testing::one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 4));
  std::vector<std::string> told;
  VerifyOptions options;
  options.progress = [&](const std::string& proved) { told.push_back(proved); };
  (void)verify(plan, plan.action_lists(), graph, topology, options);
  ASSERT_EQ(told.size(), 10U);
  EXPECT_EQ(told.front(), "every action is on its rank");
  EXPECT_EQ(told[8], "every gradient is summed by its holders");
  EXPECT_EQ(told.back(), "memory of every rank");
  // After a refusal nothing more is proved.
  told.clear();
  Lists lists = plan.action_lists();
  lists[0].pop_back();
  EXPECT_TRUE(std::holds_alternative<Infeasible>(verify(plan, lists, graph, topology, options)));
  EXPECT_THAT(told, ::testing::Not(::testing::Contains("memory of every rank")));
}

TEST(Queues, ReadsTheWordsItWrites) {
  for (const Queues queues : kAllQueues) EXPECT_EQ(queues_by_name(to_string(queues)), queues);
  EXPECT_THAT([] { (void)queues_by_name("node"); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  "unknown kind of queue \"node\", known are edge, boundary, pair, rank"));
}

}  // namespace
}  // namespace stagecraft
