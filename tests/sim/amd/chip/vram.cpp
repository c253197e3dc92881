#include "tests/sim/amd/chip/vram.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {

Vram::Vram(uint64_t bytes) : bytes_(bytes), first_touch_(bytes), is_written_(bytes / kPage) {
  fd_ = memfd_create("bm-sim-amd-vram", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0) sim::give_up_errno("video memory");
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (at == MAP_FAILED) sim::give_up_errno("video memory");
  base_ = static_cast<std::byte*>(at);
}

Vram::~Vram() {
  munmap(base_, bytes_);
  close(fd_);
}

void Vram::touch(uint64_t page) {
  if (is_written_[page]) return;
  is_written_[page] = true;
  first_touch_(base_, page * kPage);
  std::byte* const at = base_ + page * kPage;
  for (uint64_t i = 0; i < kPage; i += 4) std::memcpy(at + i, &kPoison, 4);
}

std::byte* Vram::at(uint64_t offset, uint64_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset) return nullptr;
  if (bytes == 0) return base_ + offset;
  const std::lock_guard lock(mutex_);
  for (uint64_t page = offset / kPage; page <= (offset + bytes - 1) / kPage; ++page) touch(page);
  return base_ + offset;
}

bool Vram::read(uint64_t offset, std::span<std::byte> to) {
  std::byte* const from = at(offset, to.size());
  if (from == nullptr) return false;
  // Engines write while the host polls: words are read as words.
  uint64_t done = 0;
  for (; offset % 4 == 0 && done + 4 <= to.size(); done += 4) {
    const uint32_t word = std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(from + done))
                              .load(std::memory_order_acquire);
    std::memcpy(&to[done], &word, 4);
  }
  std::memcpy(to.data() + done, from + done, to.size() - done);
  return true;
}

bool Vram::write(uint64_t offset, std::span<const std::byte> from) {
  std::byte* const to = at(offset, from.size());
  if (to != nullptr) std::memcpy(to, from.data(), from.size());
  return to != nullptr;
}

void Vram::host_read(uint64_t offset, std::span<std::byte> to) {
  if (!read(offset, to)) {
    std::ranges::fill(to, std::byte{0xff});
    return;
  }
  const std::lock_guard lock(mutex_);
  if (held_.empty() || to.empty() || writes_through) return;
  const uint64_t end = offset + to.size();
  for (auto line = held_.lower_bound(offset / kPage * kPage);
       line != held_.end() && line->first < end; ++line)
    for (uint64_t at = std::max(offset, line->first); at < std::min(end, line->first + kPage); ++at)
      if (line->second.is_dirty[at - line->first] != 0)
        to[at - offset] = line->second.bytes[at - line->first];
}

void Vram::host_write(uint64_t offset, std::span<const std::byte> from) {
  if (offset > bytes_ || from.size() > bytes_ - offset) return;
  const std::lock_guard lock(mutex_);
  for (uint64_t done = 0; done < from.size();) {
    const uint64_t page = (offset + done) / kPage * kPage, start = offset + done - page;
    const uint64_t part = std::min(from.size() - done, kPage - start);
    Line& line = held_[page];
    std::memcpy(&line.bytes[start], &from[done], part);
    std::memset(&line.is_dirty[start], 1, part);
    held_bytes_ += part;
    if (writes_through) {
      touch(page / kPage);
      std::memcpy(base_ + page + start, &from[done], part);
    }
    done += part;
  }
  // Nobody's buffers are endless.
  constexpr uint64_t kMost = 64 << 20;
  if (held_bytes_ > kMost) flush_locked();
}

void Vram::flush_locked() {
  for (const auto& [page, line] : held_) {
    if (writes_through) break;
    touch(page / kPage);
    for (uint64_t i = 0; i < kPage; i += 4) {
      uint32_t dirty = 0, word = 0;
      std::memcpy(&dirty, &line.is_dirty[i], 4);
      std::memcpy(&word, &line.bytes[i], 4);
      if (dirty == 0x01010101) {
        std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(base_ + page + i))
            .store(word, std::memory_order_release);
        continue;
      }
      for (uint64_t k = i; k < i + 4; ++k)
        if (line.is_dirty[k] != 0) base_[page + k] = line.bytes[k];
    }
  }
  held_.clear();
  held_bytes_ = 0;
}

void Vram::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

uint64_t Vram::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

bool Vram::holds(uint64_t offset, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto line = held_.lower_bound(offset / kPage * kPage);
  return line != held_.end() && line->first < offset + bytes;
}

void Vram::lose() {
  const std::lock_guard lock(mutex_);
  held_.clear();
  held_bytes_ = 0;
  is_written_.assign(is_written_.size(), false);
  first_touch_.forget();
  fallocate(fd_, 3 /* punch a hole, keep the size */, 0, static_cast<off_t>(bytes_));
}

}  // namespace bm::sim::amd
