#include <algorithm>
#include <thread>

#include "tests/cts/cts.h"

namespace bm::cts {

Result<Rig> Rig::open(const Subject& subject) {
  auto device = BM_TRY(subject.open());
  auto timeline = BM_TRY(device->allocate(
      {.size = 64, .host_visible = true, .host_memory = true, .uncached = true, .zero = true}));
  return Rig(subject, std::move(device), std::move(timeline));
}

Result<std::unique_ptr<hal::Buffer>> Rig::visible(uint64_t size) {
  auto buffer = BM_TRY(device_->allocate({.size = size, .host_visible = true}));
  CTS_CHECK(buffer->host() != nullptr);
  return buffer;
}

Result<std::unique_ptr<hal::Buffer>> Rig::words() {
  return device_->allocate(
      {.size = 256, .host_visible = true, .host_memory = true, .uncached = true, .zero = true});
}

Result<std::unique_ptr<hal::Program>> Rig::load(std::string_view kernel) {
  if (subject_->kernel == nullptr)
    return fail(Code::kUnsupported, "{} has no programs", subject_->name);
  const hal::CodeObject code = BM_TRY(subject_->kernel(kernel, *device_));
  return device_->load(code);
}

Result<std::unique_ptr<hal::Buffer>> Rig::pack(const std::vector<uint64_t>& values) {
  auto buffer = BM_TRY(visible(values.size() * 8));
  std::ranges::copy(values, view<uint64_t>(*buffer).begin());
  return buffer;
}

hal::Command Rig::end_signal(uint64_t value) const { return hal::Signal{timeline_->va(), value}; }

Status Rig::run(std::vector<hal::Command> commands, hal::QueueKind kind) {
  const uint64_t value = next_value();
  commands.push_back(end_signal(value));
  BM_TRY(queue(kind).submit(commands));
  return finish(value);
}

Status Rig::finish(uint64_t value) {
  const auto done = word(*timeline_);
  if (device_->is_inline() && done.load(std::memory_order_acquire) < value)
    return fail(Code::kInternal, "an inline queue returned before its signal");
  return wait_for(done, value);
}

Status Rig::wait_for(std::atomic_ref<uint64_t> word, uint64_t value,
                     std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (word.load(std::memory_order_acquire) < value) {
    BM_TRY(device_->status());
    if (std::chrono::steady_clock::now() > deadline)
      return fail(Code::kTimeout, "the suite waited for {}, it is {}", value, word.load());
    std::this_thread::yield();
  }
  return {};
}

}  // namespace bm::cts
