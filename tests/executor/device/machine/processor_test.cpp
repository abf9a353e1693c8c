#include "executor/device/machine/processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "costmodel/index.h"

namespace stagecraft::device {
namespace {

using ::testing::ElementsAre;
using ::testing::Key;

/// Sets an environment variable and restores its old value in the destructor.
class Variable {
 public:
  explicit Variable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) {
      before_ = value;
      was_set_ = true;
    }
  }
  ~Variable() { was_set_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  void set(const char* value) const { value ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

TEST(ProcessorName, IsOneLineWithoutItsKey) {
  const std::string name = processor_name();
  EXPECT_FALSE(name.empty());
  EXPECT_EQ(name.find('\n'), std::string::npos);
  EXPECT_NE(name.front(), ' ');
  EXPECT_EQ(name.find("model name"), std::string::npos);
}

TEST(CpuKernels, HaveTheKeysOfARecordOfTraining) {
  EXPECT_THAT(cpu_kernels(),
              ElementsAre(Key("cpu_capability"), Key("kernel_settings"), Key("processor"), Key("torch")));
  EXPECT_EQ(cpu_kernels().at("processor"), processor_name());
}

TEST(CpuKernels, SayWhichVariablesLimitThem) {
  const Variable onednn("ONEDNN_MAX_CPU_ISA");
  const Variable old("DNNL_MAX_CPU_ISA");
  const Variable mkl("MKL_ENABLE_INSTRUCTIONS");
  const Variable reproducible("MKL_CBWR");
  for (const Variable* variable : {&onednn, &old, &mkl, &reproducible}) variable->set(nullptr);
  EXPECT_EQ(cpu_kernels().at("kernel_settings"), "");
  onednn.set("AVX2");
  EXPECT_EQ(cpu_kernels().at("kernel_settings"), "ONEDNN_MAX_CPU_ISA=AVX2");
  reproducible.set("COMPATIBLE");
  EXPECT_EQ(cpu_kernels().at("kernel_settings"), "ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE");
}

TEST(SystemText, IsWhatLinuxProvidesOrEmpty) {
  EXPECT_EQ(system_text("/proc/sys/kernel/ostype"), "Linux\n");
  EXPECT_EQ(system_text("/proc/no such file"), "");
}

TEST(CoreCache, IsNoLargerThanTheMemory) {
  EXPECT_GE(core_cache(), Bytes(0));
  EXPECT_LT(core_cache(), machine_memory());
}

// MemTotal is in KiB, and in some containers that of the container.
TEST(MachineMemory, IsAtLeastThatOfMeminfo) {
  const std::string text = system_text("/proc/meminfo");
  EXPECT_EQ(text.find("MemTotal:"), 0U);
  EXPECT_GE(machine_memory().value, std::stoll(text.substr(9)) * 1024);
}

using ::testing::IsEmpty;

// proc(5): user nice system idle iowait irq softirq steal guest guest_nice; user and nice include the guest times.
const std::string kStat =
    "cpu  1100 220 303 90004 5005 16 27 78 409 0\n"
    "cpu0 1000 200 300 90000 5000 10 20 70 400 0\n"
    "cpu1 100 20 3 4 5 6 7 8 9 0\n"
    "cpu10 7 0 0 0 0 0 0 0 0 0\n"
    "intr 1 2 3 4 5 6 7 8\n";

TEST(BusyTime, AddsWhatIsNeitherIdleNorWaiting) {
  EXPECT_EQ(busy_time(kStat, 100, {0}), Seconds((1000 + 200 + 300 + 10 + 20 + 70) / 100.0));
  EXPECT_EQ(busy_time(kStat, 100, {1}), Seconds((100 + 20 + 3 + 6 + 7 + 8) / 100.0));
  EXPECT_EQ(busy_time(kStat, 100, {0, 1}), Seconds((1600 + 144) / 100.0));
}

TEST(BusyTime, IsAbsentWhereTheTextIsAnother) {
  EXPECT_FALSE(busy_time("", 100, {0}));
  EXPECT_FALSE(busy_time("cpu0 1 2 3\n", 100, {0}));
  EXPECT_FALSE(busy_time("intr 1 2 3 4 5 6 7 8\n", 100, {0}));
  EXPECT_FALSE(busy_time(kStat, 100, {0, 2})) << "processor 2 is not there";
  EXPECT_FALSE(busy_time(kStat, 100, {})) << "unknown processors";
}

TEST(ProcessTime, GrowsWithWork) {
  const Seconds before = process_time();
  volatile double sum = 0;
  while (process_time() <= before) {
    for (int i = 0; i < 100000; ++i) sum = sum + 1;
  }
  EXPECT_GT(process_time(), before);
}

TEST(ProcessorMoment, KnowsTheMachineWhereLinuxTells) {
  const ProcessorMoment moment = processor_moment();
  EXPECT_GT(moment.process, Seconds(0));
  EXPECT_FALSE(own_processors().empty());
  if (!moment.machine) GTEST_SKIP() << "no /proc/stat";
  EXPECT_GT(*moment.machine, Seconds(0));
}

TEST(ProcessorReport, IsTheDifferenceOfTwoMoments) {
  const ProcessorReport report =
      processor_report({Seconds(10), Seconds(1), Seconds(100)}, {Seconds(14), Seconds(3), Seconds(107)});
  EXPECT_EQ(report.lasted, Seconds(4));
  EXPECT_EQ(report.process_time, Seconds(2));
  EXPECT_EQ(report.machine_time, Seconds(7));
  EXPECT_EQ(report.processors, to_int(own_processors().size()));
  EXPECT_EQ(processor_report({}, {}).process, report.process);
  EXPECT_EQ(processor_report({}, {}).host, report.host);
  EXPECT_FALSE(processor_report({}, {Seconds(1), Seconds(1), Seconds(1)}).machine_time);
}

ProcessorReport report(std::uint64_t host, std::uint64_t process, double time, double machine, double lasted = 4) {
  return {host, process, Seconds(lasted), Seconds(time), Seconds(machine), 2};
}

// In 4 s, host 7 was busy for 7 s: 2 s for rank 0, 3 s for rank 1, so 2 s for others. Host 8 for 4 s, all of rank 2's.
TEST(ProcessorUseByHost, SubtractsTheTimeOfAllRanks) {
  const std::vector<ProcessorReport> reports{report(7, 1, 2, 7), report(7, 2, 3, 99), report(8, 1, 4, 4)};
  EXPECT_THAT(processor_use(reports), ElementsAre(ProcessorUse{1.25, 0.5, 2}, ProcessorUse{1, 0, 2}));
}

TEST(ProcessorUseByHost, CountsAProcessOfSeveralRanksOnce) {
  const std::vector<ProcessorReport> reports{report(7, 1, 4, 6), report(7, 1, 4, 6)};
  EXPECT_THAT(processor_use(reports), ElementsAre(ProcessorUse{1, 0.5, 2}));
}

// Ticks are late by up to 10 ms, so that the machine may seem to have done less than our processes.
TEST(ProcessorUseByHost, IsNeverNegative) {
  EXPECT_THAT(processor_use(std::vector{report(7, 1, 4, 3.99)}), ElementsAre(ProcessorUse{1, 0, 2}));
}

TEST(ProcessorUseByHost, LeavesOutWhatCannotBeTold) {
  ProcessorReport silent = report(7, 1, 4, 4);
  silent.machine_time.reset();
  EXPECT_THAT(processor_use(std::vector{silent}), IsEmpty());
  EXPECT_THAT(processor_use(std::vector{report(7, 1, 0.4, 0.8, 0.49)}), IsEmpty());
  EXPECT_THAT(processor_use(std::vector{report(7, 1, 0.5, 0.75, 0.5)}), ElementsAre(ProcessorUse{1, 0.5, 2}));
}

}  // namespace

}  // namespace stagecraft::device
