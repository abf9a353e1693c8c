#include "profiler/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "costmodel/errors.h"

namespace stagecraft::profiler {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr int kNotSupported = 3;

/// A fake machine whose driver answers like NVML.
struct FakeMachine {
  struct Gpu {
    std::string name = "NVIDIA H100 80GB HBM3";
    std::string bus;
    unsigned long long memory = 80'000'000'000ULL;
    unsigned generation = 5;
    std::vector<std::string> nvlinks;  ///< the other ends' buses; empty: the link is down
  };
  std::vector<Gpu> gpus;
  int init_status = 0;
  int name_status = 0;
  int clock_status = 0;
  int initialised = 0;

  /// Handles are numbers from 1, which are never dereferenced.
  static NvmlDevice* handle(std::size_t i) { return reinterpret_cast<NvmlDevice*>(i + 1); }
  const Gpu& gpu(NvmlDevice* device) const { return gpus.at(reinterpret_cast<std::size_t>(device) - 1); }

  static int write(const std::string& value, char* out, unsigned length) {
    if (value.size() >= length) return 7;
    std::memcpy(out, value.c_str(), value.size() + 1);
    return 0;
  }
  static int write(const std::string& bus, NvmlPciInfo* out) { return write(bus, out->bus_id, sizeof out->bus_id); }

