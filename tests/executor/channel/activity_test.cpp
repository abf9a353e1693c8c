#include "executor/channel/activity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor/channel/control_tags.h"

namespace stagecraft::channel {
namespace {

using std::chrono::seconds;

TEST(Activity, IsEmptyBeforeAnythingBegan) { EXPECT_EQ(Activity().text(), ""); }

TEST(Activity, NamesActionMicrobatchStageAndStepFromOneOn) {
  Activity activity;
  activity.begin({.action = "forward", .stage = 1, .microbatch = 3, .step = 6});
  EXPECT_EQ(activity.text(Activity::Clock::now() + seconds(2)),
            "forward of microbatch 3 of stage 1 in step 7 for 2.0 s");
  activity.begin({.action = "update", .stage = 0});
  EXPECT_EQ(activity.text(Activity::Clock::now() + seconds(1)), "update of stage 0 for 1.0 s");
}

TEST(Activity, NamesThePeerItWaitsForUntilItContinues) {
  Activity activity;
  const auto text = [&] { return activity.text(Activity::Clock::now() + seconds(3)); };
  activity.wait_for(2, 5);
  EXPECT_EQ(text(), "waiting for rank 2 under tag 5 for 3.0 s");
  activity.begin({.action = "backward", .stage = 0, .microbatch = 1});
  activity.wait_for(1, kBucketsTag);
  EXPECT_EQ(text(), "backward of microbatch 1 of stage 0, waiting for rank 1 to sum replicas' gradients for 3.0 s");
  activity.go_on();
  EXPECT_EQ(text(), "backward of microbatch 1 of stage 0 for 3.0 s");
}

TEST(Activity, SaysWhatAControlTagIsFor) {
  Activity activity;
  for (const auto& [tag, purpose] : std::vector<std::pair<int, std::string>>{{kLossTag, "about losses"},
                                                                             {kResultTag, "about results"},
                                                                             {kNormTag, "about gradient norms"},
                                                                             {kStopTag, "about stopping"},
                                                                             {kReportTag, "about a checkpoint"},
                                                                             {kTiesTag + 3, "to sum tied gradients"},
                                                                             {kTimesTag, "about processor time"},
                                                                             {kBarrierTag, "at a barrier"}}) {
    activity.wait_for(0, tag);
    EXPECT_THAT(activity.text(), ::testing::StartsWith("waiting for rank 0 " + purpose + " for "));
  }
}

TEST(Activity, IsNeverReadHalfWritten) {
  Activity activity;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; !stop; ++i)
      activity.begin({.action = "forward", .stage = i % 9, .microbatch = i % 9, .step = i % 9 - 1});
  });
  while (activity.text().empty()) std::this_thread::yield();
  for (int i = 0; i < 20000; ++i) {
    const std::string text = activity.text();
    if (text.starts_with("forward of microbatch 0")) continue;  // step -1 is not shown
    const char number = text[std::string("forward of microbatch ").size()];
    EXPECT_EQ(text.find(std::string("forward of microbatch ") + number + " of stage " + number + " in step " + number),
              0U)
        << text;
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace stagecraft::channel
