#include "drivers/nv/rm_ioctl/gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "drivers/nv/rm_ioctl/rm.h"
#include "runtime/base/log.h"

namespace bm::nv {
namespace {

// open-gpu-doc, clc361.h and later usermode classes: the page and what lies in it.
constexpr uint64_t kUsermodeBytes = 64 << 10;
constexpr uint64_t kClockLow = 0x80, kClockHigh = 0x84, kDoorbell = 0x90;

// nvos.h: NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED hands the page tables to UVM,
// _ENABLE_PAGE_FAULTING makes accesses to unmapped addresses faults. The range is what CUDA asks
// for.
constexpr uint64_t kVaSpaceFlags = 0x08 | 0x40;
constexpr uint64_t kVaBase = 0x1000, kVaSize = 0x1'ffff'fb00'0000;

constexpr uint64_t kGidBinary = 2;   // ctrl2080gpu.h: NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT
constexpr uint32_t kFbTotalKib = 8;  // ctrl2080fb.h: NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE

/// ctrl2080ce.h, NV2080_CTRL_CE_CAPS_CE_GRCE: byte 0, bit 0.
constexpr uint64_t kIsGraphicsCopy = 1;

struct Indexed {
  uint32_t index, data;
};

}  // namespace

Result<std::unique_ptr<RmGpu>> RmGpu::open(std::shared_ptr<RmSession> session, const Card& card) {
  std::unique_ptr<RmGpu> gpu(new RmGpu(std::move(session), card));
  BM_TRY(gpu->open_objects());
  BM_TRY(gpu->map_doorbell());
  BM_TRY(gpu->open_address_space());
  BM_TRY(gpu->read_facts());
  return gpu;
}

Status RmGpu::open_objects() {
  RmClient& rm = client();
  device_file_ = BM_TRY(rm.open_device(card_));

  abi::Params<abi::GpuIdInfo> id(rm.abi());
  id.set(abi::GpuIdInfo::gpuId, card_.gpu_id);
  BM_TRY(rm.control(Stage::kGpuId, rm.root(), abi::kCtrlGpuIdInfo, "GPU_GET_ID_INFO_V2", id));

  abi::Params<abi::DeviceAlloc> device(rm.abi());
  device.set(abi::DeviceAlloc::deviceId, id.get(abi::GpuIdInfo::deviceInstance));
  device.set(abi::DeviceAlloc::hClientShare, rm.root());
  device_ = BM_TRY(rm.allocate(Stage::kDevice, rm.root(), abi::kClassDevice, &device));

  abi::Params<abi::SubdeviceAlloc> subdevice(rm.abi());
  subdevice.set(abi::SubdeviceAlloc::subDeviceId, id.get(abi::GpuIdInfo::subDeviceInstance));
  subdevice_ =
      BM_TRY(rm.allocate(Stage::kSubdevice, device_.handle(), abi::kClassSubdevice, &subdevice));

  const std::vector<uint32_t> offered = BM_TRY(class_list());
  Result<ClassChoice> choice = choose_classes(offered, card_.text());
  if (!choice) return tl::unexpected(std::move(choice.error()).within("stage 14 (class list)"));
  classes_ = *choice;
  return {};
}

Result<std::vector<uint32_t>> RmGpu::class_list() {
  RmClient& rm = client();
  abi::Params<abi::ClassList> query(rm.abi());
  BM_TRY(rm.control(Stage::kClassList, device_.handle(), abi::kCtrlClassList, "GPU_GET_CLASSLIST",
                    query));
  const uint64_t count = query.get(abi::ClassList::numClasses);
  constexpr uint64_t kMost = 4096;
  if (count == 0 || count > kMost)
    return fail(Code::kUnsupported, "stage 14 (class list): {} lists {} classes", card_.text(),
                count);
  // Zeroed room behind it, should the list grow meanwhile.
  std::vector<uint32_t> classes(count + 256);
  query.set(abi::ClassList::classList, reinterpret_cast<uint64_t>(classes.data()));
  BM_TRY(rm.control(Stage::kClassList, device_.handle(), abi::kCtrlClassList, "GPU_GET_CLASSLIST",
                    query));
  classes.resize(std::min(count, query.get(abi::ClassList::numClasses)));
  return classes;
}

Status RmGpu::map_doorbell() {
  RmClient& rm = client();
  // Hopper and later also take parameters that put the page into BAR1; without them it is in BAR0
  // on every generation.
  usermode_ = BM_TRY(rm.allocate(Stage::kUsermode, subdevice_.handle(), classes_.usermode));
  const DeviceFile file = BM_TRY(rm.open_device(card_));
  BM_TRY(
      rm.prepare_mapping(device_.handle(), usermode_.handle(), kUsermodeBytes, file.get(), false));
  void* at = nullptr;
  const int mapped = session_->system().mmap(nullptr, kUsermodeBytes, PROT_READ | PROT_WRITE,
                                             MAP_SHARED, file.get(), 0, &at);
  if (mapped < 0)
    return tl::unexpected(errno_error(Stage::kDoorbell, "mmap of the doorbell page", -mapped));
  page_ = static_cast<std::byte*>(at);
  return {};
}

Status RmGpu::open_address_space() {
  RmClient& rm = client();
  abi::Params<abi::VaSpaceAlloc> space(rm.abi());
  space.set(abi::VaSpaceAlloc::flags, kVaSpaceFlags);
  space.set(abi::VaSpaceAlloc::vaBase, kVaBase);
  space.set(abi::VaSpaceAlloc::vaSize, kVaSize);
  va_space_ = BM_TRY(rm.allocate(Stage::kVaSpace, device_.handle(), abi::kClassVaSpace, &space));

  abi::Params<abi::GidInfo> gid(rm.abi());
  gid.set(abi::GidInfo::flags, kGidBinary);
  gid.set(abi::GidInfo::length, facts_.uuid.size());
  BM_TRY(rm.control(Stage::kUuid, subdevice_.handle(), abi::kCtrlGidInfo, "GPU_GET_GID_INFO", gid));
  std::memcpy(facts_.uuid.data(), gid.bytes(abi::GidInfo::data).data(), facts_.uuid.size());

  if (session_->has(facts_.uuid))
    return fail(Code::kUnsupported, "{} is already open in this process", card_.text());
  BM_TRY(session_->uvm().register_gpu(facts_.uuid));
  is_gpu_registered_ = true;
  session_->add(facts_.uuid);
  BM_TRY(session_->uvm().register_va_space(facts_.uuid, va_space_.handle()));
  is_space_registered_ = true;
  return {};
}

Result<std::array<uint32_t, 5>> RmGpu::read_gr_info() {
  RmClient& rm = client();
  std::array<Indexed, 5> list = {{{abi::kGrGpcs, 0},
                                  {abi::kGrTpcsPerGpc, 0},
                                  {abi::kGrSmsPerTpc, 0},
                                  {abi::kGrMaxWarpsPerSm, 0},
                                  {abi::kGrSmVersion, 0}}};
  abi::Params<abi::GrInfoList> query(rm.abi());
  query.set(abi::GrInfoList::grInfoListSize, list.size());
  query.set(abi::GrInfoList::grInfoList, reinterpret_cast<uint64_t>(list.data()));
  BM_TRY(rm.control(Stage::kFacts, subdevice_.handle(), abi::kCtrlGrInfo, "GR_GET_INFO", query));
  std::array<uint32_t, 5> values;
  for (size_t i = 0; i < list.size(); ++i) values[i] = list[i].data;
  return values;
}

Status RmGpu::read_facts() {
  const auto [gpcs, tpcs, sms, warps, sm_version] = BM_TRY(read_gr_info());
  constexpr uint32_t kMost = 1024;  // of each: a wrong answer must not become terabytes of stack
  if (gpcs == 0 || tpcs == 0 || sms == 0 || warps == 0 ||
      std::max({gpcs, tpcs, sms, warps}) > kMost)
    return fail(Code::kUnsupported,
                "stage 33 (facts): {} claims {} GPCs of {} TPCs of {} SMs of {} warps",
                card_.text(), gpcs, tpcs, sms, warps);
  facts_.chip = classes_.chip;
  facts_.driver_version = client().version();
  facts_.sm_version = classes_.chip->sm_of(sm_version);
  facts_.compute_class = classes_.compute;
  facts_.copy_class = classes_.copy;
  facts_.channel_class = classes_.channel;
  facts_.usermode_class = classes_.usermode;
  facts_.gpcs = gpcs;
  facts_.tpcs_per_gpc = tpcs;
  facts_.sms_per_tpc = sms;
  facts_.warps_per_sm = warps;
  facts_.enabled_sms = gpcs * tpcs * sms;
  facts_.name = fmt::format("{} ({})", classes_.chip->name, card_.text());
  facts_.video_memory = card_.bar1_bytes;
  read_optional_facts();
  facts_.copy_engines = static_cast<uint32_t>(copy_engines_.size());
  log("nv", LogLevel::kInfo,
      "{}: driver {}, sm_{}, {} SMs, classes {:04x} {:04x} {:04x} {:04x}, {} copy engines",
      facts_.name, facts_.driver_version, facts_.sm_version, facts_.enabled_sms, classes_.usermode,
      classes_.channel, classes_.compute, classes_.copy, facts_.copy_engines);
  return {};
}

/// What sandboxes and models may refuse; the defaults are good enough to work with.
void RmGpu::read_optional_facts() {
  RmClient& rm = client();
  const uint32_t object = subdevice_.handle();

  Indexed enabled = {abi::kGrEnabledTpcs, 0};
  abi::Params<abi::GrInfoList> gr(rm.abi());
  gr.set(abi::GrInfoList::grInfoListSize, 1);
  gr.set(abi::GrInfoList::grInfoList, reinterpret_cast<uint64_t>(&enabled));
  if (rm.control(Stage::kFacts, object, abi::kCtrlGrInfo, "GR_GET_INFO", gr) && enabled.data != 0 &&
      enabled.data * facts_.sms_per_tpc <= facts_.enabled_sms)
    facts_.enabled_sms = enabled.data * facts_.sms_per_tpc;

  Indexed total = {kFbTotalKib, 0};
  abi::Params<abi::FbInfoList> fb(rm.abi());
  fb.set(abi::FbInfoList::fbInfoListSize, 1);
  fb.set(abi::FbInfoList::fbInfoList, reinterpret_cast<uint64_t>(&total));
  if (rm.control(Stage::kFacts, object, abi::kCtrlFbInfo, "FB_GET_INFO", fb) && total.data != 0)
    facts_.video_memory = uint64_t{total.data} << 10;

  abi::Params<abi::NameString> name(rm.abi());
  if (rm.control(Stage::kFacts, object, abi::kCtrlNameString, "GPU_GET_NAME_STRING", name)) {
    const std::span<std::byte> text = name.bytes(abi::NameString::gpuNameString_ascii);
    const char* const first = reinterpret_cast<const char*>(text.data());
    if (*first != '\0') facts_.name.assign(first, ::strnlen(first, text.size()));
  }

  read_copy_engines();
}

void RmGpu::read_copy_engines() {
  RmClient& rm = client();
  std::array<uint32_t, 256> list = {};
  abi::Params<abi::EngineList> query(rm.abi());
  query.set(abi::EngineList::engineCount, list.size());
  query.set(abi::EngineList::engineList, reinterpret_cast<uint64_t>(list.data()));
  const bool is_told =
      rm.control(Stage::kFacts, subdevice_.handle(), abi::kCtrlEngines, "GPU_GET_ENGINES", query)
          .has_value();
  const uint64_t count =
      is_told ? std::min<uint64_t>(query.get(abi::EngineList::engineCount), list.size()) : 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t type = list[i];
    if ((type >= abi::kEngineCopy0 && type <= abi::kEngineCopy9) ||
        (type >= abi::kEngineCopy10 && type <= abi::kEngineCopy19))
      copy_engines_.push_back(type);
  }
  if (copy_engines_.empty())  // the fewest any chip has
    for (uint32_t i = 0; i < 4; ++i) copy_engines_.push_back(abi::kEngineCopy0 + i);
  std::sort(copy_engines_.begin(), copy_engines_.end());
  drop_graphics_copies();
}

