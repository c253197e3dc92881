#include "runtime/device_list.h"
#include "runtime/device_manager.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/unit/graph/rig.h"
#include "runtime/base/env.h"
#include "runtime/stream.h"

namespace bm::fake {

// Drivers are rows of plain function pointers, so what the fakes saw has to live at file scope.
struct DriverLog {
  std::atomic<int> opens{0};
  std::atomic<bool> broken{false};
  std::mutex mutex;
  std::string last;
};
DriverLog& driver_log() {
  static DriverLog log;
  return log;
}

World& driver_world() {
  static World* const world = new World(1);
  return *world;
}

Result<std::unique_ptr<hal::Device>> open_fake(std::string_view interface, uint32_t index,
                                               std::string_view arch) {
  DriverLog& log = driver_log();
  log.opens.fetch_add(1);
  if (log.broken) return fail(Code::kPermission, "/dev/fake: permission denied");
  const std::lock_guard lock(log.mutex);
  log.last = fmt::format("{}|{}|{}", interface, index, arch);
  return std::unique_ptr<hal::Device>(new FakeDevice(driver_world(), index + 1, kInline));
}
Result<std::unique_ptr<hal::Device>> open_but_kfd(std::string_view interface, uint32_t index,
                                                  std::string_view arch) {
  if (interface == "KFD") return fail(Code::kIo, "{} does not answer", interface);
  return open_fake(interface, index, arch);
}
Result<std::unique_ptr<hal::Device>> open_never(std::string_view interface, uint32_t,
                                                std::string_view) {
  return fail(Code::kIo, "{} does not answer", interface);
}
Result<uint32_t> count_none(std::string_view) { return 0u; }
Result<uint32_t> count_four(std::string_view) { return 4u; }
Result<uint32_t> count_two(std::string_view interface) {
  if (interface == "KFD") return fail(Code::kNotFound, "/dev/kfd does not exist");
  return 2u;
}

constexpr hal::DriverInfo kDrivers[] = {
    {"GONE", "", "", "plug one in", count_none, nullptr, open_never},
    {"AMD", "KFD OTHER PCI MOCKKFD", "LLVM", "", count_two, nullptr, open_but_kfd, "PCI"},
    {"CPU", "", "LLVM CLANG", "", count_four, nullptr, open_fake},
    {"NV", "RM MOCK", "PTX", "", count_two, nullptr, open_never},
};

}  // namespace bm::fake

namespace bm::hal {
// The runtime links without drivers; this program's table stands in for drivers/builtin.cpp.
std::span<const DriverInfo> builtin_drivers() { return {fake::kDrivers + 2, 1}; }
}  // namespace bm::hal

