#include "costmodel/interchange/problems/problem_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft::interchange {
namespace {

using ::testing::ThrowsMessage;

double amount_in(const std::string& text) {
  const format::Json json = format::parse_document(text, "f.json");
  return amount(format::Cursor(json, "f.json").at(0));
}

TEST(Amount, IsFromNothingToTenToTheEighteen) {
  EXPECT_EQ(amount_in("[0]"), 0);
  EXPECT_EQ(amount_in("[1e18]"), 1e18);
  EXPECT_THAT([] { (void)amount_in("[1.001e18]"); },
              ThrowsMessage<FormatError>("f.json: /0: found 1.001e+18, expected a number of at most 1e18"));
  EXPECT_THAT([] { (void)amount_in("[-1]"); },
              ThrowsMessage<FormatError>("f.json: /0: found -1, expected a number of at least 0"));
}

TEST(WholeBytes, RoundsAndStaysWithinBytes) {
  EXPECT_EQ(whole_bytes(0), 0_B);
  EXPECT_EQ(whole_bytes(2.4), 2_B);
  EXPECT_EQ(whole_bytes(2.5), 3_B);
  // Sums of amounts may exceed what 64 bits hold, 9.2e18.
  EXPECT_EQ(whole_bytes(1e300), Bytes(2'000'000'000'000'000'000));
  EXPECT_EQ(whole_bytes(std::numeric_limits<double>::infinity()), Bytes(2'000'000'000'000'000'000));
}

struct Node {
  int id;
};
struct Arrow {
  int source;
  int destination;
};

/// The complaint about nodes 10, 11, 12 with these edges; empty if there is none.
std::string complaint(const std::vector<Arrow>& edges) {
  const format::Json json = format::parse_document("[{}, {}, {}]", "f.json");
  try {
    check_acyclic(format::Cursor(json, "f.json"), std::vector<Node>{{10}, {11}, {12}}, edges);
  } catch (const FormatError& error) { return error.what(); }
  return "";
}

TEST(CheckAcyclic, NamesTheFirstNodeOnOrAfterACycle) {
  EXPECT_EQ(complaint({}), "");
  EXPECT_EQ(complaint({{2, 1}, {1, 0}, {2, 0}, {2, 0}}), "");
  const std::string what = " is on a cycle or after one, expected an acyclic graph";
  EXPECT_EQ(complaint({{0, 1}, {1, 2}, {2, 1}}), "f.json: /1: node 11" + what);
  EXPECT_EQ(complaint({{1, 2}, {2, 1}, {2, 0}}), "f.json: /0: node 10" + what);
  EXPECT_EQ(complaint({{2, 2}}), "f.json: /2: node 12" + what);
}

}  // namespace
}  // namespace stagecraft::interchange
