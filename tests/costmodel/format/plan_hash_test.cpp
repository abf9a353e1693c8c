#include "costmodel/format/plan_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string_view>

#include "costmodel/format/plan_json.h"
#include "tests/costmodel/interleavings.h"

namespace stagecraft::format {
namespace {

using testing::row_plan;

/// 64-bit FNV-1a, with its prime 2^40 + 0x1b3 in two parts.
std::uint64_t other_fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash = (hash << 40) + hash * 0x1b3;
  }
  return hash;
}

// The test vectors of draft-eastlake-fnv, appendix C, check the function above.
TEST(PlanHash, IsFnv1aOfThePlansDocumentAndItsActions) {
  ASSERT_EQ(other_fnv1a(""), 0xcbf29ce484222325);
  ASSERT_EQ(other_fnv1a("a"), 0xaf63dc4c8601ec8c);
  ASSERT_EQ(other_fnv1a("foobar"), 0x85944171f73967e8);
  const Plan plan = row_plan("1f1b", {1, 1}, 1);
  EXPECT_EQ(plan_hash(BoundPlan(plan)), other_fnv1a(plan_json(plan) + "0F0,0SEND_F0,0RECV_B0,0B0,0UPDATE,\n" +
                                                    "1RECV_F0,1F0,1B0,1SEND_B0,1UPDATE,\n"));
}

TEST(PlanHash, CoversWhatIsRunNotWhoMadeIt) {
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  const auto hash_with = [&](const std::function<void(Plan&)>& change) {
    Plan other = plan;
    change(other);
    return plan_hash(BoundPlan(other));
  };
  const std::uint64_t hash = plan_hash(BoundPlan(plan));
  EXPECT_EQ(hash_with([](Plan& p) { p.provenance.date = "2026-01-02T03:04:05Z"; }), hash);
  EXPECT_NE(hash_with([](Plan& p) { p.options["width"] = "8"; }), hash);
  EXPECT_NE(hash_with([](Plan& p) { p.tied = {{"weight", {"l0", "l1"}}}; }), hash);
  EXPECT_NE(hash_with([](Plan& p) { p.schedule = "gpipe"; }), hash);
}

TEST(PlanHash, CoversTheOrderOfActions) {
  Plan plan = row_plan("listed", {1}, 2);
  plan.listed = {{{ActionKind::Forward, 0, 0, -1}, {ActionKind::Forward, 0, 1, -1}}};
  const std::uint64_t hash = plan_hash(BoundPlan(plan));
  std::swap(plan.listed[0][0], plan.listed[0][1]);
  EXPECT_NE(plan_hash(BoundPlan(plan)), hash);
}

TEST(PlanHash, DistinguishesPlans) {
  std::map<std::uint64_t, std::string> seen;
  for (const char* schedule : {"gpipe", "1f1b", "forward", "pipedream"}) {
    for (int replicas = 1; replicas <= 3; ++replicas) {
      for (int microbatches = 1; microbatches <= 6; ++microbatches) {
        const std::string name =
            std::string(schedule) + " " + std::to_string(replicas) + " " + std::to_string(microbatches);
        const auto [it, fresh] =
            seen.emplace(plan_hash(BoundPlan(row_plan(schedule, {replicas, 1}, microbatches))), name);
        EXPECT_TRUE(fresh) << name << " and " << it->second;
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft::format
