#include "drivers/transport/mmio.h"

#include <algorithm>
#include <array>

namespace bm {
namespace {

constexpr uint64_t kAlignment =
    8;  // of a window, so that alignment of offsets is that of addresses

}  // namespace

namespace detail {

Result<DeviceWindow> DeviceWindow::make_mapped(void* base, uint64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  if (base == nullptr || bytes == 0 || address % kAlignment != 0 || address + bytes < address)
    return fail(Code::kInvalidArgument, "no window of {:#x} bytes can lie at {:#x}", bytes,
                address);
  DeviceWindow window;
  window.base_ = static_cast<std::byte*>(base);
  window.mapped_ = window.size_ = bytes;
  return window;
}

Result<DeviceWindow> DeviceWindow::make_remote(RemoteWindow& remote) {
  if (remote.size() == 0) return fail(Code::kInvalidArgument, "a remote window of no bytes");
  DeviceWindow window;
  window.remote_ = &remote;
  window.size_ = remote.size();
  return window;
}

Result<DeviceWindow> DeviceWindow::make_part(uint64_t offset, uint64_t bytes) const {
  if (!is_part(offset, bytes))
    return fail(Code::kInvalidArgument, "no window of {:#x} bytes at {:#x} of one of {:#x} bytes",
                bytes, offset, size_);
  DeviceWindow part = *this;
  part.narrow(offset, bytes);
  return part;
}

bool DeviceWindow::is_part(uint64_t offset, uint64_t bytes) const {
  return bytes != 0 && offset % kAlignment == 0 && bytes <= size_ && offset <= size_ - bytes;
}

void DeviceWindow::narrow(uint64_t offset, uint64_t bytes) {
  size_ = bytes;
  if (remote_ == nullptr) {
    base_ += offset;
    mapped_ = bytes;
  } else {
    origin_ += offset;
  }
}

RemoteWindow& DeviceWindow::checked_remote(uint64_t offset, uint64_t bytes,
                                           uint64_t alignment) const {
  const bool is_inside_window = bytes <= size_ && offset <= size_ - bytes;
  const bool is_aligned_offset = offset % alignment == 0;
  BM_CHECK(is_inside_window);
  BM_CHECK(is_aligned_offset);
  BM_CHECK(remote_ != nullptr);
  return *remote_;
}

uint64_t DeviceWindow::read_remote(uint64_t offset, uint32_t width) const {
  return checked_remote(offset, width, width).read(origin_ + offset, width);
}

void DeviceWindow::write_remote(uint64_t offset, uint32_t width, uint64_t value) const {
  checked_remote(offset, width, width).write(origin_ + offset, width, value);
}

void DeviceWindow::read_remote_block(uint64_t offset, std::span<std::byte> to) const {
  RemoteWindow& remote = checked_remote(offset, to.size(), 1);
  if (!to.empty()) remote.read_block(origin_ + offset, to);
}

void DeviceWindow::write_remote_block(uint64_t offset, std::span<const std::byte> from) const {
  RemoteWindow& remote = checked_remote(offset, from.size(), 1);
  if (!from.empty()) remote.write_block(origin_ + offset, from);
}

}  // namespace detail

void Mmio::read_block(uint64_t offset, std::span<uint32_t> to) const {
  BM_CHECK(offset % sizeof(uint32_t) == 0);
  if (!is_mapped(offset, to.size_bytes())) {
    read_remote_block(offset, std::as_writable_bytes(to));
    return;
  }
  for (uint32_t& word : to) {
    word = load_word<uint32_t>(offset);
    offset += sizeof(uint32_t);
  }
  order();
}

void Mmio::write_block(uint64_t offset, std::span<const uint32_t> from) const {
  BM_CHECK(offset % sizeof(uint32_t) == 0);
  if (!is_mapped(offset, from.size_bytes())) {
    write_remote_block(offset, std::as_bytes(from));
    return;
  }
  order();
  for (const uint32_t word : from) {
    store_word<uint32_t>(offset, word);
    offset += sizeof(uint32_t);
  }
}

HostView HostView::slice(uint64_t offset, uint64_t bytes) const {
  const bool is_part_of_view = is_part(offset, bytes);
  BM_CHECK(is_part_of_view);
  HostView part = *this;
  part.narrow(offset, bytes);
  return part;
}

void HostView::fill_remote(uint64_t offset, uint64_t bytes, std::byte value) const {
  std::array<std::byte, 4096> block;
  block.fill(value);
  // The range is checked before its first byte is written.
  checked_remote(offset, bytes, 1);
  for (uint64_t at = 0; at < bytes; at += block.size())
    write_remote_block(offset + at,
                       std::span(block).first(std::min<uint64_t>(bytes - at, block.size())));
}

}  // namespace bm
