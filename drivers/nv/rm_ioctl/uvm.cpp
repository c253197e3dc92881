#include "drivers/nv/rm_ioctl/uvm.h"

namespace bm::nv {
namespace {

constexpr const char* kNode = "/dev/nvidia-uvm";
// open-gpu-kernel-modules 580.142, uvm_ioctl.h: UVM_INIT_FLAGS_DISABLE_HMM.
constexpr uint64_t kDisableHmm = 1;
// uvm_types.h: UvmGpuMappingTypeReadWriteAtomic.
constexpr uint64_t kReadWriteAtomic = 1;
// The GPU belongs to no partition.
constexpr uint64_t kNoFd = static_cast<uint64_t>(-1);

}  // namespace

std::string uuid_text(const GpuUuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

template <class S>
Status UvmSpace::call(Stage stage, uint32_t number, const std::string& what,
                      abi::Params<S>& params) {
  // UVM ioctls are bare numbers, without direction and size.
  const int result = transport_.system().ioctl(file_.get(), number, params.data());
  if (result < 0) return tl::unexpected(errno_error(stage, what, -result));
  const uint32_t status = static_cast<uint32_t>(params.get(S::rmStatus));
  if (status != kStatusOk) return tl::unexpected(status_error(stage, what, status));
  return {};
}

Result<std::unique_ptr<UvmSpace>> UvmSpace::open(IoctlTransport& transport, uint32_t client) {
  Result<DeviceFile> file = open_node(transport.system(), Stage::kUvm, kNode);
  if (!file) {
    if (file.error().code == Code::kNotFound)
      file.error().message += "; the module nvidia-uvm makes it (modprobe nvidia-uvm)";
    return tl::unexpected(std::move(file.error()));
  }
  std::unique_ptr<UvmSpace> space(new UvmSpace(transport, client, std::move(*file)));
  abi::Params<abi::UvmInitialize> params(transport.abi());
  params.set(abi::UvmInitialize::flags, kDisableHmm);
  BM_TRY(space->call(Stage::kUvm, abi::kNrUvmInitialize, "UVM_INITIALIZE", params));
  return space;
}

Status UvmSpace::register_gpu(const GpuUuid& gpu) {
  abi::Params<abi::UvmRegisterGpu> params(transport_.abi());
  params.set_bytes(abi::UvmRegisterGpu::gpu_uuid_uuid, gpu);
  params.set(abi::UvmRegisterGpu::rmCtrlFd, kNoFd);
  return call(Stage::kRegisterGpu, abi::kNrUvmRegisterGpu,
              fmt::format("UVM_REGISTER_GPU of {}", uuid_text(gpu)), params);
}

Status UvmSpace::unregister_gpu(const GpuUuid& gpu) {
  abi::Params<abi::UvmUnregisterGpu> params(transport_.abi());
  params.set_bytes(abi::UvmUnregisterGpu::gpu_uuid_uuid, gpu);
  return call(Stage::kFree, abi::kNrUvmUnregisterGpu,
              fmt::format("UVM_UNREGISTER_GPU of {}", uuid_text(gpu)), params);
}

Status UvmSpace::register_va_space(const GpuUuid& gpu, uint32_t va_space) {
  using S = abi::UvmRegisterGpuVaSpace;
  abi::Params<S> params(transport_.abi());
  params.set_bytes(S::gpuUuid_uuid, gpu);
  params.set(S::rmCtrlFd, static_cast<uint64_t>(transport_.control_fd()));
  params.set(S::hClient, client_);
  params.set(S::hVaSpace, va_space);
  return call(Stage::kRegisterVaSpace, abi::kNrUvmRegisterGpuVaSpace,
              fmt::format("UVM_REGISTER_GPU_VASPACE {:#x} of {}", va_space, uuid_text(gpu)),
              params);
}

Status UvmSpace::unregister_va_space(const GpuUuid& gpu) {
  abi::Params<abi::UvmUnregisterGpuVaSpace> params(transport_.abi());
  params.set_bytes(abi::UvmUnregisterGpuVaSpace::gpuUuid_uuid, gpu);
  return call(Stage::kFree, abi::kNrUvmUnregisterGpuVaSpace,
              fmt::format("UVM_UNREGISTER_GPU_VASPACE of {}", uuid_text(gpu)), params);
}

Status UvmSpace::register_channel(const GpuUuid& gpu, uint32_t channel, uint64_t base,
                                  uint64_t bytes) {
  using S = abi::UvmRegisterChannel;
  abi::Params<S> params(transport_.abi());
  params.set_bytes(S::gpuUuid_uuid, gpu);
  params.set(S::rmCtrlFd, static_cast<uint64_t>(transport_.control_fd()));
  params.set(S::hClient, client_);
  params.set(S::hChannel, channel);
  params.set(S::base, base);
  params.set(S::length, bytes);
  return call(Stage::kRegisterChannel, abi::kNrUvmRegisterChannel,
              fmt::format("UVM_REGISTER_CHANNEL {:#x} at {:#x}", channel, base), params);
}

Status UvmSpace::unregister_channel(const GpuUuid& gpu, uint32_t channel) {
  using S = abi::UvmUnregisterChannel;
  abi::Params<S> params(transport_.abi());
  params.set_bytes(S::gpuUuid_uuid, gpu);
  params.set(S::hClient, client_);
  params.set(S::hChannel, channel);
  return call(Stage::kFree, abi::kNrUvmUnregisterChannel,
              fmt::format("UVM_UNREGISTER_CHANNEL {:#x}", channel), params);
}

Status UvmSpace::enable_peer(const GpuUuid& a, const GpuUuid& b) {
  abi::Params<abi::UvmEnablePeer> params(transport_.abi());
  params.set_bytes(abi::UvmEnablePeer::gpuUuidA_uuid, a);
  params.set_bytes(abi::UvmEnablePeer::gpuUuidB_uuid, b);
  return call(Stage::kPeer, abi::kNrUvmEnablePeer,
              fmt::format("UVM_ENABLE_PEER_ACCESS of {} and {}", uuid_text(a), uuid_text(b)),
              params);
}

Status UvmSpace::create_range(uint64_t base, uint64_t bytes) {
  abi::Params<abi::UvmCreateExternalRange> params(transport_.abi());
  params.set(abi::UvmCreateExternalRange::base, base);
  params.set(abi::UvmCreateExternalRange::length, bytes);
  return call(Stage::kMemory, abi::kNrUvmCreateExternalRange,
              fmt::format("UVM_CREATE_EXTERNAL_RANGE [{:#x}, +{:#x})", base, bytes), params);
}

Status UvmSpace::map(uint64_t base, uint64_t bytes, uint32_t memory, const GpuUuid& gpu) {
  using S = abi::UvmMapExternal;
  abi::Params<S> params(transport_.abi());
  params.set(S::base, base);
  params.set(S::length, bytes);
  params.set_bytes(S::perGpuAttributes_gpuUuid_uuid, gpu);
  params.set(S::perGpuAttributes_gpuMappingType, kReadWriteAtomic);
  params.set(S::gpuAttributesCount, 1);
  params.set(S::rmCtrlFd, static_cast<uint64_t>(transport_.control_fd()));
  params.set(S::hClient, client_);
  params.set(S::hMemory, memory);
  return call(
      Stage::kMemory, abi::kNrUvmMapExternal,
      fmt::format("UVM_MAP_EXTERNAL_ALLOCATION of {:#x} at [{:#x}, +{:#x})", memory, base, bytes),
      params);
}

Status UvmSpace::unmap(uint64_t base, uint64_t bytes, const GpuUuid& gpu) {
  abi::Params<abi::UvmUnmapExternal> params(transport_.abi());
  params.set(abi::UvmUnmapExternal::base, base);
  params.set(abi::UvmUnmapExternal::length, bytes);
  params.set_bytes(abi::UvmUnmapExternal::gpuUuid_uuid, gpu);
  return call(Stage::kFree, abi::kNrUvmUnmapExternal,
              fmt::format("UVM_UNMAP_EXTERNAL [{:#x}, +{:#x})", base, bytes), params);
}

Status UvmSpace::free_range(uint64_t base, uint64_t bytes) {
  abi::Params<abi::UvmFree> params(transport_.abi());
  params.set(abi::UvmFree::base, base);
  params.set(abi::UvmFree::length, bytes);
  return call(Stage::kFree, abi::kNrUvmFree, fmt::format("UVM_FREE [{:#x}, +{:#x})", base, bytes),
              params);
}

}  // namespace bm::nv
