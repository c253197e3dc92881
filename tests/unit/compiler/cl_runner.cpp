#include "tests/unit/compiler/cl_runner.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "drivers/cl/device.h"
#include "tests/patience.h"

namespace bm::test {
namespace {

// TIMEOUT: a kernel runs for milliseconds; a minute covers a busy machine with sanitizers.
const std::chrono::milliseconds kDeadline = patience(std::chrono::seconds(60));

using BufferPtr = std::unique_ptr<hal::Buffer>;

Result<BufferPtr> visible(hal::Device& device, uint64_t size) {
  return device.allocate({.size = std::max<uint64_t>(size, 8), .host_visible = true});
}

/// Word that the queue signals, and the value to come.
struct Timeline {
  BufferPtr memory;
  uint64_t value = 0;
};

Status finish(hal::Device& device, const Timeline& timeline) {
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(timeline.memory->host()));
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (word.load(std::memory_order_acquire) < timeline.value) {
    BM_TRY(device.status());
    if (std::chrono::steady_clock::now() > deadline)
      return fail(Code::kTimeout, "kernel did not finish");
    std::this_thread::yield();
  }
  return {};
}

}  // namespace

Result<hal::Device*> cl_device() {
  // One device for the whole program: platforms dislike being opened for every kernel.
  static const Result<std::unique_ptr<hal::Device>> opened = cl::open_device("", 0, "");
  if (!opened) return tl::unexpected(opened.error());
  return opened->get();
}

std::string why_no_cl() {
  const auto device = cl_device();
  return device ? "" : device.error().message;
}

Status run_on_cl(const hal::CodeObject& code, std::span<std::vector<std::byte>> buffers,
                 std::span<const int64_t> vars) {
  hal::Device& device = *BM_TRY(cl_device());
  static Timeline timeline = {BM_TRY(device.allocate(
      {.size = 64, .host_visible = true, .host_memory = true, .uncached = true, .zero = true}))};
  const auto program = BM_TRY(device.load(code));
  std::vector<BufferPtr> memory;
  const auto arguments = BM_TRY(device.allocate({.size = 8 * (buffers.size() + vars.size()) + 8,
                                                 .host_visible = true,
                                                 .host_memory = true,
                                                 .uncached = true}));
  auto* words = reinterpret_cast<uint64_t*>(arguments->host());
  for (const std::vector<std::byte>& b : buffers) {
    memory.push_back(BM_TRY(visible(device, b.size())));
    if (!b.empty()) std::memcpy(memory.back()->host(), b.data(), b.size());
    *words++ = hal::raw(memory.back()->va());
  }
  for (int64_t v : vars) *words++ = static_cast<uint64_t>(v);
  hal::Dispatch dispatch{.program = program.get(), .kernarg = arguments->va(), .grid = {}};
  dispatch.grid.x = static_cast<uint32_t>(code.grid[0].evaluate(vars));
  dispatch.grid.y = static_cast<uint32_t>(code.grid[1].evaluate(vars));
  dispatch.grid.z = static_cast<uint32_t>(code.grid[2].evaluate(vars));
  const std::vector<hal::Command> commands{dispatch,
                                           hal::Signal{timeline.memory->va(), ++timeline.value}};
  BM_TRY(device.queue(hal::QueueKind::kCompute).submit(commands));
  BM_TRY(finish(device, timeline));
  for (size_t i = 0; i < buffers.size(); ++i)
    if (!buffers[i].empty()) std::memcpy(buffers[i].data(), memory[i]->host(), buffers[i].size());
  return {};
}

}  // namespace bm::test
