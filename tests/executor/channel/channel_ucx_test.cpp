#include "executor/channel/ucx/channel_ucx.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "costmodel/index.h"
#include "costmodel/prediction/memory.h"
#include "executor/channel/ucx/ucx_all_reduce.h"
#include "executor/channel/ucx/ucx_line.h"
#include "executor/channel/ucx/ucx_worker.h"
#include "tests/executor/channel/channel_suite.h"

// What the conformance suite does not ask of other channels.

namespace stagecraft::channel {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class UcxChannelOver : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, UcxChannelOver, ::testing::Values("ucx", "ucx_tcp"),
                         [](const auto& entry) { return entry.param; });

TEST(UcxVersion, IsThatOfTheLibraryLoaded) {
  const std::string found = ucx_version();
  void* const library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto text = reinterpret_cast<const char* (*)()>(dlsym(library, "ucp_get_version_string"));
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(found, std::string("UCX ") + text());
}

// The cost model counts the same memory without knowing the channel: to a value per segment.
TEST(UcxScratchValues, AreWhatTheCostModelCounts) {
  EXPECT_EQ(ucx_scratch_values(1000, 3), 2 * 4 * 65536);                             // segments are not smaller
  EXPECT_EQ(ucx_scratch_values(std::int64_t{1} << 26, 4), 3 * 4 * ((1 << 20) + 1));  // 2^26 / 4 ranks / 16 segments
  for (const int ranks : {2, 3, 8}) {
    for (const std::int64_t values : {1, 1000, 1 << 21, 1 << 24, 100'000'001}) {
      const Bytes counted = reduce_buffer_bytes(Bytes(4 * values), ranks, "ucx");
      EXPECT_NEAR(static_cast<double>(4 * ucx_scratch_values(values, ranks)), static_cast<double>(counted.value),
                  4.0 * (ranks - 1) * 4)
          << values << " over " << ranks;
    }
  }
}

TEST_P(UcxChannelOver, SumsTensorsOfManySegments) {
  // 12 segments in a chunk for two ranks, 8 for three; their windows hold 4.
  constexpr std::int64_t kCount = 12 * 2 * 65536 - 5;
  for (const int ranks : {2, 3}) {
    run_on_ranks(GetParam(), ranks, kLong, [&](Channel& channel) {
      std::vector<int> members;
      for (int i = 0; i < ranks; ++i) members.push_back(i);
      for (int round = 1; round <= 3; ++round) {
        at::Tensor values = at::arange(kCount, at::kFloat).remainder(1000).mul(channel.rank() + round);
        channel.start({.kind = Collective::AllReduce, .values = values, .members = members, .tag = 3})->wait();
        const float factor = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * round);
        EXPECT_TRUE(values.equal(at::arange(kCount, at::kFloat).remainder(1000).mul(factor))) << round;
      }
    });
  }
}

TEST_P(UcxChannelOver, AnAllReduceContinuesWhileItsRankWaitsForSomethingElse) {
  run_on_ranks(GetParam(), 2, kLong, [](Channel& channel) {
    at::Tensor values = at::full({1 << 20}, 1.0F);
    const auto reducing = channel.start({.kind = Collective::AllReduce, .values = values, .members = {0, 1}, .tag = 3});
    if (channel.rank() == 0) {
      reducing->wait();  // needs rank 1, which waits for a message that only follows it
      channel.send(at::full({1}, 5.0F), 1, 4)->wait();
    } else {
      EXPECT_EQ(channel.receive({{1}, at::kFloat}, 0, 4)->wait().item<float>(), 5.0F);
      reducing->wait();
    }
    EXPECT_TRUE(values.equal(at::full({1 << 20}, 2.0F)));
  });
}

TEST_P(UcxChannelOver, AnAllReduceOfManyValuesNamesTheCountsThatDiffer) {
  run_on_ranks(GetParam(), 2, kLong, [](Channel& channel) {
    at::Tensor values = at::empty({100000 + channel.rank()}, at::kFloat);
    const std::string error = error_of(
        [&] { channel.start({.kind = Collective::AllReduce, .values = values, .members = {0, 1}, .tag = 7})->wait(); });
    EXPECT_THAT(error, HasSubstr("rank " + std::to_string(channel.rank()) + " expected float32 [10000"));
    EXPECT_THAT(error, HasSubstr("under tag 7, got float32 [10000"));
    channel.barrier();
  });
}

TEST_P(UcxChannelOver, AReceiveThatNobodyWaitsForLeavesItsMemoryAlone) {
  run_on_ranks(GetParam(), 2, kLong, [](Channel& channel) {
    const int peer = 1 - channel.rank();
    const TensorSpec spec{{1 << 18}, at::kFloat};
    const at::Tensor sent = at::full(spec.shape, 3.0F);
    // The first message is announced, the second posted in advance; its receive is forgotten before it was sent.
    auto first = channel.receive(spec, peer, 5);
    auto sending = channel.send(sent, peer, 5);
    EXPECT_TRUE(first->wait().equal(sent));
    sending->wait();
    channel.receive(spec, peer, 5).reset();
    channel.barrier();
    auto forgotten = channel.send(sent, peer, 5);
    auto last = channel.receive(spec, peer, 5);
    EXPECT_TRUE(last->wait().equal(sent));  // takes what the forgotten receive would have taken
    forgotten->wait();
  });
}