/// Those that work in step with the graphics engine share its runlist: to the unified memory module
/// a channel there is one of graphics without the buffers of such, so it refuses it.
void RmGpu::drop_graphics_copies() {
  RmClient& rm = client();
  size_t refused = 0;
  std::erase_if(copy_engines_, [&](uint32_t type) {
    abi::Params<abi::CopyCaps> caps(rm.abi());
    caps.set(abi::CopyCaps::ceEngineType, type);
    if (!rm.control(Stage::kFacts, subdevice_.handle(), abi::kCtrlCopyCaps, "CE_GET_CAPS_V2",
                    caps)) {
      ++refused;
      return false;
    }
    return (caps.get(abi::CopyCaps::capsTbl) & kIsGraphicsCopy) != 0;
  });
  if (refused == 0) return;
  // Where nobody tells, those of graphics come first on every chip known: they are tried last.
  constexpr size_t kMostOfGraphics = 4;
  const size_t first = std::min(copy_engines_.size() / 2, kMostOfGraphics);
  std::rotate(copy_engines_.begin(), copy_engines_.begin() + static_cast<ptrdiff_t>(first),
              copy_engines_.end());
}

RmGpu::~RmGpu() {
  // Closing the nodes does the same; a sandbox may not know these calls.
  const auto report = [](const Status& status) {
    if (!status) log("nv", LogLevel::kInfo, "{}", status.error().message);
  };
  if (is_space_registered_) report(session_->uvm().unregister_va_space(facts_.uuid));
  if (is_gpu_registered_) {
    report(session_->uvm().unregister_gpu(facts_.uuid));
    session_->remove(facts_.uuid);
  }
  va_space_.reset();
  if (page_ != nullptr) session_->system().munmap(const_cast<std::byte*>(page_), kUsermodeBytes);
  usermode_.reset();
  subdevice_.reset();
  device_.reset();
}

