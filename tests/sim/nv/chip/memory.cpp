#include "tests/sim/nv/chip/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/notify/give_up.h"

namespace bm::sim::nv::card {

VideoMemory::VideoMemory(uint64_t bytes)
    : bytes_(bytes), first_touch_(bytes), is_written_(bytes / kPage) {
  fd_ = memfd_create("bm-sim-nv-vram", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0) sim::give_up_errno("video memory");
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (at == MAP_FAILED) sim::give_up_errno("video memory");
  base_ = static_cast<std::byte*>(at);
}

VideoMemory::~VideoMemory() {
  munmap(base_, bytes_);
  close(fd_);
}

void VideoMemory::touch(uint64_t page) {
  if (is_written_[page]) return;
  is_written_[page] = true;
  first_touch_(base_, page * kPage);
  std::byte* const at = base_ + page * kPage;
  for (uint64_t i = 0; i < kPage; i += 4) std::memcpy(at + i, &kPoison, 4);
}

std::byte* VideoMemory::at(uint64_t offset, uint64_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset) return nullptr;
  if (bytes == 0) return base_ + offset;
  const std::lock_guard lock(mutex_);
  for (uint64_t page = offset / kPage; page <= (offset + bytes - 1) / kPage; ++page) touch(page);
  return base_ + offset;
}

void VideoMemory::host_read(uint64_t offset, std::span<std::byte> to) {
  std::byte* const from = at(offset, to.size());
  if (from == nullptr) {
    std::ranges::fill(to, std::byte{0xff});
    return;
  }
  // Engines write while the host polls: words are read as words.
  uint64_t done = 0;
  if (to.size() == 8 && offset % 8 == 0) {
    const uint64_t word = std::atomic_ref(*reinterpret_cast<uint64_t*>(from)).load();
    std::memcpy(to.data(), &word, 8);
    return;
  }
  for (; offset % 4 == 0 && done + 4 <= to.size(); done += 4) {
    const uint32_t word =
        std::atomic_ref(*reinterpret_cast<uint32_t*>(from + done)).load(std::memory_order_acquire);
    std::memcpy(&to[done], &word, 4);
  }
  std::memcpy(to.data() + done, from + done, to.size() - done);
}

void VideoMemory::host_write(uint64_t offset, std::span<const std::byte> from) {
  std::byte* const to = at(offset, from.size());
  if (to == nullptr || from.empty()) return;
  std::memcpy(to, from.data(), from.size());
  const std::lock_guard lock(mutex_);
  const uint64_t first = offset / 8, last = (offset + from.size() - 1) / 8;
  for (uint64_t word = first; word <= last;) {
    auto& page = written_[word / 512];
    const uint64_t end = std::min(last, word / 512 * 512 + 511);
    for (; word <= end; ++word) page[word % 512 / 64] |= uint64_t{1} << word % 64;
  }
}

bool VideoMemory::is_unsettled(uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto page = written_.find(offset / kPage);
  const uint64_t word = offset % kPage / 8;
  return page != written_.end() && (page->second[word / 64] >> word % 64 & 1) != 0;
}

void VideoMemory::settle() {
  const std::lock_guard lock(mutex_);
  written_.clear();
}

void VideoMemory::lose() {
  const std::lock_guard lock(mutex_);
  written_.clear();
  is_written_.assign(is_written_.size(), false);
  first_touch_.forget();
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
}

std::vector<uint64_t> VideoMemory::written_pages() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> pages;
  for (size_t page = 0; page < is_written_.size(); ++page)
    if (is_written_[page]) pages.push_back(page * kPage);
  return pages;
}

std::byte* Memory::piece_at(uint64_t address, uint64_t bytes, bool is_write, uint64_t* contiguous) {
  const uint64_t bar = config_.bar_address(bar_), size = config_.bar_bytes(bar_);
  if (bar != 0 && address >= bar && address - bar < size) {
    const uint64_t offset = address - bar;
    if (contiguous != nullptr) *contiguous = std::min(size, video_.size()) - offset;
    return bytes <= size - offset ? video_.at(offset, bytes) : nullptr;
  }
  return bus_.at(address, bytes, is_write, contiguous);
}

std::byte* Memory::system_at(uint64_t address, uint64_t bytes, bool is_write,
                             const std::string& who) {
  if (!config_.is_bus_master()) {
    if (!who.empty())
      violations_.add(
          fmt::format("{}: system memory at {:#x} while bus mastering is off", who, address));
    return nullptr;
  }
  std::byte* const at = piece_at(address, bytes, is_write, nullptr);
  if (at == nullptr && !who.empty())
    violations_.add(fmt::format("{}: system memory at {:#x}, {:#x} bytes, was never mapped for DMA",
                                who, address, bytes));
  return at;
}

bool Memory::read(Aperture aperture, uint64_t address, std::span<std::byte> to,
                  const std::string& who) {
  for (uint64_t done = 0; done < to.size();) {
    const uint64_t part = std::min<uint64_t>(to.size() - done, 4096 - (address + done) % 4096);
    std::byte* from = aperture == Aperture::kVideo ? video_.at(address + done, part)
                                                   : system_at(address + done, part, false, who);
    if (from == nullptr) {
      if (aperture == Aperture::kVideo && !who.empty())
        violations_.add(fmt::format("{}: no video memory at {:#x}", who, address + done));
      return false;
    }
    std::memcpy(&to[done], from, part);
    done += part;
  }
  return true;
}

bool Memory::write(Aperture aperture, uint64_t address, std::span<const std::byte> from,
                   const std::string& who) {
  for (uint64_t done = 0; done < from.size();) {
    const uint64_t part = std::min<uint64_t>(from.size() - done, 4096 - (address + done) % 4096);
    std::byte* to = aperture == Aperture::kVideo ? video_.at(address + done, part)
                                                 : system_at(address + done, part, true, who);
    if (to == nullptr) {
      if (aperture == Aperture::kVideo && !who.empty())
        violations_.add(fmt::format("{}: no video memory at {:#x}", who, address + done));
      return false;
    }
    std::memcpy(to, &from[done], part);
    done += part;
  }
  return true;
}

}  // namespace bm::sim::nv::card
