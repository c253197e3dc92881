#include "drivers/nv/rm/device.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/base/log.h"

namespace bm::nv {
namespace {

// open-gpu-doc, clc361.h and later usermode classes.
constexpr uint64_t kUsermodeBytes = 64 << 10;

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

Status RmDevice::open_objects() {
  RmClient& rm = client_;
  abi::Params<abi::GpuIdInfo> id(rm.abi());
  id.set(abi::GpuIdInfo::gpuId, id_.gpu);
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
  Result<ClassChoice> choice = choose_classes(offered, id_.text);
  if (!choice) return tl::unexpected(std::move(choice.error()).within("stage 14 (class list)"));
  classes_ = *choice;
  return {};
}

Result<std::vector<uint32_t>> RmDevice::class_list() {
  RmClient& rm = client_;
  abi::Params<abi::ClassList> query(rm.abi());
  BM_TRY(rm.control(Stage::kClassList, device_.handle(), abi::kCtrlClassList, "GPU_GET_CLASSLIST",
                    query));
  const uint64_t count = query.get(abi::ClassList::numClasses);
  constexpr uint64_t kMost = 4096;
  if (count == 0 || count > kMost)
    return fail(Code::kUnsupported, "stage 14 (class list): {} lists {} classes", id_.text, count);
  // Zeroed room behind it, should the list grow meanwhile.
  std::vector<uint32_t> classes(count + 256);
  query.set(abi::ClassList::classList, reinterpret_cast<uint64_t>(classes.data()));
  BM_TRY(rm.control(Stage::kClassList, device_.handle(), abi::kCtrlClassList, "GPU_GET_CLASSLIST",
                    query, std::as_writable_bytes(std::span(classes))));
  classes.resize(std::min(count, query.get(abi::ClassList::numClasses)));
  return classes;
}

Status RmDevice::map_usermode() {
  // Hopper and later also take parameters that put the page into BAR1; without them it is in BAR0
  // on every generation.
  usermode_ = BM_TRY(client_.allocate(Stage::kUsermode, subdevice_.handle(), classes_.usermode));
  page_ = BM_TRY(client_.transport().map(Stage::kDoorbell, {.gpu = id_.gpu,
                                                            .client = client_.root(),
                                                            .device = device_.handle(),
                                                            .memory = usermode_.handle(),
                                                            .bytes = kUsermodeBytes,
                                                            .what = "the doorbell page"}));
  return {};
}

Status RmDevice::open_va_space() {
  RmClient& rm = client_;
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
  return {};
}

Result<std::array<uint32_t, 5>> RmDevice::read_gr_info() {
  RmClient& rm = client_;
  std::array<Indexed, 5> list = {{{abi::kGrGpcs, 0},
                                  {abi::kGrTpcsPerGpc, 0},
                                  {abi::kGrSmsPerTpc, 0},
                                  {abi::kGrMaxWarpsPerSm, 0},
                                  {abi::kGrSmVersion, 0}}};
  abi::Params<abi::GrInfoList> query(rm.abi());
  query.set(abi::GrInfoList::grInfoListSize, list.size());
  query.set(abi::GrInfoList::grInfoList, reinterpret_cast<uint64_t>(list.data()));
  BM_TRY(rm.control(Stage::kFacts, subdevice_.handle(), abi::kCtrlGrInfo, "GR_GET_INFO", query,
                    std::as_writable_bytes(std::span(list))));
  std::array<uint32_t, 5> values;
  for (size_t i = 0; i < list.size(); ++i) values[i] = list[i].data;
  return values;
}

Status RmDevice::read_facts() {
  const auto [gpcs, tpcs, sms, warps, sm_version] = BM_TRY(read_gr_info());
  constexpr uint32_t kMost = 1024;  // of each: a wrong answer must not become terabytes of stack
  if (gpcs == 0 || tpcs == 0 || sms == 0 || warps == 0 ||
      std::max({gpcs, tpcs, sms, warps}) > kMost)
    return fail(Code::kUnsupported,
                "stage 33 (facts): {} claims {} GPCs of {} TPCs of {} SMs of {} warps", id_.text,
                gpcs, tpcs, sms, warps);
  facts_.chip = classes_.chip;
  facts_.driver_version = client_.version();
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
  facts_.name = fmt::format("{} ({})", classes_.chip->name, id_.text);
  facts_.video_memory = id_.least_video_memory;
  read_optional_facts();
  facts_.copy_engines = static_cast<uint32_t>(copy_engines_.size());
  log("nv", LogLevel::kInfo,
      "{}: driver {}, sm_{}, {} SMs, classes {:04x} {:04x} {:04x} {:04x}, {} copy engines",
      facts_.name, facts_.driver_version, facts_.sm_version, facts_.enabled_sms, classes_.usermode,
      classes_.channel, classes_.compute, classes_.copy, facts_.copy_engines);
  return {};
}

/// What sandboxes and models may refuse; the defaults are good enough to work with.
void RmDevice::read_optional_facts() {
  RmClient& rm = client_;
  const uint32_t object = subdevice_.handle();

  Indexed enabled = {abi::kGrEnabledTpcs, 0};
  abi::Params<abi::GrInfoList> gr(rm.abi());
  gr.set(abi::GrInfoList::grInfoListSize, 1);
  gr.set(abi::GrInfoList::grInfoList, reinterpret_cast<uint64_t>(&enabled));
  if (rm.control(Stage::kFacts, object, abi::kCtrlGrInfo, "GR_GET_INFO", gr,
                 std::as_writable_bytes(std::span(&enabled, 1))) &&
      enabled.data != 0 && enabled.data * facts_.sms_per_tpc <= facts_.enabled_sms)
    facts_.enabled_sms = enabled.data * facts_.sms_per_tpc;

  Indexed total = {kFbTotalKib, 0};
  abi::Params<abi::FbInfoList> fb(rm.abi());
  fb.set(abi::FbInfoList::fbInfoListSize, 1);
  fb.set(abi::FbInfoList::fbInfoList, reinterpret_cast<uint64_t>(&total));
  if (rm.control(Stage::kFacts, object, abi::kCtrlFbInfo, "FB_GET_INFO", fb,
                 std::as_writable_bytes(std::span(&total, 1))) &&
      total.data != 0)
    facts_.video_memory = uint64_t{total.data} << 10;

  abi::Params<abi::NameString> name(rm.abi());
  if (rm.control(Stage::kFacts, object, abi::kCtrlNameString, "GPU_GET_NAME_STRING", name)) {
    const std::span<std::byte> text = name.bytes(abi::NameString::gpuNameString_ascii);
    const char* const first = reinterpret_cast<const char*>(text.data());
    if (*first != '\0') facts_.name.assign(first, ::strnlen(first, text.size()));
  }

  read_copy_engines();
}

void RmDevice::read_copy_engines() {
  RmClient& rm = client_;
  std::array<uint32_t, 256> list = {};
  abi::Params<abi::EngineList> query(rm.abi());
  query.set(abi::EngineList::engineCount, list.size());
  query.set(abi::EngineList::engineList, reinterpret_cast<uint64_t>(list.data()));
  const bool is_told = rm.control(Stage::kFacts, subdevice_.handle(), abi::kCtrlEngines,
                                  "GPU_GET_ENGINES", query, std::as_writable_bytes(std::span(list)))
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
void RmDevice::drop_graphics_copies() {
  RmClient& rm = client_;
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

RmDevice::~RmDevice() {
  va_space_.reset();
  page_.reset();
  usermode_.reset();
  subdevice_.reset();
  device_.reset();
}

}  // namespace bm::nv
