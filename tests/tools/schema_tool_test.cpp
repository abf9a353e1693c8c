#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/run_command.h"

// stagecraft-schema as a user runs it.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SchemaTool, ListsTheDocumentsAndPrintsTheSchemaOfOne) {
  const testing::CommandFolder folder;
  const testing::Outcome all = folder.run("stagecraft-schema");
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(StartsWith("graph        A directed acyclic graph of layers"),
                             HasSubstr("\ncheckpoint   manifest.json of a checkpoint: what was trained")));
  const testing::Outcome plan = folder.run("stagecraft-schema plan");
  EXPECT_EQ(plan.status, 0) << plan.err;
  const auto schema = nlohmann::json::parse(plan.out);
  EXPECT_THAT(schema["$id"].get<std::string>(), StartsWith("urn:stagecraft:plan:"));
  EXPECT_EQ(schema["properties"]["format"]["const"], "stagecraft.plan");
}

TEST(SchemaTool, NamesTheDocumentsForAnUnknownOne) {
  const testing::CommandFolder folder;
  const testing::Outcome o = folder.run("stagecraft-schema model");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, StartsWith("stagecraft-schema: unknown document \"model\", known are graph, topology, plan, "));
}

}  // namespace
}  // namespace stagecraft
