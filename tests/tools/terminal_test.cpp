#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"
#include "tests/support/pseudo_terminal.h"
#include "tests/support/run_command.h"

// What the programs write to a terminal.

namespace stagecraft {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using ::testing::StartsWith;

const std::string kEscape = "\033[";

class ToolsOnATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!terminal_.is_open()) GTEST_SKIP() << "this machine has no pseudo-terminals (/dev/pts)";
    // A search of a second does not end by itself: one of six leaves a gap of 7.5 %.
    folder_.write("long.json",
                  format::graph_json(read_pipedream_profile(source_folder() + "/tests/golden/pipedream", "gnmt")));
    const Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2});
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(testing::flat_topology(2)));
  }
  /// Runs a command whose standard error is the terminal; `variables` of its environment.
  Outcome run(const std::string& command, const std::string& variables = "") const {
    return folder_.run(testing::kAtATerminal + variables + " stagecraft-" + command + " 2> " + terminal_.path());
  }

  testing::CommandFolder folder_;
  testing::PseudoTerminal terminal_{132};
};

const std::string kLongPlan = "plan long.json -n 4 -b 1e9 --microbatches 8 --time-limit 1 -o plan.json";

TEST_F(ToolsOnATerminal, ShowHowFarASearchIsAndRemoveItBeforeTheResult) {
  EXPECT_EQ(run(kLongPlan).status, 0);
  const std::string written = terminal_.written();
  EXPECT_THAT(written,
              ContainsRegex("\r\033\\[Koptimal: 0\\.[5-9] of 1 s, best step [0-9.]+ ms, gap at most [0-9.]+ %, "
                            "[0-9]+ plans predicted"));
  const std::string shown = testing::shown_after(written);
  EXPECT_THAT(shown, StartsWith("plan "));
  EXPECT_THAT(shown, HasSubstr("predicted step"));
  EXPECT_THAT(shown, Not(HasSubstr("optimal: ")));
}

TEST_F(ToolsOnATerminal, RemoveItBeforeAListOfPlans) {
  EXPECT_EQ(run(kLongPlan + " --top 3").status, 0);
  const std::string written = terminal_.written();
  EXPECT_THAT(written, ContainsRegex("\r\033\\[Kall strategies: optimal: 0\\.[5-9] of 1 s, best step"));
  EXPECT_THAT(testing::shown_after(written), StartsWith("# plan "));
}

TEST_F(ToolsOnATerminal, RemoveItBeforeATableOfSettings) {
  EXPECT_EQ(run(kLongPlan + " --settings best").status, 0);
  const std::string written = terminal_.written();
  EXPECT_THAT(written, ContainsRegex("\r\033\\[Ksettings: 0\\.[5-9] of 1 s, [0-9]+ of [0-9]+, best step"));
  EXPECT_THAT(testing::shown_after(written), StartsWith("microbatches "));
}

TEST_F(ToolsOnATerminal, ShowNoProgressInACiJob) {
  EXPECT_EQ(run(kLongPlan, "CI=true").status, 0);
  EXPECT_THAT(terminal_.written(), Not(HasSubstr("\033[K")));
}

TEST_F(ToolsOnATerminal, ShowNothingOfItInAPipe) {
  const Outcome o = folder_.run("stagecraft-" + kLongPlan);
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.err, Not(HasSubstr(kEscape)));
  EXPECT_THAT(o.err, Not(HasSubstr("\r")));
}

TEST_F(ToolsOnATerminal, ColourTitlesAndTheBestPlan) {
  EXPECT_EQ(run("plan graph.json topology.json --strategy auto --microbatches 4 -o plan.json").status, 0);
  const std::string written = terminal_.written();
  EXPECT_THAT(written, StartsWith("\033[1mplan "));
  // Three layers of 3 s on two devices, each with half of the four microbatches: 18 s.
  EXPECT_THAT(written, ContainsRegex("\033\\[32m[a-z]+[^\n]* 18.0 s [^\n]*\033\\[0m\r\n"));
}

TEST_F(ToolsOnATerminal, ColourTheProgramBeforeAnError) {
  EXPECT_EQ(run("plan nothing.json topology.json").status, 1);
  EXPECT_THAT(terminal_.written(), StartsWith("\033[1;31mstagecraft-plan:\033[0m nothing.json: "));
}

TEST_F(ToolsOnATerminal, ColourTheWordWarning) {
  Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2});
  graph.quality = ProfileQuality{};
  graph.quality->trusted = false;
  graph.quality->reasons = {"2 records were dropped"};
  folder_.write("graph.json", format::graph_json(graph));
  EXPECT_EQ(run("plan graph.json topology.json --accept-untrusted -o plan.json").status, 0);
  EXPECT_THAT(terminal_.written(), StartsWith("stagecraft-plan: \033[1;33mwarning:\033[0m graph.json is not trusted"));
}

TEST_F(ToolsOnATerminal, HaveNoColoursWhereNoColorIsSet) {
  EXPECT_EQ(run("plan graph.json topology.json --strategy auto -o plan.json", "NO_COLOR=1").status, 0);
  EXPECT_THAT(terminal_.written(), Not(HasSubstr(kEscape)));
}

// A document or a table on standard output that is not a terminal has none, whatever standard error is.
TEST_F(ToolsOnATerminal, ColourOnlyWhatGoesToIt) {
  ASSERT_EQ(folder_.run("stagecraft-plan graph.json topology.json --microbatches 4 -o plan.json").status, 0);
  const Outcome o = run("whatif graph.json topology.json plan.json --set compute=2x");
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, HasSubstr("time per microbatch"));
  EXPECT_THAT(o.out, Not(HasSubstr(kEscape)));
}

}  // namespace
}  // namespace stagecraft
