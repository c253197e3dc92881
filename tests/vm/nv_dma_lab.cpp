// Runs in a guest: an NVIDIA card behind the kernel's VFIO copies into memory of this process, and
// again when the memory's mapping was taken from under the driver: those writes must go nowhere.
//
// usage: nv_dma_lab SELECTOR

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "drivers/nv/device.h"
#include "drivers/transport/pci_open.h"
#include "firmware/store.h"

namespace bm {
namespace {

constexpr uint64_t kBytes = 64 << 10;

struct Copier {
  hal::Device& device;
  hal::Buffer& word;
  uint64_t value = 0;

  /// Copies, and waits until it is said to be done, or the device is lost.
  Status copy(hal::Buffer& to, hal::Buffer& from) {
    const hal::Command commands[] = {hal::Copy{to.va(), from.va(), kBytes},
                                     hal::Signal{word.va(), ++value}};
    BM_TRY(device.queue(hal::QueueKind::kCopy).submit(commands));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const volatile auto* const seen = reinterpret_cast<uint64_t*>(word.host());
    while (*seen < value) {
      BM_TRY(device.status());
      if (std::chrono::steady_clock::now() > end) return fail(Code::kTimeout, "no signal");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
};

bool is_all(const std::byte* at, uint8_t value) {
  return std::all_of(at, at + kBytes, [&](std::byte one) { return one == std::byte{value}; });
}

Status run(const char* name) {
  const PciSelector selector = BM_TRY(parse_pci_selector(name));
  auto function = BM_TRY(open_pci(real_system(), selector));
  PciFunction& behind = *function;
  const auto device = BM_TRY(nv::open_card(std::move(function), "", firmware::default_search()));
  void* const at =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return fail(Code::kOutOfMemory, "no memory");
  auto* const host = static_cast<std::byte*>(at);
  const auto wrapped = BM_TRY(device->allocate({.size = kBytes, .external = at}));
  const auto source = BM_TRY(device->allocate({.size = kBytes, .host_visible = true}));
  const auto word = BM_TRY(
      device->allocate({.size = 4096, .host_visible = true, .uncached = true, .zero = true}));
  std::memset(source->host(), 0x11, kBytes);
  Copier copier{*device, *word};
  BM_TRY(copier.copy(*wrapped, *source));
  if (!is_all(host, 0x11)) return fail(Code::kInternal, "the card does not reach mapped memory");
  std::memset(host, 0x22, kBytes);
  BM_TRY(behind.dma_unmap(at));
  const Status second = copier.copy(*wrapped, *source);
  std::printf("after the mapping went: %s\n",
              second ? "the copy ended as if nothing were wrong" : second.error().message.c_str());
  if (!is_all(host, 0x22)) return fail(Code::kInternal, "memory that is not mapped was written");
  std::puts("memory that is not mapped was left alone");
  return {};
}

}  // namespace
}  // namespace bm

int main(int count, char** words) {
  if (count != 2) return 2;
  const bm::Status done = bm::run(words[1]);
  if (!done) std::fprintf(stderr, "nv_dma_lab: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
