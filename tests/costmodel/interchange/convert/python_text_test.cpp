#include "costmodel/interchange/convert/python_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;

/// The value of a double-quoted Python literal with no escapes other than \xHH; fails for any other text.
std::string python_value(const std::string& literal) {
  std::string out;
  EXPECT_TRUE(literal.size() >= 2 && literal.front() == '"' && literal.back() == '"') << literal;
  for (std::size_t i = 1; i + 1 < literal.size(); ++i) {
    const char c = literal[i];
    EXPECT_TRUE(c >= ' ' && c <= '~' && c != '"' && c != '\'') << literal;
    if (c != '\\') {
      out += c;
      continue;
    }
    EXPECT_EQ(literal.substr(i, 2), "\\x") << literal;
    out += static_cast<char>(std::stoi(literal.substr(i + 2, 2), nullptr, 16));
    i += 3;
  }
  return out;
}

TEST(PythonString, LeavesPlainTextAndEscapesTheRest) {
  EXPECT_EQ(python_string(""), "\"\"");
  EXPECT_EQ(python_string("conv1 (3, 64)"), "\"conv1 (3, 64)\"");
  EXPECT_EQ(python_string("a\"\n\\"), R"("a\x22\x0a\x5c")");
}

TEST(PythonString, CannotBeEndedByAnyText) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (auto n = random() % 20; n > 0; --n)
      text += random() % 2 == 0 ? static_cast<char>(random() % 256) : "\"\\\n\r'{}"[random() % 7];
    EXPECT_EQ(python_value(python_string(text)), text) << "seed " << seed;
  }
}

TEST(PythonNames, AreDifferentAndNoKeywords) {
  EXPECT_THAT(
      python_names({"node7", "forward", "a.b", "a b", "a_b", "class", "node", "node7x", "\xC3\xA9", "layer_a_b"}),
      ElementsAre("node7", "layer_forward", "layer_a_b", "layer_a_b_2", "layer_a_b_3", "layer_class", "layer_node",
                  "layer_node7x", "layer___", "layer_layer_a_b"));
  EXPECT_TRUE(is_python_name("_a1"));
  for (const char* text : {"", "1a", "a b", "a.b", "import", "None", "a\n", "\xC3\xA9"})
    EXPECT_FALSE(is_python_name(text));
}

TEST(PythonText, WritesTuplesOfAnyLength) {
  EXPECT_EQ(python_tuple({}), "()");
  EXPECT_EQ(python_tuple({"a"}), "(a,)");
  EXPECT_EQ(python_result({"a"}), "a");
  EXPECT_EQ(python_result({"a", "b"}), "(a, b)");
}

TEST(PythonNames, AreDifferentPythonNamesForAnyIds) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> ids;
    for (auto n = random() % 12; n > 0; --n) {
      // Few different characters, so that many ids differ only in characters that a name cannot contain, or equal a
      // name generated for another id.
      std::string id = random() % 4 == 0 ? "node" : "";
      for (unsigned length = random() % 4; length > 0; --length) id += "a._2"[random() % 4];
      ids.push_back(id);
    }
    const std::vector<std::string> names = python_names(ids);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), ids.size()) << "seed " << seed;
    for (const std::string& name : names) EXPECT_TRUE(is_python_name(name)) << "seed " << seed << " " << name;
  }
}

TEST(Joined, PutsCommasBetween) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"a"}), "a");
  EXPECT_EQ(joined({"a", "b", "c"}), "a, b, c");
}

}  // namespace
}  // namespace stagecraft::interchange
