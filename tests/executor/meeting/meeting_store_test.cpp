#include "executor/meeting/meeting_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <functional>
#include <thread>

#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_protocol.h"
#include "tests/support/channels/launch_at.h"

// The store at which ranks meet, and who may not use it. "Strangers" do not know the secret.

namespace stagecraft::meeting {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong{20000};
constexpr milliseconds kShort{300};

LaunchInfo launch_to(const StoreServer& server, const std::string& secret = "", int rank = 0) {
  return testing::launch_at(server, rank, 2, secret);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const PeerError& error) { return error.what(); }
  return "no error";
}

std::string error_of_connecting(const LaunchInfo& launch, milliseconds deadline = kLong) {
  return error_of([&] { (void)connect_store(launch, "meet", deadline); });
}

std::string place(const StoreServer& server) { return "127.0.0.1:" + std::to_string(server.port()); }

TEST(MeetingStore, KeepsValuesForAll) {
  const StoreServer server;
  const auto one = connect_store(launch_to(server), "a", kLong);
  const auto other = connect_store(launch_to(server), "a", kLong);
  const auto apart = connect_store(launch_to(server), "b", kLong);
  one->set("key", std::string("x\0y", 3));
  EXPECT_EQ(other->get_to_str("key"), std::string("x\0y", 3));
  EXPECT_FALSE(apart->check({"key"}));
  EXPECT_EQ(one->add("sum", 5), 5);
  EXPECT_EQ(other->add("sum", -7), -2);
  other->append("key", {'z'});
  EXPECT_EQ(one->get_to_str("key"), std::string("x\0yz", 4));
  EXPECT_EQ(one->getNumKeys(), 2);
  EXPECT_TRUE(one->deleteKey("key"));
  EXPECT_FALSE(one->deleteKey("key"));
  EXPECT_FALSE(other->check({"sum", "key"}));
  EXPECT_TRUE(other->check({"sum"}));
}

TEST(MeetingStore, SetsOnlyWhatIsStillAsExpected) {
  const StoreServer server;
  const auto store = connect_store(launch_to(server), "a", kLong);
  EXPECT_EQ(store->compareSet("key", std::string("no"), std::string("new")), "no");  // like c10d's stores
  EXPECT_FALSE(store->check({"key"}));
  EXPECT_EQ(store->compareSet("key", std::string(), std::string("first")), "first");
  EXPECT_EQ(store->compareSet("key", std::string(), std::string("second")), "first");
  EXPECT_EQ(store->compareSet("key", std::string("first"), std::string("second")), "second");
}

TEST(MeetingStore, SetsTheWillOfAClientThatCloses) {
  const StoreServer server;
  const auto client = [&] { return connect_store(launch_to(server), "a", kLong); };
  const auto other = client();
  const auto waits = [&](const std::string& key) {
    try {
      other->wait({key}, milliseconds(5000));
      return true;
    } catch (const std::exception&) { return false; }
  };
  {
    const auto dying = client();
    leave_will(*dying, "overwritten", "", "first will");
    leave_will(*dying, "gone", "", "yes");
    EXPECT_FALSE(other->check({"gone"}));
  }
  EXPECT_TRUE(waits("gone"));
  EXPECT_EQ(other->get_to_str("gone"), "yes");
  EXPECT_FALSE(other->check({"overwritten"})) << "a connection has one will";
  other->set("state", "ended well");
  {
    const auto late = client();
    leave_will(*late, "state", "running", "lost");
  }
  {
    const auto leaving = client();
    leave_will(*leaving, "never", "", "yes");
    withdraw_will(*leaving);
  }
  {
    const auto last = client();  // the server handles connections in order
    leave_will(*last, "end", "", "yes");
  }
  EXPECT_TRUE(waits("end"));
  EXPECT_EQ(other->get_to_str("state"), "ended well");
  EXPECT_FALSE(other->check({"never"}));
}

TEST(MeetingStore, WaitsUntilAllKeysAreThereOrTheDeadlineHasPassed) {
  const StoreServer server;
  const auto store = connect_store(launch_to(server), "a", kLong);
  const auto other = connect_store(launch_to(server), "a", kLong);
  store->set("one", std::string("1"));
  EXPECT_EQ(error_of([&] { store->wait({"one", "two"}, kShort); }), "timed out waiting for keys");
  std::thread late([&] { other->set("two", std::string("2")); });
  EXPECT_EQ(store->get_to_str("two"), "2");
  late.join();
  store->wait({"one", "two"}, kShort);
}