  Nvml nvml() {
    Nvml out;
    out.init = [this] { return init_status != 0 ? init_status : (++initialised, 0); };
    out.shutdown = [this] { return --initialised, 0; };
    out.error_string = [](int status) { return status == 9 ? "Driver Not Loaded" : "Unknown Error"; };
    out.driver_version = [](char* text, unsigned length) { return write("580.65.06", text, length); };
    out.count = [this](unsigned* n) { return *n = static_cast<unsigned>(gpus.size()), 0; };
    out.handle = [](unsigned i, NvmlDevice** device) { return *device = handle(i), 0; };
    out.name = [this](NvmlDevice* d, char* text, unsigned length) {
      return name_status != 0 ? name_status : write(gpu(d).name, text, length);
    };
    out.uuid = [this](NvmlDevice* d, char* text, unsigned length) { return write("GPU-" + gpu(d).bus, text, length); };
    out.memory = [this](NvmlDevice* d, NvmlMemory* memory) { return *memory = {gpu(d).memory, 0, 0}, 0; };
    out.max_clock = [this](NvmlDevice*, int clock, unsigned* megahertz) {
      return *megahertz = clock == 1 ? 1980 : 2619, clock_status;
    };
    out.compute_capability = [](NvmlDevice*, int* major, int* minor) { return *major = 9, *minor = 0, 0; };
    out.pci = [this](NvmlDevice* d, NvmlPciInfo* pci) { return write(gpu(d).bus, pci); };
    out.pci_generation = [this](NvmlDevice* d, unsigned* generation) { return *generation = gpu(d).generation, 0; };
    out.pci_width = [](NvmlDevice*, unsigned* width) { return *width = 16, 0; };
    out.nvlink_state = [this](NvmlDevice* d, unsigned link, int* state) {
      if (link >= gpu(d).nvlinks.size()) return kNotSupported;
      return *state = gpu(d).nvlinks[link].empty() ? 0 : 1, 0;
    };
    out.nvlink_remote = [this](NvmlDevice* d, unsigned link, NvmlPciInfo* pci) {
      return write(gpu(d).nvlinks.at(link), pci);
    };
    out.common_ancestor = [](NvmlDevice* a, NvmlDevice* b, int* level) {
      const auto board = [](NvmlDevice* d) { return (reinterpret_cast<std::size_t>(d) - 1) / 2; };
      return *level = board(a) == board(b) ? 10 : 50, 0;
    };
    return out;
  }
};

/// Two pairs of GPUs, each joined by 4 NVLinks; the driver writes domains with 8 digits.
FakeMachine bridged() {
  FakeMachine out;
  const std::vector<std::string> buses = {"00000000:05:00.0", "00000000:06:00.0", "00000000:C5:00.0",
                                          "00000000:C6:00.0"};
  for (std::size_t i = 0; i < buses.size(); ++i) {
    FakeMachine::Gpu gpu;
    gpu.bus = buses[i];
    gpu.nvlinks = std::vector<std::string>(4, buses[i ^ 1U]);
    gpu.nvlinks.emplace_back("");
    out.gpus.push_back(gpu);
  }
  return out;
}

TEST(Discover, ReportsDevicesAndPairs) {
  FakeMachine machine = bridged();
  const Discovery found = discover(machine.nvml());
  EXPECT_EQ(machine.initialised, 0);
  EXPECT_EQ(found.driver, "580.65.06");
  ASSERT_EQ(found.devices.size(), 4U);
  const DiscoveredDevice& last = found.devices[3];
  EXPECT_EQ(last.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(last.uuid, "GPU-00000000:C6:00.0");
  EXPECT_EQ(last.memory, Bytes(80'000'000'000));
  EXPECT_EQ(last.sm_clock_hz, 1.98e9);
  EXPECT_EQ(last.memory_clock_hz, 2.619e9);
  EXPECT_EQ(last.links.compute_capability, 90);
  EXPECT_THAT(last.links.links, ElementsAre(Pair(plain_bus("0000:c5:00.0"), 4)));
  EXPECT_EQ(last.links.switch_links, 0);
  ASSERT_EQ(found.pairs.size(), 6U);
  EXPECT_EQ(found.pairs[0], (DiscoveredPair{0, 1, 4, "one PCI switch"}));
  EXPECT_EQ(found.pairs[1], (DiscoveredPair{0, 2, 0, "several NUMA nodes"}));
}

TEST(Discover, CountsNvlinksToOtherEndsAsThoseOfASwitch) {
  FakeMachine machine = bridged();
  for (FakeMachine::Gpu& gpu : machine.gpus) gpu.nvlinks.assign(18, "0000ffff:ff:ff.0");
  const Discovery found = discover(machine.nvml());
  EXPECT_EQ(found.devices[0].links.switch_links, 18);
  EXPECT_THAT(found.devices[0].links.links, IsEmpty());
  const Topology topology = declared_topology(found);
  ASSERT_EQ(topology.levels.size(), 1U);
  EXPECT_EQ(topology.levels[0].count, 4);
  EXPECT_NEAR(topology.levels[0].link.bandwidth.value, 18 * 20.6e9, 1);
}

TEST(Discover, NamesTheCallThatFailedAndShutsDown) {
  FakeMachine machine = bridged();
  machine.init_status = 9;
  EXPECT_THAT([&] { (void)discover(machine.nvml()); },
              ThrowsMessage<DeviceError>(
                  AllOf(StartsWith("nvmlInit_v2: Driver Not Loaded (9); install"), HasSubstr("nccl-topology"))));
  machine.init_status = 0;
  machine.name_status = kNotSupported;
  EXPECT_THAT([&] { (void)discover(machine.nvml()); },
              ThrowsMessage<DeviceError>(StartsWith("nvmlDeviceGetName: Unknown Error (3)")));
  EXPECT_EQ(machine.initialised, 0);
  machine.gpus.clear();
  EXPECT_THAT([&] { (void)discover(machine.nvml()); },
              ThrowsMessage<DeviceError>(StartsWith("the driver 580.65.06 sees no GPUs; ")));
}

TEST(DeclaredTopology, MakesLevelsOfBridgedPairs) {
  FakeMachine machine = bridged();
  machine.gpus[2].memory = 40'000'000'000ULL;
  machine.gpus[3].generation = 4;
  const Topology topology = declared_topology(discover(machine.nvml()));
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[0].name, "nvlink");
  EXPECT_EQ(topology.levels[0].count, 2);
  EXPECT_NEAR(topology.levels[0].link.bandwidth.value, 4 * 20.6e9, 1);
  EXPECT_EQ(topology.levels[1].name, "node");
  EXPECT_EQ(topology.levels[1].count, 2);
  EXPECT_NEAR(topology.levels[1].link.bandwidth.value, 24e9, 1);  // the slowest: generation 4 with 16 lanes
  EXPECT_EQ(topology.levels[1].link.origin, LinkOrigin::Declared);
  Device device{"NVIDIA H100 80GB HBM3", Bytes(40'000'000'000)};
  device.kind = DeviceKind::Gpu;
  EXPECT_EQ(topology.device, device);
  const auto& notes = topology.provenance.notes;
  EXPECT_EQ(notes.at("highest clocks"), "multiprocessors 1980 MHz, memory 2619 MHz");
  EXPECT_EQ(notes.at("pairs below one PCI switch"), "2");
  EXPECT_EQ(notes.at("pairs below several NUMA nodes"), "4");
  EXPECT_EQ(topology.provenance.versions.at("driver"), "580.65.06");
}

TEST(DeclaredTopology, HoldsOneDeviceAndWhatTheDriverDoesNotTell) {
  FakeMachine machine;
  machine.gpus.push_back({});
  machine.gpus[0].bus = "00000000:05:00.0";
  machine.clock_status = kNotSupported;
  const Topology topology = declared_topology(discover(machine.nvml()));
  EXPECT_EQ(device_count(topology), 1);
  EXPECT_EQ(topology.provenance.notes.at("highest clocks"), "multiprocessors unknown, memory unknown");
}

TEST(LoadNvml, SaysWhatWasTriedAndWhatToDo) {
  EXPECT_THAT([] { (void)load_nvml("libnot-there.so.1"); },
              ThrowsMessage<DeviceError>(
                  AllOf(StartsWith("no NVIDIA driver found: tried libnot-there.so.1: "), HasSubstr("install NVIDIA"),
                        HasSubstr("stagecraft import nccl-topology"), HasSubstr("examples/topology-3-levels.json"))));
  EXPECT_THAT([] { (void)load_nvml("libc.so.6"); },
              ThrowsMessage<DeviceError>(StartsWith("the driver's libnvidia-ml has no nvmlInit_v2; ")));
}

}  // namespace
}  // namespace stagecraft::profiler
