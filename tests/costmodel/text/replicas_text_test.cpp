#include "costmodel/text/replicas_text.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

TEST(ReplicasText, JoinsThemOrCountsStages) {
  EXPECT_EQ(replicas_text({}), "");
  EXPECT_EQ(replicas_text({3}), "3");
  EXPECT_EQ(replicas_text({2, 1, 16}), "2-1-16");
  EXPECT_EQ(replicas_text({2, 1, 16}, 6), "2-1-16");
  EXPECT_EQ(replicas_text({2, 1, 16}, 5), "3 stages");
}

}  // namespace
}  // namespace stagecraft
