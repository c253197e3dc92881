#include "runtime/hal/arch.h"
#include "tools/bellmetal/bench_cuda.h"
#include "tools/bellmetal/bench_rig.h"
#include "tools/bellmetal/gpu_cases.h"

namespace bm::cli {
namespace {

class CudaCopies final : public DeviceCopies {
 public:
  explicit CudaCopies(std::unique_ptr<CudaPeer> peer) : peer_(std::move(peer)) {}
  const char* name() const override { return "cuMemcpyDtoD"; }
  void copy(uint64_t bytes) override { peer_->copy(CopyKind::kDeviceToDevice, bytes); }
  void wait() override { peer_->wait(); }

 private:
  std::unique_ptr<CudaPeer> peer_;
};

class QueueCopies final : public DeviceCopies {
 public:
  QueueCopies(std::unique_ptr<Rig> rig, std::unique_ptr<hal::Buffer> from,
              std::unique_ptr<hal::Buffer> to)
      : rig_(std::move(rig)), from_(std::move(from)), to_(std::move(to)) {}
  const char* name() const override { return "copy queue"; }
  void copy(uint64_t bytes) override {
    const hal::Command commands[] = {hal::Copy{to_->va(), from_->va(), bytes}, rig_->next_signal()};
    rig_->submit(commands);
  }
  void wait() override { rig_->wait(); }

 private:
  std::unique_ptr<Rig> rig_;
  std::unique_ptr<hal::Buffer> from_, to_;
};

}  // namespace

Result<std::unique_ptr<DeviceCopies>> DeviceCopies::open(runtime::Device& device, uint64_t bytes) {
  if (device.hal().arch().vendor == hal::Vendor::kNv) {
    auto peer = CudaPeer::open(unit_of(device));
    if (peer && (*peer)->prepare_copies(bytes))
      return std::make_unique<CudaCopies>(std::move(*peer));
  }
  auto rig = BM_TRY(Rig::open(device, hal::QueueKind::kCopy));
  auto from = BM_TRY(device.hal().allocate({.size = bytes, .zero = true}));
  auto to = BM_TRY(device.hal().allocate({.size = bytes}));
  return std::make_unique<QueueCopies>(std::move(rig), std::move(from), std::move(to));
}

}  // namespace bm::cli