namespace bm::fake {
namespace {

using runtime::DeviceManager;

std::string error_of(DeviceManager& manager, std::string_view name, Code code) {
  const auto device = manager.open(name);
  if (device) return "opened " + (*device)->name();
  EXPECT_EQ(device.error().code, code) << device.error().message;
  return device.error().message;
}

class Manager : public testing::Test {
 protected:
  void SetUp() override {
    driver_log().opens = 0;
    driver_log().broken = false;
  }
  std::string opened_as() { return driver_log().last; }
  bm::ScopedSetting no_dev_{"DEV", ""};
  DeviceManager manager_{kDrivers};
};

TEST_F(Manager, OpensEachCanonicalNameOnce) {
  auto* cpu = must(manager_.open("cpu"));
  for (const char* name : {"CPU", "cpu:0", "CPU:LLVM", "Cpu:llvm"})
    EXPECT_EQ(must(manager_.open(name)), cpu) << name;
  EXPECT_EQ(driver_log().opens, 1);
  EXPECT_EQ(cpu->name(), "CPU");
  EXPECT_EQ(cpu->renderer(), "LLVM");
}

TEST_F(Manager, OtherUnitsAndRenderersAreOtherDevices) {
  auto* cpu = must(manager_.open("CPU"));
  auto* second = must(manager_.open("cpu:1"));
  auto* clang = must(manager_.open("cpu:clang"));
  EXPECT_NE(cpu, second);
  EXPECT_NE(cpu, clang);
  EXPECT_EQ(second->name(), "CPU:1");
  EXPECT_EQ(clang->name(), "CPU:CLANG");
  EXPECT_EQ(clang->renderer(), "CLANG");
  EXPECT_EQ(must(manager_.open(clang->name())), clang);
}

TEST_F(Manager, RenderersOfOneUnitShareItsDevice) {
  auto* llvm = must(manager_.open("CPU"));
  auto* clang = must(manager_.open("CPU:CLANG"));
  EXPECT_EQ(&llvm->hal(), &clang->hal());
  EXPECT_EQ(driver_log().opens, 1);
  EXPECT_NE(&must(manager_.open("CPU:1:CLANG"))->hal(), &clang->hal());
  EXPECT_EQ(driver_log().opens, 2);
}

TEST_F(Manager, ConcurrentOpensOfOneNameOpenOnce) {
  std::vector<std::thread> threads;
  std::vector<runtime::Device*> found(16);
  for (size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { found[i] = must(manager_.open(i % 2 ? "CPU" : "cpu:0")); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::count(found.begin(), found.end(), found[0]), 16);
  EXPECT_EQ(driver_log().opens, 1);
}

TEST_F(Manager, UnknownNamesOfferTheNearest) {
  EXPECT_EQ(error_of(manager_, "CPUU", Code::kInvalidArgument),
            "unknown device \"CPUU\", did you mean \"CPU\"?");
  EXPECT_EQ(error_of(manager_, "CPU:CLAN", Code::kInvalidArgument),
            "unknown renderer \"CLAN\" for CPU, did you mean \"CLANG\"? (there are: LLVM CLANG)");
  EXPECT_EQ(error_of(manager_, "PCE+AMD", Code::kInvalidArgument),
            "unknown interface \"PCE\" for AMD, did you mean \"PCI\"? (there are: KFD OTHER PCI "
            "MOCKKFD)");
  EXPECT_EQ(error_of(manager_, "PCI+CPU", Code::kInvalidArgument),
            "CPU has no interface to choose, \"PCI\" was asked for");
}

// Whoever boots a card has it alone: nobody does that without saying so.
TEST_F(Manager, InterfacesThatTakeADeviceAreUsedByNameOnly) {
  constexpr hal::DriverInfo table[] = {
      {"AMD", "KFD PCI USB", "LLVM", "", count_two, nullptr, open_but_kfd, "PCI USB"}};
  DeviceManager manager(table);
  const std::string message = error_of(manager, "AMD", Code::kNotFound);
  EXPECT_EQ(message.find("PCI"), message.npos) << message;
  EXPECT_FALSE(manager.open_default());
  const bm::ScopedSetting dev("DEV", "AMD:PCI");
  const auto rows = manager.list();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0].is_usable);
  EXPECT_EQ(rows[0].description, "2 of interface PCI, which DEV names; opened when it is used");
  EXPECT_EQ(driver_log().opens, 0);
  EXPECT_EQ(must(manager.open_default())->name(), "AMD");
  EXPECT_EQ(opened_as(), "PCI|0|");
}

TEST_F(Manager, AnInterfaceMayStandBehindItsDevice) {
  auto* device = must(manager_.open("PCI+AMD:1:LLVM:gfx1201"));
  EXPECT_EQ(opened_as(), "PCI|1|gfx1201");
  for (const char* name :
       {"AMD:PCI:1:LLVM:gfx1201", "amd:1:pci:LLVM:gfx1201", "AMD:pci:1::gfx1201"})
    EXPECT_EQ(must(manager_.open(name)), device) << name;
  EXPECT_EQ(must(manager_.open("AMD:PCI"))->name(), "PCI+AMD");
  EXPECT_EQ(error_of(manager_, "AMD:PCE", Code::kInvalidArgument),
            "unknown renderer \"PCE\" for AMD (there are: LLVM)");
}

TEST_F(Manager, UnitOutOfRangeSaysHowManyExist) {
  EXPECT_EQ(error_of(manager_, "CPU:7", Code::kNotFound),
            "CPU:7: CPU:7 does not exist: there are 4 CPU units");
  const std::string indices = error_of(manager_, "PCI:0,9+AMD", Code::kNotFound);
  EXPECT_NE(indices.find("unit 9"), indices.npos) << indices;
  EXPECT_NE(indices.find("there are 2"), indices.npos) << indices;
}

TEST_F(Manager, IndicesMapUnitsToPhysicalOnes) {
  must(manager_.open("PCI:1,0+AMD:0:LLVM:gfx950"));
  EXPECT_EQ(opened_as(), "PCI|1|gfx950");
  must(manager_.open("PCI:1,0+AMD:1"));
  EXPECT_EQ(opened_as(), "PCI|0|");
}

TEST_F(Manager, TriesInterfacesInOrderAndNeverAMock) {
  must(manager_.open("AMD"));
  EXPECT_EQ(opened_as(), "OTHER|0|");
  const std::string message = error_of(manager_, "NV", Code::kIo);
  EXPECT_EQ(message, "NV: NV cannot be opened (RM: RM does not answer)");
}

TEST_F(Manager, FailureIsNotRemembered) {
  driver_log().broken = true;
  error_of(manager_, "CPU", Code::kPermission);
  driver_log().broken = false;
  must(manager_.open("CPU"));
}

TEST_F(Manager, DefaultIsTheFirstThatOpens) {
  EXPECT_EQ(must(manager_.open_default())->name(), "AMD");
}

TEST_F(Manager, NoUsableDeviceListsEveryReason) {
  DeviceManager manager(std::span<const hal::DriverInfo>(kDrivers, 1));
  const auto none = manager.open_default();
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().message, "no usable devices\n  GONE: no GONE unit found: plug one in");
}

