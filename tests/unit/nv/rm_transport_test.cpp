// Objects, channels and faults over a resource manager that is no driver of this machine: recorded
// answers, without a single system call.

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "drivers/nv/rm/channel.h"
#include "drivers/nv/rm/device.h"
#include "drivers/nv/rm/fault.h"

namespace bm::nv {
namespace {

constexpr uint32_t kGpu = 0x100;
constexpr uint32_t kUsermode = 0xc661, kChannel = 0xc86f, kCompute = 0xcbc0, kCopy = 0xc8b5;

template <class S>
abi::Params<S>& as(abi::AnyParams* params) {
  return static_cast<abi::Params<S>&>(*params);
}

/// Answers as an H100 gives them; keeps what was asked and which objects live.
class RecordedRm final : public RmTransport {
 public:
  RecordedRm() : abi_(*abi::Abi::create(*abi::parse_version("570.144"))) {}
  ~RecordedRm() override { EXPECT_TRUE(live.empty()) << "objects were not freed"; }

  const abi::Abi& abi() const override { return abi_; }
  const std::string& version() const override { return version_; }

  Result<RmAnswer> alloc(Stage stage, std::string_view what, const RmAllocCall& call) override {
    BM_TRY(way(stage, what));
    asked.push_back(fmt::format("alloc {:04x}", call.object_class));
    if (const auto found = refused.find(call.object_class); found != refused.end())
      return RmAnswer{found->second, 0};
    EXPECT_TRUE(call.client == 0 || live.contains(call.parent)) << what;
    live.insert(++last_handle_);
    return RmAnswer{kStatusOk, last_handle_};
  }

  Result<uint32_t> control(Stage stage, std::string_view what, const RmControlCall& call) override {
    BM_TRY(way(stage, what));
    asked.push_back(fmt::format("control {}", what));
    EXPECT_TRUE(live.contains(call.object)) << what;
    if (const auto found = refused.find(call.command); found != refused.end()) return found->second;
    switch (call.command) {
      case abi::kCtrlGpuIdInfo:
        EXPECT_EQ(as<abi::GpuIdInfo>(call.params).get(abi::GpuIdInfo::gpuId), kGpu);
        break;
      case abi::kCtrlClassList: answer_classes(call); break;
      case abi::kCtrlGidInfo:
        as<abi::GidInfo>(call.params).bytes(abi::GidInfo::data)[0] = std::byte{0x77};
        break;
      case abi::kCtrlGrInfo: answer_gr(call); break;
      case abi::kCtrlWorkSubmitToken:
        as<abi::WorkSubmitToken>(call.params).set(abi::WorkSubmitToken::workSubmitToken, 0x1234);
        break;
      case abi::kCtrlMmuFaultInfo: answer_mmu(call); break;
      case abi::kCtrlSmErrorStates: answer_sms(call); break;
      default: break;  // zeros
    }
    return kStatusOk;
  }

  Result<uint32_t> free(Stage stage, std::string_view what, uint32_t, uint32_t,
                        uint32_t handle) override {
    BM_TRY(way(stage, what));
    return live.erase(handle) == 1 ? kStatusOk : uint32_t{0x57};
  }

  Result<std::unique_ptr<RmMapping>> map(Stage stage, const RmMapCall& call) override {
    BM_TRY(way(stage, call.what));
    EXPECT_TRUE(live.contains(call.memory) && live.contains(call.device));
    asked.push_back(fmt::format("map {} of GPU {:#x}", call.what, call.gpu));
    auto mapping = std::make_unique<Bytes>(call.bytes);
    pages[std::string(call.what)] = mapping->view();
    return mapping;
  }

  Result<std::unique_ptr<RmEvent>> open_event(uint32_t gpu, uint32_t, uint32_t device) override {
    EXPECT_EQ(gpu, kGpu);
    EXPECT_TRUE(live.contains(device));
    return std::make_unique<Arrivals>();
  }
  std::string driver_log() override { return "NVRM: Xid (PCI:0000:01:00): 31\nusb 1-1: new\n"; }

  std::set<uint32_t> live;
  std::map<uint32_t, uint32_t> refused;  ///< class or command → status
  std::vector<std::string> asked;
  std::map<std::string, HostView> pages;
  int calls_left = -1;  ///< then the way breaks

 private:
  class Bytes final : public RmMapping {
   public:
    explicit Bytes(uint64_t bytes) : storage_(bytes / 8, ~uint64_t{0}) {
      view_ = *HostView::mapped(storage_.data(), bytes);
    }

