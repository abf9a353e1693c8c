#include "profiler/rank_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "costmodel/errors.h"
#include "tests/profiler/row_of_layers.h"

namespace stagecraft::profiler {
namespace {

ProfileOptions options() {
  ProfileOptions out;
  out.threads = 1;
  out.warmup = 3;
  out.rule.most_seconds = 0;
  return out;
}

/// One end of the connection to a rank.
struct End {
  int file;
  void write(double number) const { EXPECT_EQ(::write(file, &number, sizeof number), ssize_t{sizeof number}); }
  [[nodiscard]] double read() const {
    double out = 0;
    EXPECT_EQ(::recv(file, &out, sizeof out, MSG_WAITALL), ssize_t{sizeof out});
    return out;
  }
};

TEST(ServeIterations, WarmsUpThenGivesTheSecondsOfEachIteration) {
  int forwards = 0;
  const model::Model model = row_of_layers({hand_layer("sum", 0, [&](const model::LayerCall& c) {
    ++forwards;
    return std::vector<at::Tensor>{at::sum(c.inputs[0])};
  })});
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  std::jthread rank([&] { serve_iterations(model, row_batch(), options(), ends[1], ends[1]); });
  const End end{ends[0]};
  EXPECT_EQ(end.read(), -1) << "it is built";
  EXPECT_EQ(forwards, 0);

  end.write(60);
  EXPECT_EQ(end.read(), -1);
  EXPECT_EQ(forwards, 3) << "of the warm-up";
  end.write(0);
  end.write(1);  // stops after the first iteration, or when the rank sees it
  int samples = 0;
  for (double number = end.read(); number != -1; number = end.read(), ++samples) EXPECT_GE(number, 0);
  EXPECT_GE(samples, 1);
  EXPECT_EQ(forwards, 3 + samples);

  end.write(60);
  EXPECT_EQ(end.read(), -1);
  EXPECT_EQ(forwards, 3 + samples + 1) << "one iteration warms it up again";
  ::close(ends[0]);  // ends it
  rank.join();
  ::close(ends[1]);
}

/// A rank whose iterations take the given seconds.
std::vector<std::string> fake_rank(const std::string& seconds) {
  return {"/usr/bin/env", "python3", "-c",
          "import os, struct\n"
          "read = lambda: os.read(0, 8)\n"
          "write = lambda *numbers: os.write(1, struct.pack(f'{len(numbers)}d', *numbers))\n"
          "write(-1)\n"
          "while read():\n"
          "  write(-1)\n"
          "  read()\n"
          "  write(" +
              seconds +
              ")\n"
              "  read()\n"
              "  write(-1)\n"};
}

TEST(RanksAsProcesses, GiveTheMedianIteration) {
  const ProfileOptions one = options();
  const auto ranks = ranks_as_processes(fake_rank("0.25, 0.5, 0.125, 0.25, 0.75"), one);
  EXPECT_EQ(ranks->time(1, 60), Seconds(0.25));
  EXPECT_EQ(ranks->time(1, 60), Seconds(0.25)) << "the same process, once more";
  EXPECT_GT(ranks->other_processes_time(), Seconds(0));
}

TEST(RanksAsProcesses, ReportAProcessThatEnds) {
  const ProfileOptions one = options();
  const auto message = [&](const std::vector<std::string>& command) -> std::string {
    try {
      (void)ranks_as_processes(command, one)->time(1, 60);
    } catch (const DeviceError& e) { return e.what(); }
    return "";
  };
  EXPECT_THAT(message({"/bin/false"}), ::testing::HasSubstr("exited early"));
  EXPECT_THAT(message({"/no/such/program"}), ::testing::HasSubstr("/no/such/program: No such file or directory"));
}

}  // namespace
}  // namespace stagecraft::profiler
