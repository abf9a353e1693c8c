#include "executor/channel/ucx/ucx_transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/run_command.h"

namespace stagecraft::channel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(UcxTransports, AreSharedMemoryAloneForRanksThatShareIt) {
  const UcxSettings s =
      choose_transports({.domains = {"a", "a", "a"}, .interface = "eth0", .rdma_ports = {"mlx5_0:1"}});
  EXPECT_EQ(s.transports, "posix,cma");
  EXPECT_EQ(s.devices, "");
  EXPECT_TRUE(s.one_sided);
}

TEST(UcxTransports, AddTheInterfaceOfTheMeetingPointForOtherMachines) {
  const UcxSettings s = choose_transports({.domains = {"a", "a", "b"}, .interface = "eth0"});
  EXPECT_EQ(s.transports, "posix,cma,tcp");
  EXPECT_EQ(s.devices, "eth0");
  EXPECT_FALSE(s.one_sided);
  EXPECT_FALSE(s.rdma);
}

TEST(UcxTransports, AddRdmaPortsWhereThereAreAny) {
  const UcxSettings s =
      choose_transports({.domains = {"a", "b"}, .interface = "eth0", .rdma_ports = {"mlx5_0:1", "mlx5_1:1"}});
  EXPECT_EQ(s.transports, "posix,cma,tcp,ib");
  EXPECT_EQ(s.devices, "eth0,mlx5_0:1,mlx5_1:1");
  EXPECT_TRUE(s.rdma);
}

TEST(UcxTransports, LeaveTheEnvironmentItsChoice) {
  UcxSettings s = choose_transports({.domains = {"a", "a"}, .interface = "eth0", .given_tls = "tcp"});
  EXPECT_EQ(s.transports, "");
  EXPECT_EQ(s.devices, "");
  EXPECT_FALSE(s.one_sided);
  s = choose_transports({.domains = {"a", "b"}, .interface = "eth0", .given_tls = "sysv,cma"});
  EXPECT_TRUE(s.one_sided);
  s = choose_transports({.domains = {"a", "b"}, .interface = "eth0", .given_devices = "eth7"});
  EXPECT_EQ(s.transports, "posix,cma,tcp");
  EXPECT_EQ(s.devices, "");
}

TEST(MemoryDomain, IsThatOfThisProcess) {
  EXPECT_EQ(memory_domain(), memory_domain());
  EXPECT_THAT(memory_domain(), ::testing::HasSubstr("ipc:["));
}

TEST(InterfaceOf, FindsTheOneWithTheAddress) {
  EXPECT_EQ(interface_of("127.0.0.1"), "lo");
  EXPECT_EQ(interface_of("192.0.2.77"), "");  // an address for documentation, which no machine has
}

TEST(ActiveRdmaPorts, AreThoseWhoseStateIsActive) {
  const testing::CommandFolder folder;
  const auto port = [&](const std::string& device, const std::string& number, const std::string& state) {
    const std::filesystem::path place = folder.path() / device / "ports" / number;
    std::filesystem::create_directories(place);
    std::ofstream(place / "state") << state << '\n';
  };
  port("mlx5_1", "1", "4: ACTIVE");
  port("mlx5_0", "1", "4: ACTIVE");
  port("mlx5_0", "2", "1: DOWN");
  port("mlx5_2", "1", "2: INIT");
  EXPECT_THAT(active_rdma_ports(folder.path().string()), ElementsAre("mlx5_0:1", "mlx5_1:1"));
  EXPECT_THAT(active_rdma_ports((folder.path() / "nothing").string()), IsEmpty());
}

}  // namespace
}  // namespace stagecraft::channel
