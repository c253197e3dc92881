#include "tests/sim/nv/backing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace bm::sim::nv {
namespace {

constexpr uint64_t kPage = 4096;

/// Words are stored whole, so that whoever polls them never sees half of one.
void copy_words(std::byte* to, const void* from, uint64_t bytes) {
  const bool is_word = bytes == 8 || bytes == 4;
  if (!is_word || reinterpret_cast<uintptr_t>(to) % bytes != 0) {
    std::memcpy(to, from, bytes);
  } else if (bytes == 8) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    std::atomic_ref(*reinterpret_cast<uint64_t*>(to)).store(value, std::memory_order_release);
  } else {
    uint32_t value;
    std::memcpy(&value, from, 4);
    std::atomic_ref(*reinterpret_cast<uint32_t*>(to)).store(value, std::memory_order_release);
  }
}

void load_words(void* to, std::byte* from, uint64_t bytes) {
  if (bytes == 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const uint64_t value =
        std::atomic_ref(*reinterpret_cast<uint64_t*>(from)).load(std::memory_order_acquire);
    std::memcpy(to, &value, 8);
  } else if (bytes == 4 && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    const uint32_t value =
        std::atomic_ref(*reinterpret_cast<uint32_t*>(from)).load(std::memory_order_acquire);
    std::memcpy(to, &value, 4);
  } else {
    std::memcpy(to, from, bytes);
  }
}

class LocalBacking : public Backing {
 public:
  LocalBacking(std::byte* data, uint64_t size) : Backing(size), data_(data) {}
  std::byte* at(uint64_t offset, uint64_t bytes) override {
    return offset <= size_ && bytes <= size_ - offset ? data_ + offset : nullptr;
  }
  std::byte* local(uint64_t offset, uint64_t bytes) override { return at(offset, bytes); }
  bool read(uint64_t offset, void* out, uint64_t bytes) override {
    std::byte* const from = at(offset, bytes);
    if (from != nullptr) load_words(out, from, bytes);
    return from != nullptr;
  }
  bool write(uint64_t offset, const void* data, uint64_t bytes) override {
    std::byte* const to = at(offset, bytes);
    if (to != nullptr) copy_words(to, data, bytes);
    return to != nullptr;
  }

 protected:
  std::byte* data_;
};

class SharedBacking final : public LocalBacking {
 public:
  SharedBacking(std::byte* data, uint64_t size, ScopedFd fd)
      : LocalBacking(data, size), fd_(std::move(fd)) {}
  ~SharedBacking() override { munmap(data_, size_); }
  int fd() const override { return fd_.get(); }

 private:
  ScopedFd fd_;
};

/// Memory of another process: copied page by page while something works on it, changed bytes
/// written back by flush(). Only the bytes that differ go back, so that what the owner writes
/// beside them meanwhile survives.
class RemoteBacking final : public Backing {
 public:
  RemoteBacking(std::shared_ptr<Process> process, uint64_t address, uint64_t size)
      : Backing(size), process_(std::move(process)), address_(address) {}

  std::byte* at(uint64_t offset, uint64_t bytes) override {
    if (offset > size_ || bytes > size_ - offset) return nullptr;
    const uint64_t first = offset / kPage, last = bytes == 0 ? first : (offset + bytes - 1) / kPage;
    if (first != last) return nullptr;
    const std::lock_guard lock(mutex_);
    Shadow& shadow = shadows_[first];
    if (shadow.now.empty()) {
      shadow.now.resize(kPage);
      if (!process_->read(address_ + first * kPage, shadow.now.data(), page_bytes(first))) {
        shadows_.erase(first);
        return nullptr;
      }
      shadow.was = shadow.now;
    }
    return shadow.now.data() + offset % kPage;
  }

  void flush() override {
    const std::lock_guard lock(mutex_);
    for (auto& [page, shadow] : shadows_) write_back(page, shadow);
    shadows_.clear();
  }

  bool read(uint64_t offset, void* out, uint64_t bytes) override {
    return process_->read(address_ + offset, out, bytes);
  }
  bool write(uint64_t offset, const void* data, uint64_t bytes) override {
    return process_->write(address_ + offset, data, bytes);
  }

 private:
  struct Shadow {
    std::vector<std::byte> now, was;
  };

  uint64_t page_bytes(uint64_t page) const { return std::min(kPage, size_ - page * kPage); }

  void write_back(uint64_t page, const Shadow& shadow) {
    const uint64_t bytes = page_bytes(page);
    for (uint64_t i = 0; i < bytes;) {
      if (shadow.now[i] == shadow.was[i]) {
        ++i;
        continue;
      }
      uint64_t end = i;
      while (end < bytes && shadow.now[end] != shadow.was[end]) ++end;
      process_->write(address_ + page * kPage + i, shadow.now.data() + i, end - i);
      i = end;
    }
  }

  std::shared_ptr<Process> process_;
  uint64_t address_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Shadow> shadows_;
};

}  // namespace

std::shared_ptr<Backing> create_shared_backing(uint64_t size, const std::string& name) {
  ScopedFd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd.is_open() || ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return nullptr;
  void* const data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) return nullptr;
  return std::make_shared<SharedBacking>(static_cast<std::byte*>(data), size, std::move(fd));
}

std::shared_ptr<Backing> create_process_backing(std::shared_ptr<Process> process, uint64_t address,
                                                uint64_t size) {
  if (std::byte* const direct = process->direct(address))
    return std::make_shared<LocalBacking>(direct, size);
  return std::make_shared<RemoteBacking>(std::move(process), address, size);
}

}  // namespace bm::sim::nv
