#include "runtime/buffer.h"

#include <algorithm>
#include <cstring>

#include "runtime/allocator.h"
#include "runtime/base/env.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/device.h"
#include "runtime/file_stream.h"
#include "runtime/pool.h"
#include "runtime/staging.h"
#include "runtime/stream.h"

namespace bm::runtime {
namespace {

Status check_copy(const Buffer& buffer, uint64_t other_bytes) {
  if (!buffer.has_storage())
    return fail(Code::kInvalidArgument, "copy with a buffer that has no memory");
  if (buffer.size != other_bytes)
    return fail(Code::kInvalidArgument, "copy between {} and {} bytes", buffer.size, other_bytes);
  return {};
}

/// Work on `buffer` queued on other devices: our stream does not order after it, so the host waits.
Status wait_for_others(const Buffer& buffer, Stream& stream) {
  for (const Point& point : buffer.storage->uses())
    if (point.timeline != &stream.timeline()) BM_TRY(wait(point));
  return {};
}

Status stage_in(const Buffer& dst, const Staging::Fill& fill) {
  BM_TRY(wait_for_others(dst, dst.device().stream()));
  return dst.device().allocator().staging().copy_in(dst, fill);
}

Status stage_out(const Buffer& src, const Staging::Drain& drain) {
  BM_TRY(wait_for_others(src, src.device().stream()));
  return src.device().allocator().staging().copy_out(src, drain);
}

bool overlaps(const Buffer& a, const Buffer& b) {
  return a.storage == b.storage && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
}

Status copy_on_device(const Buffer& dst, const Buffer& src) {
  Stream& stream = dst.device().stream();
  std::vector<Point> earlier = dst.storage->uses();
  const std::vector<Point> more = src.storage->uses();
  earlier.insert(earlier.end(), more.begin(), more.end());
  const hal::Command command = hal::Copy{dst.va(), src.va(), dst.size};
  const Point point = BM_TRY(stream.submit_after(hal::QueueKind::kCopy, {&command, 1}, earlier));
  dst.storage->used_until(point);
  src.storage->used_until(point);
  return {};
}

/// BM_POISON: the whole storage as ones.
Status poison(const StoragePtr& storage) {
  constexpr uint64_t kChunk = 1 << 20;
  const std::vector<std::byte> ones(std::min(storage->size(), kChunk), std::byte{0xff});
  for (uint64_t at = 0; at < storage->size(); at += kChunk) {
    const uint64_t size = std::min(storage->size() - at, kChunk);
    BM_TRY(copy_in(Buffer{storage, at, size}, std::span(ones).first(size)));
  }
  return {};
}

}  // namespace

Result<Buffer> Buffer::view(uint64_t byte_offset, uint64_t byte_size) const {
  if (!has_storage()) return fail(Code::kInvalidArgument, "view of a buffer that has no memory");
  if (byte_offset > size || byte_size > size - byte_offset)
    return fail(Code::kInvalidArgument, "view of {} bytes at {} leaves a buffer of {}", byte_size,
                byte_offset, size);
  return Buffer{storage, offset + byte_offset, byte_size};
}

Result<Buffer> allocate(Device& device, const hal::BufferDesc& desc) {
  return guard_memory("allocating a buffer", [&]() -> Result<Buffer> {
    StoragePtr storage = BM_TRY(device.allocator().allocate(desc));
    if (settings().poison) BM_TRY(poison(storage));
    return Buffer{std::move(storage), 0, desc.size == 0 ? Pool::kGranule : desc.size};
  });
}

Result<Buffer> wrap(Device& device, void* pointer, uint64_t bytes, std::function<void()> release,
                    hal::ExternalKind kind) {
  const hal::BufferDesc desc{.size = bytes, .external = pointer, .external_kind = kind};
  StoragePtr storage = BM_TRY(device.allocator().wrap(desc, std::move(release)));
  storage->set_imported();
  return Buffer{std::move(storage), 0, bytes};
}

Status copy_in(const Buffer& dst, std::span<const std::byte> src) {
  return guard_memory("copying to a device", [&]() -> Status {
    BM_TRY(check_copy(dst, src.size()));
    if (src.empty()) return {};
    dst.storage->note_write();
    if (std::byte* host = dst.host()) {
      BM_TRY(dst.storage->wait_idle());
      std::memcpy(host, src.data(), src.size());
      return {};
    }
    return stage_in(dst, [&](std::span<std::byte> chunk, uint64_t offset) -> Status {
      std::memcpy(chunk.data(), src.data() + offset, chunk.size());
      return {};
    });
  });
}

Status copy_out(std::span<std::byte> dst, const Buffer& src) {
  return guard_memory("copying from a device", [&]() -> Status {
    BM_TRY(check_copy(src, dst.size()));
    if (dst.empty()) return {};
    if (const std::byte* host = src.host()) {
      BM_TRY(src.storage->wait_idle());
      std::memcpy(dst.data(), host, dst.size());
      return {};
    }
    return stage_out(src, [&](std::span<const std::byte> chunk, uint64_t offset) -> Status {
      std::memcpy(dst.data() + offset, chunk.data(), chunk.size());
      return {};
    });
  });
}

Status copy(const Buffer& dst, const Buffer& src) {
  return guard_memory("copying between buffers", [&]() -> Status {
    BM_TRY(check_copy(dst, src.size));
    BM_TRY(check_copy(src, dst.size));
    if (dst.size == 0) return {};
    dst.storage->note_write();
    if (overlaps(dst, src)) {
      if (dst.offset == src.offset) return {};
      return fail(Code::kInvalidArgument, "copy of {} bytes onto themselves, from offset {} to {}",
                  dst.size, src.offset, dst.offset);
    }
    if (&dst.device() == &src.device()) return copy_on_device(dst, src);
    if (std::byte* host = dst.host()) {
      BM_TRY(dst.storage->wait_idle());
      return copy_out({host, dst.size}, src);
    }
    if (const std::byte* host = src.host()) {
      BM_TRY(src.storage->wait_idle());
      return copy_in(dst, {host, src.size});
    }
    // While one slot is handed over, the source already copies the next and the target the last.
    return stage_out(src, [&](std::span<const std::byte> chunk, uint64_t offset) -> Status {
      return copy_in(BM_TRY(dst.view(offset, chunk.size())), chunk);
    });
  });
}

Status copy_from_file(const Buffer& dst, const std::string& path, uint64_t file_offset) {
  BM_TRY(check_copy(dst, dst.size));
  const FileStream file = BM_TRY(FileStream::open(path));
  dst.storage->note_write();
  if (std::byte* host = dst.host()) {
    BM_TRY(dst.storage->wait_idle());
    return file.read({host, dst.size}, file_offset);
  }
  return stage_in(dst, [&](std::span<std::byte> chunk, uint64_t offset) {
    return file.read(chunk, file_offset + offset);
  });
}

}  // namespace bm::runtime