   private:
    std::vector<uint64_t> storage_;
  };
  class Arrivals final : public RmEvent {
   public:
    uint64_t data() const override { return 42; }
    Result<int> fd() const override { return fail(Code::kUnsupported, "no descriptor here"); }
    Result<bool> wait(int timeout_ms, std::string_view) override { return timeout_ms != 0; }
  };

  Status way(Stage stage, std::string_view what) {
    if (calls_left == 0)
      return fail(Code::kDeviceLost, "stage {}: {}: the GSP does not answer", int(stage), what);
    if (calls_left > 0) --calls_left;
    return {};
  }
  template <class T>
  static void put(const RmControlCall& call, size_t at, T value) {
    ASSERT_LE(at + sizeof(T), call.pointed.size()) << "what the call points to is not passed on";
    std::memcpy(call.pointed.data() + at, &value, sizeof(T));
  }
  static void answer_classes(const RmControlCall& call) {
    const std::array<uint32_t, 4> classes = {kUsermode, kChannel, kCompute, kCopy};
    abi::Params<abi::ClassList>& params = as<abi::ClassList>(call.params);
    params.set(abi::ClassList::numClasses, classes.size());
    if (params.get(abi::ClassList::classList) != 0)
      for (size_t i = 0; i < classes.size(); ++i) put(call, i * 4, classes[i]);
  }
  static void answer_gr(const RmControlCall& call) {
    const std::map<uint32_t, uint32_t> values = {
        {abi::kGrGpcs, 8},          {abi::kGrTpcsPerGpc, 9},     {abi::kGrSmsPerTpc, 2},
        {abi::kGrSmVersion, 0x900}, {abi::kGrMaxWarpsPerSm, 64}, {abi::kGrEnabledTpcs, 66}};
    for (size_t at = 0; at + 8 <= call.pointed.size(); at += 8) {
      uint32_t index = 0;
      std::memcpy(&index, call.pointed.data() + at, 4);
      if (values.contains(index)) put(call, at + 4, values.at(index));
    }
  }
  static void answer_mmu(const RmControlCall& call) {
    using S = abi::MmuFaultInfo;
    abi::Params<S>& params = as<S>(call.params);
    params.set(S::count, 1);
    params.set(S::mmuFaultInfoList_faultAddress, 0x1234'5000);
    params.set(S::mmuFaultInfoList_faultType, 2);  // NV_PFAULT_FAULT_TYPE_PTE
    params.set(S::mmuFaultInfoList_accessType, 1);
  }
  static void answer_sms(const RmControlCall& call) {
    using S = abi::SmErrorStates;
    abi::Params<S>& params = as<S>(call.params);
    if (params.get(S::startingSM) == 0)
      params.set(S::smErrorStateArray_hwwWarpEsr, 9, 3);  // illegal instruction, third SM
  }

  abi::Abi abi_;
  std::string version_ = "570.144";
  uint32_t last_handle_ = 0xc0de0000;
};

class RecordedSpace final : public RmAddressSpace {
 public:
  Status add_channel(uint32_t channel, bool is_graphics) override {
    if (is_broken) return fail(Code::kIo, "no room for the channel");
    channels[channel] = is_graphics;
    return {};
  }
  Status remove_channel(uint32_t channel) override {
    EXPECT_EQ(channels.erase(channel), 1u);
    return {};
  }
  std::map<uint32_t, bool> channels;
  bool is_broken = false;
};

class RmOverRecordedAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    client_ = *RmClient::create(rm_);
    device_ = std::make_unique<RmDevice>(*client_, RmGpuId{kGpu, "GPU 10de:2330", 1 << 20});
    ring_.va = 0x1000'0000;
    ring_.size = 65536;
    ring_.handle = 5;
  }
  Status open() {
    BM_TRY(device_->open_objects());
    BM_TRY(device_->map_usermode());
    BM_TRY(device_->open_va_space());
    return device_->read_facts();
  }
  ChannelRequest request(Engine engine = Engine::kCompute) {
    return {.engine = engine, .ring = &ring_, .entries = 256, .userd_offset = 4096};
  }