TEST(MeetingStore, ListensOnTheGivenAddressOnly) {
  EXPECT_EQ(StoreServer().endpoint().address, "127.0.0.1");
  EXPECT_EQ(StoreServer({.host = "127.0.0.2"}).endpoint().address, "127.0.0.2");
  const StoreServer server({.host = "127.0.0.2"});
  EXPECT_THAT(error_of_connecting(launch_to(server), kShort), HasSubstr("Connection refused"));
}

TEST(MeetingStore, ServesWhereTheLaunchSays) {
  LaunchInfo launch;
  launch.host = "localhost";
  EXPECT_TRUE(is_loopback(serve_meeting(launch, kShort)->endpoint().address));
  launch.listen = "127.0.0.3";
  EXPECT_EQ(serve_meeting(launch, kShort)->endpoint().address, "127.0.0.3");
}

/// A launch of torchrun, whose agent hosts a store.
struct Agent {
  Agent() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    launch.ranks = 2;
    launch.port = store->getPort();
    launch.agent = true;
    launch.secret = "ours";
  }
  c10::intrusive_ptr<c10d::TCPStore> store;
  LaunchInfo launch;
};

TEST(MeetingStore, IsFoundThroughTheAgentOfTorchrun) {
  const Agent agent;
  const auto server = serve_meeting(agent.launch, kLong);
  const LaunchInfo found = find_meeting(agent.launch, kLong);
  EXPECT_EQ(found.host, "127.0.0.1");
  EXPECT_EQ(found.port, server->port());
  EXPECT_NE(found.port, agent.launch.port);
  EXPECT_EQ(error_of_connecting(found), "no error");
}

TEST(MeetingStore, DoesNotGoWhereAStrangerSentItThroughTheAgent) {
  const Agent agent;
  LaunchInfo stranger = agent.launch;
  stranger.secret = "guess";
  const auto server = serve_meeting(stranger, kLong);
  EXPECT_THAT(error_of([&] { (void)find_meeting(agent.launch, kLong); }),
              HasSubstr("in torchrun's store was written with a different secret"));
  agent.store->set("stagecraft/0/meeting", std::vector<std::uint8_t>{'1', ' ', 0xff});
  EXPECT_THAT(error_of([&] { (void)find_meeting(agent.launch, kLong); }), HasSubstr("with a different secret"));
}

TEST(MeetingStore, SaysThatTheAgentWasToldNothing) {
  const Agent agent;
  EXPECT_EQ(error_of([&] { (void)find_meeting(agent.launch, kShort); }),
            "rank 0 waited 0.3 s for rank 0 to publish the rendezvous server at torchrun's agent 127.0.0.1:" +
                std::to_string(agent.launch.port));
}

TEST(MeetingStore, RejectsARankWithAWrongOrMissingSecretImmediately) {
  const StoreServer server({.secret = "ours"});
  constexpr std::chrono::hours kNever{24};  // a rank that waited for it would outlast the test's time limit
  EXPECT_EQ(error_of_connecting(launch_to(server, "theirs", 1), kNever),
            "rank 1 has a different secret from the rendezvous server at " + place(server) +
                "; start all ranks with the same STAGECRAFT_SECRET");
  EXPECT_EQ(error_of_connecting(launch_to(server, "", 1), kNever),
            "rank 1 has no secret, unlike the rendezvous server at " + place(server) +
                "; start all ranks with the same STAGECRAFT_SECRET");
  EXPECT_EQ(error_of_connecting(launch_to(server, "ours", 1)), "no error");
}

TEST(MeetingStore, SaysThatTheMeetingPointIsAnotherRuns) {
  const StoreServer server({.run_id = "another"});
  EXPECT_EQ(
      error_of_connecting(launch_to(server), kShort),
      "rank 0 did not reach the rendezvous server at " + place(server) + " within 0.3 s: it belongs to another run");
}