TEST_F(Manager, DevChoosesTheDefaultAndFillsInWhatNamesLeaveOpen) {
  const bm::ScopedSetting dev("DEV", "cpu:1:clang; PCI:1+AMD::gfx950");
  auto* device = must(manager_.open_default());
  EXPECT_EQ(device->name(), "CPU:1");
  EXPECT_EQ(device->renderer(), "CLANG");
  EXPECT_EQ(must(manager_.open("CPU:1")), device);
  EXPECT_EQ(must(manager_.open("CPU:1:CLANG")), device);
  EXPECT_EQ(must(manager_.open("CPU:1:LLVM"))->name(), "CPU:1:LLVM");
  EXPECT_EQ(must(manager_.open("AMD"))->name(), "AMD");
  EXPECT_EQ(opened_as(), "PCI|1|gfx950");
}

TEST_F(Manager, DevNeverFallsBack) {
  const bm::ScopedSetting dev("DEV", "NV");
  EXPECT_FALSE(manager_.open_default().has_value());
  const bm::ScopedSetting typo("DEV", "CPUX");
  const auto device = manager_.open_default();
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().message, "DEV: unknown device \"CPUX\", did you mean \"CPU\"?");
}

TEST_F(Manager, ListHasOneLinePerUnitOrTheReason) {
  const auto rows = manager_.list();
  ASSERT_EQ(rows.size(), 1u + 2u + 4u + 2u);
  EXPECT_EQ(rows[0].name, "GONE");
  EXPECT_NE(rows[0].problem.find("plug one in"), std::string::npos);
  EXPECT_TRUE(rows[1].is_usable);
  EXPECT_EQ(rows[4].name, "CPU:1");
  EXPECT_EQ(rows[4].arch, "fake");
  EXPECT_FALSE(rows[7].is_usable);
  EXPECT_NE(rows[7].problem.find("RM does not answer"), std::string::npos);
}

TEST(Devices, FreeFunctionsUseTheBuiltInTable) {
  const bm::ScopedSetting dev("DEV", "");
  auto* device = must(runtime::default_device());
  EXPECT_EQ(device, must(runtime::open_device("cpu")));
  const auto open = runtime::opened_devices();
  EXPECT_NE(std::find(open.begin(), open.end(), device), open.end());
  EXPECT_EQ(runtime::list_devices().size(), 4u);
  // Another table is another set of devices.
  EXPECT_NE(must(runtime::open_device_with(kDrivers, "CPU")), device);
  EXPECT_EQ(must(runtime::open_device_with(kDrivers, "CPU")),
            must(runtime::open_device_with(kDrivers, "cpu:0")));
}

TEST(Devices, CanonicalNameIsIdempotent) {
  EXPECT_EQ(must(runtime::canonical_name("cpu:0")), "CPU");
  EXPECT_EQ(must(runtime::canonical_name("cpu:1")), "CPU:1");
  EXPECT_EQ(must(runtime::canonical_name("CPU:1")), "CPU:1");
  EXPECT_FALSE(runtime::canonical_name("CPU;AMD").has_value());
}

TEST(Devices, ListsAreDividedWhereAnotherDeviceBegins) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(runtime::device_list(""), Names{""});
  EXPECT_EQ(runtime::device_list("CPU"), Names{"CPU"});
  EXPECT_EQ(runtime::device_list("CPU:1,cpu:2;AMD"), (Names{"CPU:1", "cpu:2", "AMD"}));
  EXPECT_EQ(runtime::device_list("KFD:0,1+AMD"), Names{"KFD:0,1+AMD"});
  EXPECT_EQ(runtime::device_list("CPU::x86_64,znver4,CPU:3"),
            (Names{"CPU::x86_64,znver4", "CPU:3"}));
}

TEST(Devices, ForkedChildIsRefusedAndTheParentGoesOn) {
  const bm::ScopedSetting dev("DEV", "");
  auto* device = must(runtime::open_device("CPU"));
  const pid_t child = fork();
  if (child == 0) {
    const auto used = device->stream().submit(hal::QueueKind::kCompute, {});
    const auto opened = runtime::open_device("CPU");
    const bool ok = !used && !opened && !device->synchronize() &&
                    used.error().message.find("forked") != std::string::npos;
    _exit(ok ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  EXPECT_TRUE(device->synchronize().has_value());
}

TEST(Devices, EqualCodeIsLoadedOnce) {
  Rig rig({kInline});
  const auto code = mix_kernel(2, 1, {});
  const auto first = must(runtime::load_program(rig.device(), code));
  EXPECT_EQ(must(runtime::load_program(rig.device(), code)), first);
  EXPECT_NE(must(runtime::load_program(rig.device(), mix_kernel(3, 1, {}))), first);
  EXPECT_EQ(rig.hals[0]->loads, 2);
}

}  // namespace
}  // namespace bm::fake
