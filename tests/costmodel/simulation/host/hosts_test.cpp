#include "costmodel/simulation/host/hosts.h"

#include <gtest/gtest.h>

namespace stagecraft::simulation {
namespace {

Transfer transfer(double latency, double transmission, Handling sender, Handling receiver) {
  return {.latency = Seconds(latency), .transmission = Seconds(transmission), .sender = sender, .receiver = receiver};
}
Handling handling(double fixed, double streaming) { return {Seconds(fixed), Seconds(streaming)}; }

TEST(MessageCost, LeavesTheLatencyBesideTheFixedHandling) {
  const Transfer message = transfer(0.5, 1, handling(0.125, 0.5), handling(0.25, 0.5));
  EXPECT_DOUBLE_EQ(message_cost(message, false).latency.value, 0.125);
  EXPECT_DOUBLE_EQ(message_cost(message, false).transmission.value, 1);
  // The sender's streaming comes before the message moves: that much less is left.
  EXPECT_DOUBLE_EQ(message_cost(message, true).latency.value, 0.125);
  EXPECT_DOUBLE_EQ(message_cost(message, true).transmission.value, 1.5 - 0.125 - (0.125 + 0.5));
}

TEST(MessageCost, HandlingBeyondTheLatencyIsPartOfTheTransmission) {
  const Transfer message = transfer(0.5, 1, handling(0.5, 0), handling(0.25, 0));
  EXPECT_DOUBLE_EQ(message_cost(message, false).latency.value, 0);
  EXPECT_DOUBLE_EQ(message_cost(message, false).transmission.value, 0.75);
  // More handling than the whole message takes.
  const Transfer much = transfer(0.1, 0.2, handling(0.3, 0.1), handling(0.2, 0.4));
  EXPECT_DOUBLE_EQ(message_cost(much, false).transmission.value, 0);
}

}  // namespace
}  // namespace stagecraft::simulation
