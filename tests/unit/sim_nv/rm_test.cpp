// The simulated kernel driver refuses what the real one refuses, with the same words.
#include <fcntl.h>
#include <sys/mman.h>

#include <gtest/gtest.h>

#include "tests/unit/sim_nv/client.h"

namespace bm::sim::nv::test {
namespace {

struct Machine {
  explicit Machine(Options options = {})
      : system(FakeNvSystem::create(options)), client(*system, system->kernel().release()) {}
  std::unique_ptr<FakeNvSystem> system;
  Client client;
};

uint32_t as_word(RmStatus status) { return static_cast<uint32_t>(status); }

TEST(SimNvRm, EveryReleaseAndChipComesUpToAChannel) {
  for (const char* release : {"535", "545", "550", "560", "570", "575", "580", "590", "595", "610"})
    for (const Chip& chip : all_chips()) {
      Machine machine({.chip = std::string(chip.name), .release = release});
      machine.client.open();
      auto compute = machine.client.channel(1, 0xc46f, chip.compute_class);
      auto copy = machine.client.channel(9 + chip.graphics_copies, 0xc46f, chip.copy_class);
      EXPECT_NE(compute.token, copy.token);
      for (const auto* channel : {&compute, &copy})
        for (const auto* memory : {&channel->ring, &channel->push, &channel->notifier})
          munmap(memory->host, memory->size);
      EXPECT_TRUE(machine.system->kernel().report().complaints.empty())
          << release << ' ' << chip.name << ": "
          << machine.system->kernel().report().complaints.front();
    }
}

TEST(SimNvRm, TokensHaveTheFormOfTheGeneration) {
  const auto token = [](const char* chip, uint32_t engine) {
    Machine machine({.chip = chip});
    machine.client.open();
    const Chip& row = *find_chip(chip);
    const auto channel =
        machine.client.channel(engine, 0xc46f, engine == 1 ? row.compute_class : row.copy_class);
    for (const auto* memory : {&channel.ring, &channel.push, &channel.notifier})
      munmap(memory->host, memory->size);
    return channel.token;
  };
  EXPECT_EQ(token("tu102", 11) >> 16, 3u);
  EXPECT_EQ(token("gh100", 11) >> 16, 3u);
  EXPECT_EQ(token("gh100", 1) >> 16, 0u);
  EXPECT_EQ(token("gb202", 1) >> 30, 1u);
}

TEST(SimNvRm, ChecksParentsHandlesOwnersAndClasses) {
  Machine machine;
  Client& client = machine.client;
  client.open();
  uint32_t status = 0;
  std::vector<std::byte> params(20);
  store(params, 12, 1);
  client.alloc(client.subdevice, 0xa06c, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidParent));
  client.alloc(0xdead, 0xa06c, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kObjectNotFound));
  client.alloc(client.device, 0xa06c, &params, &status, client.subdevice);
  EXPECT_EQ(status, as_word(RmStatus::kDuplicateName));
  client.alloc(client.device, 0x1234, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidClass));
  client.alloc(client.subdevice, 0xc761, nullptr, &status);
  EXPECT_EQ(status, as_word(RmStatus::kNotSupported)) << "GH100 has no Blackwell doorbell";
  client.alloc(client.device, 0xa06c, nullptr, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidArgument)) << "parameters are required";
  const int own = client.ctl;
  client.ctl = machine.system->open("/dev/nvidiactl", O_RDWR);
  client.alloc(client.device, 0xa06c, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidClient)) << "another file's client";
  machine.system->close(client.ctl);
  client.ctl = own;
  EXPECT_EQ(client.free(0xdead), 0u) << "as the real modules say";
  EXPECT_EQ(machine.system->kernel().report().complaints.size(), 1u);
  EXPECT_EQ(client.free(client.root), 0u);
  EXPECT_EQ(client.free(client.root), as_word(RmStatus::kInvalidObjectHandle));
}

