#include "costmodel/errors.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

TEST(NearestName, CountsEditsAndSwaps) {
  const std::vector<std::string> verbs = {"plan", "explain", "predict"};
  EXPECT_EQ(nearest_name("pan", verbs), "plan");   // one character is missing
  EXPECT_EQ(nearest_name("paln", verbs), "plan");  // two are swapped: one edit
  EXPECT_EQ(nearest_name("explian", verbs), "explain");
  EXPECT_EQ(nearest_name("predicts", verbs), "predict");
  EXPECT_EQ(nearest_name("run", verbs), std::nullopt);
  EXPECT_EQ(nearest_name("plan", {}), std::nullopt);
}

TEST(UnknownName, SuggestsTheNearest) {
  EXPECT_EQ(unknown_name("model", "covnet", {"mlp", "convnet"}),
            "unknown model \"covnet\", did you mean convnet? known are mlp, convnet");
  EXPECT_EQ(unknown_name("model", "lenet", {"mlp", "convnet"}), "unknown model \"lenet\", known are mlp, convnet");
  EXPECT_EQ(unknown_name("device", "tpu", {"cpu", "cuda"}), "unknown device \"tpu\", known are cpu, cuda");
  EXPECT_EQ(unknown_name("layer", std::string(100, 'x'), {std::string(99, 'x')}).find("did you mean"),
            std::string::npos);
  EXPECT_EQ(unknown_name("layer", "one", {}), "unknown layer \"one\", known are none");
}

TEST(JoinedWords, PutTheConjunctionBeforeTheLast) {
  EXPECT_EQ(joined_words({}, "or"), "");
  EXPECT_EQ(joined_words({"a"}, "or"), "a");
  EXPECT_EQ(joined_words({"a", "b"}, "and"), "a and b");
  EXPECT_EQ(joined_words({"a", "b", "c", "d"}, "or"), "a, b, c or d");
  EXPECT_EQ(joined_words({"a", "a", "a"}, "or"), "a, a or a");
}

}  // namespace
}  // namespace stagecraft
