#include "executor/meeting/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "executor/channel/channel.h"

namespace stagecraft::meeting {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of_taking(std::string buffer, std::size_t most) {
  try {
    (void)take_message(buffer, most);
  } catch (const PeerError& error) { return error.what(); }
  return "no error";
}

TEST(Wire, ReadsMessagesOneByOneAndKeepsIncompleteOnes) {
  const std::string first = packed({"set", "", std::string("a\0b", 3)});
  std::string buffer = first + packed({}) + "\0\0";
  EXPECT_EQ(first.size(), 4U + 4 + 3 + 4 + 0 + 4 + 3);
  EXPECT_EQ(take_message(buffer, 100), (Message{"set", "", std::string("a\0b", 3)}));
  EXPECT_EQ(take_message(buffer, 100), Message{});
  EXPECT_FALSE(take_message(buffer, 100).has_value());
  for (std::size_t length = 0; length < first.size(); ++length) {
    std::string part = first.substr(0, length);
    EXPECT_FALSE(take_message(part, 100).has_value()) << length;
    EXPECT_EQ(part.size(), length);
  }
}

TEST(Wire, RefusesALengthBeforeItReadsThatMuch) {
  EXPECT_EQ(error_of_taking("\xff\xff\xff\xff", 1024), "a message of 4294967295 bytes, expected at most 1024");
  EXPECT_EQ(error_of_taking(packed({std::string(9, 'x')}), 12), "a message of 13 bytes, expected at most 12");
}

TEST(Wire, RefusesATextThatIsLongerThanItsMessage) {
  EXPECT_EQ(error_of_taking(std::string("\0\0\0\5\0\0\0\2x", 9), 100), "a message whose text exceeds its length");
  EXPECT_EQ(error_of_taking(std::string("\0\0\0\2\0\0", 6), 100), "a message whose text exceeds its length");
}

TEST(Wire, TakesFromNoiseNothingLongerThanTheNoise) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string noise(random() % 24, 0);
    for (char& byte : noise) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 8);
    std::size_t bytes = 0;
    try {
      std::string buffer = noise;
      if (const auto message = take_message(buffer, 64)) {
        for (const std::string& text : *message) bytes += text.size() + 4;
      }
    } catch (const PeerError&) {}
    EXPECT_LE(bytes, noise.size());
  }
}

TEST(Wire, SaysWhatCannotBeListenedOnOrReached) {
  const Socket listener = listen_on("127.0.0.1", 0);
  const Endpoint place = own_end(listener);
  EXPECT_EQ(place.address, "127.0.0.1");
  try {
    (void)listen_on("127.0.0.1", place.port);
    FAIL() << "the port is taken";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.what(),
              "cannot listen on 127.0.0.1 port " + std::to_string(place.port) + ": Address already in use");
  }
  EXPECT_THROW((void)listen_on("no such host", 0), PeerError);
  EXPECT_THROW((void)connect_to("no such host", 1, std::chrono::milliseconds(100)), PeerError);
}

TEST(Wire, KnowsTheAddressOnTheRouteToAHost) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(is_loopback(address_towards("localhost")));
}

TEST(Wire, KnowsLoopback) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "node1", "::", "0.0.0.0"}) EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(Wire, ShowsNoControlCharactersOfOthers) {
  EXPECT_EQ(printable("a\x1b[2Jb\nc\x7f"
                      "d"),
            "a [2Jb c d");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"
                      "e"),
            "gr\xc3\xbc\xc3\x9f"
            "e");
  EXPECT_EQ(printable("x\xc2\x9b"
                      "2Jy"),
            "x\xc2 2Jy");
  EXPECT_EQ(printable("abcdef", 4), "abcd");
}

}  // namespace
}  // namespace stagecraft::meeting
