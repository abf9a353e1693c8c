#include "executor/device/machine/processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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

}  // namespace
}  // namespace stagecraft::device