TEST(UcxTag, DiffersForEverySenderTagKindAndCount) {
  std::set<ucp_tag_t> tags;
  int count = 0;
  for (const int from : {0, 1, 255, kMostUcxRanks - 1}) {
    for (const int tag : {0, 1, Channel::kControlTag, Channel::kMostTags - 1}) {
      for (const UcxKind kind : {UcxKind::Payload, UcxKind::Header, UcxKind::Share, UcxKind::Sum}) {
        for (const std::uint64_t number : {0U, 1U, (1U << 18) - 1}) {
          tags.insert(ucx_tag(from, tag, kind, number));
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(tags.size(), to_index(count));
}

// ---- a worker

/// Two connected workers of this process.
struct Pair {
  explicit Pair(const std::string& transports, bool one_sided)
      : a(std::make_shared<UcxWorker>(UcxSettings{.transports = transports, .one_sided = one_sided}, 2)),
        b(std::make_shared<UcxWorker>(UcxSettings{.transports = transports, .one_sided = one_sided}, 2)) {
    a->connect(1, b->address());
    b->connect(0, a->address());
  }
  /// Both make progress until it is over, for at most 10 s.
  void finish(UcxTransfer& transfer) const {
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (!transfer.over() && Clock::now() < end) {
      a->progress();
      b->progress();
    }
    ASSERT_TRUE(transfer.over());
  }
  std::shared_ptr<UcxWorker> a, b;
};

TEST(UcxWorker, SaysThatAMessageIsLongerThanItsReceive) {
  for (const std::int64_t values : {8, 1 << 20}) {
    const Pair pair("posix,cma", true);
    const at::Tensor out = at::full({values}, 1.0F);
    const at::Tensor in = at::full({values}, 0.0F);
    UcxTransfer receiving = pair.b->receive(7, in.mutable_data_ptr(), in.nbytes() / 2, in);
    UcxTransfer sending = pair.a->send(1, 7, out.const_data_ptr(), out.nbytes(), out);
    pair.finish(receiving);
    EXPECT_EQ(receiving.status(), UCS_ERR_MESSAGE_TRUNCATED);
    EXPECT_TRUE(in.narrow(0, values / 2, values / 2).equal(at::full({values / 2}, 0.0F)));
  }
}

TEST(UcxWorker, CountsTheBytesOfAShorterMessage) {
  const Pair pair("posix,cma", true);
  const at::Tensor out = at::full({8}, 1.0F);
  const at::Tensor in = at::full({16}, 0.0F);
  UcxTransfer receiving = pair.b->receive(7, in.mutable_data_ptr(), in.nbytes(), in);
  UcxTransfer sending = pair.a->send(1, 7, out.const_data_ptr(), out.nbytes(), out);
  pair.finish(receiving);
  EXPECT_EQ(receiving.status(), UCS_OK);
  EXPECT_EQ(receiving.bytes(), out.nbytes());
}

TEST(UcxWorker, AWaitEndsWhenItIsWoken) {
  const auto worker = std::make_shared<UcxWorker>(UcxSettings{.transports = "posix,cma", .one_sided = true}, 2);
  std::atomic<bool> waits = false;
  std::atomic<bool> stop = false;
  std::thread waker([&] {
    waits.wait(false);
    stop = true;
    worker->wake();
  });
  const auto stopped = [&] {
    const bool out = stop.load();
    waits = true;
    waits.notify_one();
    return out;
  };
  const auto outcome = worker->wait([] { return false; }, stopped, Clock::now() + std::chrono::seconds(20), false);
  waker.join();
  EXPECT_EQ(outcome, UcxWorker::Outcome::Stopped);
}

TEST(UcxWorker, AWaitEndsAtItsDeadline) {
  const auto worker = std::make_shared<UcxWorker>(UcxSettings{.transports = "posix,cma", .one_sided = true}, 2);
  for (const bool may_spin : {false, true}) {
    EXPECT_EQ(
        worker->wait([] { return false; }, [] { return false; }, Clock::now() + std::chrono::milliseconds(5), may_spin),
        UcxWorker::Outcome::Late);
  }
}

TEST(UcxWorker, NoticesThatAWatchedProcessEnds) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  const auto worker = std::make_shared<UcxWorker>(UcxSettings{.transports = "posix,cma", .one_sided = true}, 2);
  worker->watch(1, child);
  const auto wait = [&](std::chrono::milliseconds longest) {
    return worker->wait([] { return false; }, [&] { return worker->lost(1).has_value(); }, Clock::now() + longest,
                        false);
  };
  EXPECT_EQ(wait(std::chrono::milliseconds(20)), UcxWorker::Outcome::Late);
  kill(child, SIGKILL);
  EXPECT_EQ(wait(std::chrono::seconds(20)), UcxWorker::Outcome::Stopped);
  EXPECT_EQ(worker->lost(1), "its process has ended");
  waitpid(child, nullptr, 0);
}

// UCX does not arm its events while messages wait for room in a peer's queue, and a killed peer never makes room.
TEST(UcxWorker, NoticesTheEndOfAProcessWithUnreadMessages) {
  const UcxSettings settings{.transports = "posix,cma", .one_sided = true};
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const UcxWorker idle(settings, 2);
    const bool told = write(ends[1], idle.address().data(), idle.address().size()) > 0;
    close(ends[1]);
    while (told) pause();
    _exit(1);
  }
  close(ends[1]);
  std::string address;
  char letter = 0;
  while (read(ends[0], &letter, 1) == 1) address += letter;
  close(ends[0]);
  ASSERT_FALSE(address.empty());
  const auto worker = std::make_shared<UcxWorker>(settings, 2);
  worker->connect(1, address);
  worker->watch(1, child);
  const at::Tensor message = at::full({16}, 1.0F);
  std::vector<UcxTransfer> sent;
  while (sent.empty() || sent.back().over()) {
    sent.push_back(worker->send(1, 0, message.const_data_ptr(), message.nbytes(), message));
    ASSERT_LT(sent.size(), 100'000) << "the queue never fills";
  }
  kill(child, SIGKILL);
  EXPECT_EQ(worker->wait([&] { return sent.back().over(); }, [&] { return worker->lost(1).has_value(); },
                         Clock::now() + std::chrono::seconds(20), false),
            UcxWorker::Outcome::Stopped);
  EXPECT_EQ(worker->lost(1), "its process has ended");
  worker->give_up();
  waitpid(child, nullptr, 0);
}

TEST(UcxWorker, NamesTransportsThatDoNotExist) {
  try {
    UcxWorker worker(UcxSettings{.transports = "pigeons"}, 2);
    FAIL() << "no error";
  } catch (const std::exception& error) { EXPECT_THAT(error.what(), HasSubstr("UCX cannot start")); }
}

/// The ports on which this process listens, from Linux's table of its sockets.
std::set<std::uint16_t> listening_ports() {
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry, error).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::uint16_t> out;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::vector<std::string> field{std::istream_iterator<std::string>(fields), {}};
    constexpr std::size_t kLocal = 1, kState = 3, kInode = 9;
    if (field[kState] != "0A" || !sockets.contains(field[kInode])) continue;
    out.insert(static_cast<std::uint16_t>(std::stoi(field[kLocal].substr(field[kLocal].find(':') + 1), nullptr, 16)));
  }
  return out;
}

/// Whether a connection to this port of 127.0.0.1 is established within half a second.
bool accepts(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  if (!connected) {
    pollfd event{fd, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof(error);
    connected = poll(&event, 1, 500) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  close(fd);
  return connected;
}

TEST(UcxWorker, OpensNoPortForSharedMemory) {
  const std::set<std::uint16_t> before = listening_ports();
  const Pair pair("posix,cma", true);
  EXPECT_EQ(listening_ports(), before);
}

TEST(UcxWorker, LeavesTheFunctionsThatMapMemoryAlone) {
  const Pair pair("posix,cma", true);
  for (const char* function : {"mmap", "munmap", "madvise"}) {
    void* const libc = ::dlopen("libc.so.6", RTLD_NOW);
    const auto* const code = static_cast<const unsigned char*>(::dlsym(libc, function));
    ASSERT_NE(code, nullptr);
    EXPECT_NE(*code, 0xE9) << function << " begins with a jump of x86-64";
    ::dlclose(libc);
  }
}

TEST(UcxWorker, AdmitsOnlyTheGivenAddresses) {
  const std::set<std::uint16_t> before = listening_ports();
  const auto worker =
      std::make_shared<UcxWorker>(UcxSettings{.transports = "tcp", .devices = "lo", .one_sided = false}, 2);
  std::vector<std::uint16_t> opened;
  for (const std::uint16_t port : listening_ports()) {
    if (!before.contains(port)) opened.push_back(port);
  }
  ASSERT_FALSE(opened.empty());
  for (const std::uint16_t port : opened) EXPECT_TRUE(accepts(port)) << port;
  worker->admit_only({"192.0.2.9", "127.0.0.1"});
  for (const std::uint16_t port : opened) EXPECT_TRUE(accepts(port)) << port;
  worker->admit_only({"192.0.2.9", "127.0.0.2"});
  for (const std::uint16_t port : opened) EXPECT_FALSE(accepts(port)) << port;
  worker->admit_only({});
  for (const std::uint16_t port : opened) EXPECT_FALSE(accepts(port)) << port;
}

}  // namespace
}  // namespace stagecraft::channel