TEST(SimNvRm, ControlsWantTheExactSize) {
  Machine machine({.release = "575"});
  Client& client = machine.client;
  client.open();
  std::vector<std::byte> gid(300);
  store(gid, 4, 2);
  EXPECT_EQ(client.control(client.subdevice, 0x2080014a, gid.data(), 264),
            as_word(RmStatus::kInvalidArgument));
  EXPECT_EQ(client.control(client.subdevice, 0x2080014a, nullptr, 268),
            as_word(RmStatus::kInvalidArgument));
  EXPECT_EQ(client.control(client.root, 0x2ffff, nullptr, 0), as_word(RmStatus::kNotSupported));
  std::vector<std::byte> params(20);
  store(params, 12, 1);
  const uint32_t group = client.alloc_ok(client.device, 0xa06c, params);
  EXPECT_EQ(client.control(group, 0xa06c0101, gid.data(), 2), as_word(RmStatus::kInvalidArgument));
}

TEST(SimNvRm, AllocationCopiesBackTheKernelsSize) {
  Machine machine({.release = "580"});
  Client& client = machine.client;
  client.open();
  // A structure of an older release: the kernel reads and writes 56 bytes, not 48.
  std::vector<std::byte> params(56, std::byte{0xa5});
  std::fill_n(params.begin(), 48, std::byte{0});
  uint32_t status = 0;
  client.alloc(client.device, 0x90f1, &params, &status);
  EXPECT_EQ(status, 0u);
  EXPECT_EQ(machine.system->kernel().calls("RM_ALLOC:90f1"), 2u);
}

TEST(SimNvRm, UnboundComputeChannelsAreNotScheduled) {
  Machine machine;
  Client& client = machine.client;
  client.open();
  const auto ring = client.video(0x10000, false);
  std::vector<std::byte> params(20);
  store(params, 12, 1);
  const uint32_t group = client.alloc_ok(client.device, 0xa06c, params);
  params.assign(12, {});
  store(params, 0, client.space);
  const uint32_t share = client.alloc_ok(group, 0x9067, params);
  params.assign(368, {});
  store64(params, 8, ring.va);
  store(params, 16, 64);
  store(params, 24, share);
  store(params, 32, ring.handle);
  store64(params, 64, 0x8000);
  client.alloc_ok(group, 0xc86f, params);
  std::array<uint8_t, 3> schedule{1, 0, 0};
  EXPECT_EQ(client.control(group, 0xa06c0101, schedule.data(), 3),
            as_word(RmStatus::kInvalidState));
  // The shape of 610 puts the USERD handle elsewhere: 580 finds none.
  std::vector<std::byte> shifted(376);
  store64(shifted, 8, ring.va);
  store(shifted, 16, 64);
  store(shifted, 24, share);
  store(shifted, 36, ring.handle);
  uint32_t status = 0;
  client.alloc(group, 0xc86f, &shifted, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidObjectHandle));
}

/// A group, a channel in it and a copy object on that, by hand; statuses of the steps that may
/// fail.
struct CopyChannel {
  uint32_t group = 0, channel = 0;
  uint32_t made = ~0u, object = ~0u, bound = ~0u;
};
CopyChannel make_copy_channel(Client& client, const Chip& chip, uint32_t engine,
                              bool has_async_share, uint32_t object_engine = 0) {
  CopyChannel made;
  const auto ring = client.video(0x10000, false);
  std::vector<std::byte> params(20);
  store(params, 8, has_async_share ? 0 : client.space);
  store(params, 12, engine);
  made.group = client.alloc_ok(client.device, 0xa06c, params);
  uint32_t share = 0;
  if (has_async_share) {
    params.assign(12, {});
    store(params, 0, client.space);
    store(params, 4, 1);
    share = client.alloc_ok(made.group, 0x9067, params);
  }
  params.assign(368, {});
  store64(params, 8, ring.va);
  store(params, 16, 64);
  store(params, 24, share);
  store(params, 32, ring.handle);
  store64(params, 64, 0x8000);
  made.channel = client.alloc(made.group, 0xc46f, &params, &made.made);
  if (made.made != 0) return made;
  params.assign(8, {});
  store(params, 0, 1);
  store(params, 4, object_engine == 0 ? engine : object_engine);
  client.alloc(made.channel, chip.copy_class, &params, &made.object);
  std::vector<std::byte> call(56);
  std::memcpy(call.data(), client.uuid.data(), 16);
  store(call, 16, static_cast<uint32_t>(client.ctl));
  store(call, 20, client.root);
  store(call, 24, made.channel);
  store64(call, 32, client.next_va);
  store64(call, 40, 0x4000000);
  made.bound = client.uvm(27, call, 48);
  return made;
}