volatile uint32_t* RmGpu::doorbell() {
  return reinterpret_cast<volatile uint32_t*>(page_ + kDoorbell);
}

uint64_t RmGpu::clock_ns() {
  const auto word = [&](uint64_t offset) {
    return *reinterpret_cast<volatile const uint32_t*>(page_ + offset);
  };
  // The low half may wrap between the two reads.
  uint32_t high = word(kClockHigh), low = word(kClockLow);
  for (uint32_t again = word(kClockHigh); again != high; again = word(kClockHigh)) {
    high = again;
    low = word(kClockLow);
  }
  return uint64_t{high} << 32 | low;
}

Result<std::unique_ptr<DriverInterface>> open_rm(System& system, const RmOptions& options) {
  std::shared_ptr<RmSession> session =
      BM_TRY(RmSession::share(system, options.window, options.version_override));
  const std::vector<Card> cards = BM_TRY(session->client().cards());
  if (options.index >= cards.size())
    return fail(Code::kNotFound, "stage 7 (cards): no NVIDIA GPU {}: the driver lists {}",
                options.index, cards.size());
  return BM_TRY(RmGpu::open(std::move(session), cards[options.index]));
}

Result<uint32_t> count_rm(System& system) {
  std::unique_ptr<RmClient> client;
  {
    Result<std::unique_ptr<RmClient>> opened = RmClient::open(system, {});
    if (!opened && opened.error().code == Code::kNotFound) return 0u;
    client = BM_TRY(std::move(opened));
  }
  const std::vector<Card> cards = BM_TRY(client->cards());
  return static_cast<uint32_t>(cards.size());
}

}  // namespace bm::nv