TEST(MeetingStore, DoesNotTalkToAServerThatDoesNotKnowTheSecret) {
  const Socket listener = listen_on("127.0.0.1", 0);
  std::string told;
  std::thread impostor([&] {
    // The listener does not block, but the connection is made before this thread must answer quickly.
    int number = -1;
    while (number < 0) number = ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK);
    const Socket socket(number);
    send_message(socket, {kGreeting, "nonce"}, kLong);
    std::string buffer;
    (void)receive_message(socket, buffer, kMostGreetingBytes, kLong);
    send_message(socket, {kWelcome, std::string(64, '0')}, kLong);
    told = error_of([&] { (void)receive_message(socket, buffer, kMostRequestBytes, kLong); });
  });
  LaunchInfo launch;
  launch.port = own_end(listener).port;
  launch.secret = "ours";
  EXPECT_THAT(error_of_connecting(launch), HasSubstr("rank 0 has a different secret from the rendezvous server at "));
  impostor.join();
  EXPECT_EQ(told, "the connection was closed");
}

/// The reply to a stranger that sends `bytes` after the greeting; empty if the connection is closed.
std::string stranger_says(const StoreServer& server, const std::string& bytes) {
  const Socket socket = connect_to("127.0.0.1", server.port(), kLong);
  std::string buffer;
  EXPECT_EQ(receive_message(socket, buffer, kMostGreetingBytes, kLong).front(), kGreeting);
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  ::shutdown(socket.get(), SHUT_WR);
  try {
    return receive_message(socket, buffer, kMostGreetingBytes, kLong).front();
  } catch (const PeerError&) { return ""; }
}

TEST(MeetingStore, AnswersNoStranger) {
  const StoreServer server({.secret = "ours"});
  const auto store = connect_store(launch_to(server, "ours"), "meet", kLong);
  store->set("key", std::string("value"));
  EXPECT_EQ(stranger_says(server, packed({kGet, "meet/key"})), "");
  EXPECT_EQ(stranger_says(server, packed({kSet, "meet/key", "mine"})), "");
  EXPECT_EQ(stranger_says(server, packed({kDelete, "meet/key"})), "");
  EXPECT_EQ(stranger_says(server, packed({kCount})), "");
  EXPECT_EQ(stranger_says(server, std::string("\xff\xff\xff\xff", 4)), "");
  EXPECT_EQ(stranger_says(server, std::string(5000, 'x')), "");
  EXPECT_EQ(stranger_says(server, ""), "");
  // A guess, followed by a request that only a member may make.
  EXPECT_EQ(stranger_says(server, packed({"1", "0", "nonce", std::string(64, '0')}) + packed({kDelete, "meet/key"})),
            kOtherSecret);
  EXPECT_EQ(stranger_says(server, packed({"rank/0", "0", "nonce", std::string(64, '0')})), "");
  EXPECT_EQ(store->get_to_str("key"), "value");
  EXPECT_EQ(store->getNumKeys(), 2) << "the key, and that somebody called itself rank 1";
}

TEST(MeetingStore, GivesAClientOfC10dNothing) {
  const StoreServer server({.secret = "ours"});
  const auto store = connect_store(launch_to(server, "ours"), "meet", kLong);
  c10d::TCPStoreOptions options;
  options.port = server.port();
  options.waitWorkers = false;
  options.timeout = kShort;
  EXPECT_ANY_THROW((void)c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)->listKeys());
  EXPECT_EQ(store->getNumKeys(), 0);
}

TEST(MeetingStore, ManyStrangersKeepNobodyOut) {
  const StoreServer server({.secret = "ours"});
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_to("127.0.0.1", server.port(), kLong));
  EXPECT_EQ(error_of_connecting(launch_to(server, "ours")), "no error");
}

TEST(MeetingStore, TakesNoMoreThanItHasRoomFor) {
  const StoreServer server;
  const auto store = connect_store(launch_to(server), "a", kLong);
  const std::string part(kMostRequestBytes - 1024, 'x');
  const std::size_t room = kMostStoredBytes / part.size();
  for (std::size_t i = 0; i < room; ++i) store->set(std::to_string(i), part);
  EXPECT_THAT(error_of([&] { store->set("more", part); }), HasSubstr("rejected the value of \"more\": too long"));
  store->set("0", std::string("short"));
  store->set("more", part);
  EXPECT_EQ(store->getNumKeys(), static_cast<std::int64_t>(room) + 1);
  const auto other = connect_store(launch_to(server), "a", kLong);
  EXPECT_NE(error_of([&] { other->set("long", std::string(kMostRequestBytes, 'x')); }), "no error");
}

}  // namespace
}  // namespace stagecraft::meeting
