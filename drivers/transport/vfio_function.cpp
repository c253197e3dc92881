#include "drivers/transport/vfio_function.h"

#include <linux/vfio.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>

namespace bm {
namespace {

constexpr uint32_t kBar0 = 0x10;

}  // namespace

Status VfioFunction::describe() {
  for (uint32_t i = 0; i < kPciBars; ++i) {
    regions_[i] = BM_TRY(read_region_info(i));
    if (regions_[i].size == 0) continue;
    const uint32_t low = BM_TRY(read_config(kBar0 + i * 4, 4));
    bars_[i] = {.size = regions_[i].size,
                .address = 0,
                .is_memory = (low & 1) == 0,
                .is_64_bit = (low & 7) == 4,
                .is_prefetchable = (low & 9) == 8};
  }
  BM_TRY(watch(VFIO_PCI_ERR_IRQ_INDEX, error_event_));
  return watch(VFIO_PCI_REQ_IRQ_INDEX, request_event_);
}

Status VfioFunction::watch(uint32_t index, SystemFd& fd) {
  if (BM_TRY(vectors_of(index)) == 0) return {};
  const int event = system_.eventfd();
  if (event < 0) return fail(code_from_errno(-event), "eventfd: {}", errno_text(-event));
  fd = SystemFd(system_, event);
  const int fds[] = {event};
  return set_eventfds(index, fds);
}

bool VfioFunction::is_signalled(const SystemFd& fd) const {
  if (!fd.is_open()) return false;
  pollfd wanted{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return system_.poll(&wanted, 1, 0) > 0;
}

Result<const VfioRegion*> VfioFunction::memory_bar(uint32_t index) const {
  BM_TRY(status());
  if (index >= kPciBars || bars_[index].size == 0 || !bars_[index].is_memory)
    return fail(Code::kInvalidArgument, "{} has no memory BAR {}", name(), index);
  return &regions_[index];
}

Status VfioFunction::map_parts(uint32_t index) {
  const VfioRegion& region = regions_[index];
  if (!region.is_mappable || !parts_[index].empty()) return {};
  const std::vector<BusRange> areas =
      region.areas.empty() ? std::vector<BusRange>{{0, region.size}} : region.areas;
  std::vector<std::unique_ptr<RegionPart>> parts;
  for (const BusRange& area : areas) {
    const uint64_t offset = region.offset + area.address;
    BM_TRY(check_file(index, offset, area.bytes));
    void* address = nullptr;
    int error = system_.mmap(nullptr, area.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                             region_fd(index), static_cast<off_t>(offset), &address);
    if (error < 0)
      return fail(code_from_errno(-error), "{}: mapping {:#x} bytes of BAR {}: {}", name(),
                  area.bytes, index, errno_text(-error));
    parts.push_back(std::make_unique<RegionPart>(
        RegionPart{area.address, SystemMapping(system_, address, area.bytes)}));
    // A forked process has no business with the device.
    error = system_.madvise(address, area.bytes, MADV_DONTFORK);
    if (error < 0)
      return fail(Code::kIo, "{}: keeping BAR {} from forked processes: {}", name(), index,
                  errno_text(-error));
  }
  parts_[index] = std::move(parts);
  return {};
}

void VfioFunction::unmap_bars() {
  windows_.clear();
  for (auto& parts : parts_) parts.clear();
}

template <class View>
Result<View> VfioFunction::view_bar(uint32_t index, bool is_registers) {
  const VfioRegion& region = *BM_TRY(memory_bar(index));
  BM_TRY(map_parts(index));
  const auto& parts = parts_[index];
  if (parts.size() == 1 && parts[0]->mapping.bytes() == region.size)
    return View::mapped(parts[0]->mapping.address(), region.size);
  std::unique_ptr<RegionWindow>& window = windows_[{index, is_registers}];
  if (window == nullptr) {
    window = std::make_unique<RegionWindow>(static_cast<RegionIo&>(*this), index, region.size,
                                            is_registers);
    for (const std::unique_ptr<RegionPart>& part : parts) window->add(*part);
  }
  return View::remote(*window);
}

Result<Mmio> VfioFunction::map_bar(uint32_t index) { return view_bar<Mmio>(index, true); }

Result<HostView> VfioFunction::map_bar_memory(uint32_t index, bool) {
  return view_bar<HostView>(index, false);
}

Result<uint32_t> VfioFunction::enable_interrupts(uint32_t wanted) {
  BM_TRY(status());
  if (wanted == 0 || enabled_ != 0)
    return fail(Code::kInvalidArgument, "{}: {} interrupts are asked for, {} are on", name(),
                wanted, enabled_.load());
  uint32_t index = VFIO_PCI_MSIX_IRQ_INDEX;
  uint32_t count = BM_TRY(vectors_of(index));
  if (count == 0) {
    index = VFIO_PCI_MSI_IRQ_INDEX;
    count = BM_TRY(vectors_of(index));
  }
  if (count == 0) return fail(Code::kUnsupported, "{} has no MSI", name());
  count = std::min({count, wanted, most_vectors()});
  if (count == 0) return fail(Code::kUnsupported, "{}: the server takes no descriptors", name());
  std::vector<int> fds;
  for (uint32_t i = 0; i < count; ++i) {
    if (i == events_.size()) {
      const int fd = system_.eventfd();
      if (fd < 0) return fail(code_from_errno(-fd), "eventfd: {}", errno_text(-fd));
      events_.emplace_back(system_, fd);
    }
    fds.push_back(events_[i].get());
  }
  // Fewer vectors than the device has may be free; the first is as good as any.
  Status set = set_eventfds(index, fds);
  if (!set && set.error().code == Code::kOutOfMemory && count > 1) {
    count = 1;
    set = set_eventfds(index, std::span(fds).first(1));
  }
  BM_TRY(set);
  interrupt_index_ = index;
  enabled_ = count;
  return count;
}

Status VfioFunction::disable_interrupts() {
  if (enabled_ == 0) return {};
  BM_TRY(set_eventfds(interrupt_index_, {}));
  enabled_ = 0;
  return {};
}

Result<int> VfioFunction::interrupt_fd(uint32_t vector) {
  if (vector >= enabled_)
    return fail(Code::kInvalidArgument, "{}: interrupt {} is not on", name(), vector);
  return events_[vector].get();
}

Result<bool> VfioFunction::wait_interrupt(uint32_t vector, int timeout_ms) {
  const int fd = BM_TRY(interrupt_fd(vector));
  // Whoever owns the device wants it back whether or not it has more interrupts.
  std::array<pollfd, 3> fds{{{.fd = fd, .events = POLLIN, .revents = 0},
                             {.fd = error_event_.get(), .events = POLLIN, .revents = 0},
                             {.fd = request_event_.get(), .events = POLLIN, .revents = 0}}};
  const int ready = system_.poll(fds.data(), fds.size(), timeout_ms);
  if (ready < 0 && ready != -EINTR)
    return fail(Code::kIo, "{}: waiting for interrupt {}: {}", name(), vector, errno_text(-ready));
  BM_TRY(status());
  if (ready <= 0 || fds[0].revents == 0) return false;
  uint64_t count = 0;
  const ssize_t got = system_.read(fd, &count, sizeof count);
  if (got < 0 && got != -EAGAIN)
    return fail(Code::kIo, "{}: interrupt {}: {}", name(), vector,
                errno_text(static_cast<int>(-got)));
  return got == static_cast<ssize_t>(sizeof count);
}

}  // namespace bm