  RecordedRm rm_;
  RecordedSpace space_;
  std::unique_ptr<RmClient> client_;
  std::unique_ptr<RmDevice> device_;
  Memory ring_;
};

TEST_F(RmOverRecordedAnswers, AGpuIsOpened) {
  ASSERT_TRUE(open());
  const GpuFacts& facts = device_->facts();
  EXPECT_EQ(facts.sm_version, 90u);
  EXPECT_EQ(facts.compute_class, kCompute);
  EXPECT_EQ(facts.enabled_sms, 132u);
  EXPECT_EQ(facts.uuid[0], 0x77);
  EXPECT_EQ(facts.video_memory, 1u << 20) << "nobody tells, so what the list of GPUs says";
  EXPECT_EQ(device_->usermode().size(), 65536u);
  EXPECT_TRUE(std::ranges::count(rm_.asked, "map the doorbell page of GPU 0x100") == 1);
}

TEST_F(RmOverRecordedAnswers, AChannelIsMadeAndFreed) {
  ASSERT_TRUE(open());
  const size_t objects = rm_.live.size();
  for (const Engine engine : {Engine::kCompute, Engine::kCopy}) {
    Result<std::unique_ptr<Channel>> channel = RmChannel::create(*device_, space_, request(engine));
    ASSERT_TRUE(channel) << channel.error().message;
    EXPECT_EQ((*channel)->token, 0x1234u);
    EXPECT_EQ((*channel)->engine_class, engine == Engine::kCompute ? kCompute : kCopy);
    EXPECT_FALSE((*channel)->has_error());
    rm_.pages.at("the error notifier").store<uint16_t>(14, 0xffff);
    EXPECT_TRUE((*channel)->has_error());
    ASSERT_EQ(space_.channels.size(), 1u);
    EXPECT_EQ(space_.channels.begin()->second, engine == Engine::kCompute);
    channel->reset();
    EXPECT_TRUE(space_.channels.empty());
    EXPECT_EQ(rm_.live.size(), objects);
  }
}

TEST_F(RmOverRecordedAnswers, FaultsAndEventsAreAskedFor) {
  ASSERT_TRUE(open());
  std::unique_ptr<Channel> made = *RmChannel::create(*device_, space_, request());
  RmChannel& channel = static_cast<RmChannel&>(*made);
  const FaultDetails details = read_fault_details(*device_, channel);
  ASSERT_EQ(details.mmu.size(), 1u);
  EXPECT_EQ(details.mmu[0].address, 0x1234'5000u);
  EXPECT_EQ(details.mmu[0].access, "write");
  EXPECT_EQ(details.mmu[0].kind, "unmapped");
  ASSERT_EQ(details.sms.size(), 1u);
  EXPECT_EQ(details.sms[0].sm, 3u);
  EXPECT_EQ(details.kernel_log, "NVRM: Xid (PCI:0000:01:00): 31\n");
  EXPECT_EQ(channel.event_fd().error().code, Code::kUnsupported);
}

TEST_F(RmOverRecordedAnswers, WhatIsRefusedNamesStageAndStatus) {
  ASSERT_TRUE(open());
  const size_t objects = rm_.live.size();
  rm_.refused[kChannel] = 0x22;
  const auto channel = RmChannel::create(*device_, space_, request());
  ASSERT_FALSE(channel);
  EXPECT_NE(channel.error().message.find("stage 26 (channel): RM_ALLOC of class c86f"),
            std::string::npos)
      << channel.error().message;
  rm_.refused.clear();
  space_.is_broken = true;
  EXPECT_EQ(RmChannel::create(*device_, space_, request()).error().message,
            "no room for the channel");
  EXPECT_EQ(rm_.live.size(), objects);
}

/// The way may break at any call: an error each time, and nothing is left behind where it recovers.
TEST_F(RmOverRecordedAnswers, ABrokenWayIsAnErrorAtEveryCall) {
  ASSERT_TRUE(open());
  const size_t objects = rm_.live.size();
  bool is_done = false;
  int calls = 0;
  for (; !is_done && calls < 100; ++calls) {
    rm_.calls_left = calls;
    const auto channel = RmChannel::create(*device_, space_, request());
    // The debugger is a thing one can do without.
    is_done = channel.has_value() && rm_.calls_left > 0;
    if (!channel) {
      EXPECT_EQ(channel.error().code, Code::kDeviceLost) << channel.error().message;
    }
    rm_.calls_left = -1;
  }
  EXPECT_TRUE(is_done);
  EXPECT_GT(calls, 8);
  // Objects whose free call found the way broken are the resource manager's to clean up.
  EXPECT_GE(rm_.live.size(), objects);
  std::erase_if(rm_.live, [&](uint32_t handle) { return handle > 0xc0de0000 + objects; });
}

}  // namespace
}  // namespace bm::nv