TEST(SimNvRm, CopyEnginesOfGraphicsAreToldAndRefusedByUnifiedMemory) {
  for (const Chip& chip : all_chips()) {
    Machine machine({.chip = std::string(chip.name)});
    Client& client = machine.client;
    client.open();
    for (uint32_t i = 0; i < std::min(chip.copy_engines, 10u); ++i) {
      std::array<uint32_t, 2> caps{9 + i, 0};
      ASSERT_EQ(client.control(client.subdevice, 0x20802a03, caps.data(), 8), 0u);
      EXPECT_EQ((caps[1] & 1) != 0, i < chip.graphics_copies) << chip.name << " copy " << i;
      const CopyChannel made = make_copy_channel(client, chip, 9 + i, false);
      EXPECT_EQ(made.made, 0u);
      EXPECT_EQ(made.object, 0u);
      EXPECT_EQ(made.bound, i < chip.graphics_copies ? 0x31u : 0u) << chip.name << " copy " << i;
    }
    std::array<uint32_t, 2> none{9 + 60, 0};
    EXPECT_EQ(client.control(client.subdevice, 0x20802a03, none.data(), 8), 0x1fu);
    EXPECT_EQ(client.control(client.subdevice, 0x20802a03, none.data(), 6), 0x1fu);
  }
}

TEST(SimNvRm, AsynchronousSubcontextsAreForGraphicsOnly) {
  const Chip& chip = *find_chip("gh100");
  Machine machine;
  machine.client.open();
  EXPECT_EQ(make_copy_channel(machine.client, chip, 11, true).object, 0x1fu);
  EXPECT_EQ(make_copy_channel(machine.client, chip, 11, false).object, 0u);
  EXPECT_EQ(make_copy_channel(machine.client, chip, 1, true, 9).object, 0u)
      << "in step with graphics";
  EXPECT_EQ(make_copy_channel(machine.client, chip, 11, false, 12).object, 0x40u)
      << "an engine of another runlist";
  EXPECT_EQ(make_copy_channel(machine.client, chip, 11, false, 70).object, 0x1fu);
}

TEST(SimNvRm, ChannelsOfGraphicsAreBoundWithAnObjectThatHasAContext) {
  Machine machine;
  machine.client.open();
  const Chip& chip = *find_chip("gh100");
  EXPECT_EQ(make_copy_channel(machine.client, chip, 1, true, 9).bound, 0x31u)
      << "a copy object alone has no context buffers";
}

TEST(SimNvRm, AChannelInAGroupNamesNoSpaceAndSharesAreForAllOrNone) {
  Machine machine;
  Client& client = machine.client;
  client.open();
  const CopyChannel first = make_copy_channel(client, *find_chip("gh100"), 11, false);
  const auto ring = client.video(0x10000, false);
  const auto channel_with = [&](uint32_t share, uint32_t space) {
    std::vector<std::byte> params(368);
    store64(params, 8, ring.va);
    store(params, 16, 64);
    store(params, 24, share);
    store(params, 28, space);
    store(params, 32, ring.handle);
    store64(params, 64, 0x8000);
    uint32_t status = 0;
    client.alloc(first.group, 0xc46f, &params, &status);
    return status;
  };
  EXPECT_EQ(channel_with(0, client.space), 0x1fu);
  std::vector<std::byte> params(12);
  store(params, 0, client.space);
  const uint32_t share = client.alloc_ok(first.group, 0x9067, params);
  EXPECT_EQ(channel_with(share, 0), 0x1fu) << "the first one named none";
  EXPECT_EQ(channel_with(0, 0), 0u);
  store(params, 4, 4);
  uint32_t status = 0;
  client.alloc(first.group, 0x9067, &params, &status);
  EXPECT_EQ(status, 0x1fu) << "flags that do not exist";
}

