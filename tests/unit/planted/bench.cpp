#include "tests/unit/planted/bench.h"

#include <cstring>

namespace bm::planted {

Status Bench::open(uint32_t index) {
  device_ = BM_TRY(open_unit(index));
  return {};
}

void Bench::close() {
  programs_.clear();
  buffers_.clear();
  device_.reset();
}

Result<hal::Buffer*> Bench::allocate(uint64_t bytes, bool host_visible) {
  buffers_.push_back(BM_TRY(hal().allocate({.size = bytes, .host_visible = host_visible})));
  return buffers_.back().get();
}

Result<const hal::Program*> Bench::load(const hal::CodeObject& code) {
  programs_.push_back(BM_TRY(hal().load(code)));
  return programs_.back().get();
}

Status Bench::run(hal::QueueKind kind, std::vector<hal::Command> commands) {
  const runtime::Point point = BM_TRY(device_->stream().submit(kind, commands));
  return device_->stream().wait(point);
}

Status Bench::launch(const hal::CodeObject& code, uint64_t at, hal::Dim3 grid) {
  const hal::Program* const program = BM_TRY(load(code));
  hal::Buffer* const argument = BM_TRY(allocate(sizeof at, true));
  std::memcpy(argument->host(), &at, sizeof at);
  return run(hal::QueueKind::kCompute, {hal::Dispatch{program, argument->va(), grid}});
}

Status Bench::copy(hal::QueueKind kind, uint64_t to, uint64_t from, uint64_t bytes) {
  return run(kind, {hal::Copy{hal::GpuVa{to}, hal::GpuVa{from}, bytes}});
}

}  // namespace bm::planted
