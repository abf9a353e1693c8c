#include "partitioner/proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Two stages of one layer with parameters of 1 GiB, one device each.
class Proof : public ::testing::Test {
 protected:
  Proof() {
    constraints_.plan.microbatches = 2;
    Candidate candidate;
    candidate.partition = {{0, 1}, {1, 1}};
    ranked_ = predicted_plan("by hand", graph_, topology_, candidate, simulated_costs(), constraints_);
  }
  /// The plan with its own lists, without the action.
  void list_without(const Action& action) {
    auto lists = BoundPlan(ranked_.plan).action_lists();
    for (auto& list : lists) {
      std::erase_if(list, [&](const Action& a) { return a.kind == ActionKind::Update || a == action; });
    }
    ranked_.plan.schedule = "listed";
    ranked_.plan.listed = std::move(lists);
  }

  Graph graph_ = testing::chain_graph({1, 1}, {2, 2}, 1000_B, 1_GiB);
  Topology topology_ = testing::flat_topology(2);
  Constraints constraints_;
  RankedPlan ranked_;
};

TEST_F(Proof, FindsNothingWrongWithAPlanThatWasPredicted) {
  EXPECT_EQ(refutation(ranked_, graph_, topology_), std::nullopt);
  EXPECT_NO_THROW(check_proved(ranked_, graph_, topology_, "graph.json"));
  list_without({});
  EXPECT_EQ(refutation(ranked_, graph_, topology_), std::nullopt);
}

TEST_F(Proof, NamesTheActionThatIsMissing) {
  list_without({ActionKind::Backward, 1, 1, -1});
  EXPECT_THAT([&] { check_proved(ranked_, graph_, topology_, "graph.json"); },
              ThrowsMessage<NoAnswerError>("graph.json: the plan is not proved: rank 1 lacks 1B1"));
  EXPECT_EQ(refutation(ranked_, graph_, topology_)->kind, ErrorKind::Unprovable);
}

/// Parameters and gradients alone are 2 GiB.
TEST_F(Proof, ChecksTheMemoryOfDevicesUnlessTheStrategyHasItsOwnRule) {
  topology_.device.memory = 1_GiB;
  EXPECT_THAT([&] { check_proved(ranked_, graph_, topology_, "graph.json"); },
              ThrowsMessage<NoAnswerError>(HasSubstr("graph.json: the plan is not proved: rank 0 needs up to 2")));
  EXPECT_EQ(refutation(ranked_, graph_, topology_)->kind, ErrorKind::DoesNotFit);
  ranked_.fits = false;
  EXPECT_EQ(refutation(ranked_, graph_, topology_), std::nullopt);
}

}  // namespace
}  // namespace stagecraft::partitioner