TEST(SimNvRm, ExternallyOwnedSpacesNeedPageTablesFirst) {
  Machine machine;
  Client& client = machine.client;
  client.open();
  std::vector<std::byte> params(machine.system->kernel().release().va_space_params);
  store(params, 4, 0x48);
  const uint32_t space = client.alloc_ok(client.device, 0x90f1, params);
  params.assign(20, {});
  store(params, 12, 1);
  const uint32_t group = client.alloc_ok(client.device, 0xa06c, params);
  params.assign(12, {});
  store(params, 0, space);
  uint32_t status = 0;
  client.alloc(group, 0x9067, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidState));
}

TEST(SimNvRm, UvmKeepsOrderAndRanges) {
  Machine machine;
  Client& client = machine.client;
  client.open();
  const auto memory = client.video(0x10000, false);
  std::vector<std::byte> range(24);
  store64(range, 0, memory.va + 0x8000);
  store64(range, 8, 0x10000);
  EXPECT_EQ(client.uvm(73, range, 16), as_word(RmStatus::kUvmAddressInUse));
  EXPECT_EQ(client.map_gpu(memory.handle, kWindow + 0x10000000, 0x1000),
            as_word(RmStatus::kInvalidAddress))
      << "mapped before it is created";
  EXPECT_EQ(client.map_gpu(memory.handle, memory.va, 0x20000), as_word(RmStatus::kInvalidAddress))
      << "more than the range";
  std::vector<std::byte> free(24);
  store64(free, 0, memory.va);
  store64(free, 8, 0x8000);
  EXPECT_EQ(client.uvm(34, free, 16), as_word(RmStatus::kInvalidAddress)) << "half a range";
  store64(free, 8, 0x10000);
  EXPECT_EQ(client.uvm(34, free, 16), 0u);
  EXPECT_EQ(client.uvm(34, free, 16), as_word(RmStatus::kInvalidAddress));
  std::vector<std::byte> before(24);
  client.uvm_fd = machine.system->open("/dev/nvidia-uvm", O_RDWR);
  EXPECT_EQ(client.uvm(73, before, 16), as_word(RmStatus::kIllegalAction));
}

TEST(SimNvRm, PlansFailTheNthCall) {
  Machine machine;
  machine.system->kernel().plan({.call = "RM_ALLOC:80", .status = RmStatus::kNoMemory});
  machine.system->kernel().plan({.call = "RM_FREE", .error = 4});  // EINTR
  Client& client = machine.client;
  client.ctl = machine.system->open("/dev/nvidiactl", O_RDWR);
  uint32_t status = 0;
  client.root = client.alloc(0, 0x41, nullptr, &status);
  std::vector<std::byte> params(56);
  client.alloc(client.root, 0x80, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kNoMemory));
  client.alloc(client.root, 0x80, &params, &status);
  EXPECT_EQ(status, as_word(RmStatus::kInvalidState)) << "no file of the GPU is open";
  EXPECT_EQ(client.free(client.root), 0u) << "interrupted once, repeated";
  EXPECT_EQ(machine.system->kernel().calls("RM_FREE"), 2u);
}

TEST(SimNvRm, AFileMapsOnceAndOnlyWhatWasPrepared) {
  Machine machine;
  Client& client = machine.client;
  client.open();
  void* out = nullptr;
  EXPECT_EQ(machine.system->mmap(nullptr, 4096, PROT_READ, MAP_SHARED, client.dev, 0, &out),
            -22 /* EINVAL */);
  const auto memory = client.video(0x4000, true);
  ASSERT_NE(memory.host, nullptr);
  munmap(memory.host, memory.size);
}

}  // namespace
}  // namespace bm::sim::nv::test
