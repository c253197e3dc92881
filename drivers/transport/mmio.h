#pragma once
// The views through which a driver touches a device: registers (Mmio), memory that both sides see
// (HostView) and the word that starts a queue (Doorbell). Each is a pointer where the device is
// mapped into this process, and a RemoteWindow where it is reached through a socket or a cable.
// Nothing else in the drivers dereferences device memory or says `volatile`.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "runtime/base/check.h"
#include "runtime/base/result.h"

namespace bm {

/// Registers or memory of a device that lie in no address space of this process: the slow path of
/// the views below, and the place where accesses are recorded or made to fail.
///
/// Offsets are bytes from the start of the window and were checked by the view: aligned to `width`,
/// inside size(). Accesses reach the device in the order of the calls, those to its other windows
/// included. A read that fails gives all ones, as a dead PCI function does, a write that fails is
/// dropped, and status() says why from then on. Thread: callers serialise.
class RemoteWindow {
 public:
  virtual ~RemoteWindow() = default;
  virtual uint64_t size() const = 0;  ///< bytes
  /// One access of `width` bytes: 1, 2, 4 or 8.
  virtual uint64_t read(uint64_t offset, uint32_t width) = 0;
  virtual void write(uint64_t offset, uint32_t width, uint64_t value) = 0;
  /// As few transactions as the transport can. Where offset and size are multiples of 4, the device
  /// sees whole aligned 32-bit accesses, ascending.
  virtual void read_block(uint64_t offset, std::span<std::byte> to) = 0;
  virtual void write_block(uint64_t offset, std::span<const std::byte> from) = 0;
  /// Returns when every write before it has reached the device (or has failed).
  virtual void flush() = 0;
  /// The first failure of the transport; sticky.
  virtual Status status() const = 0;
};

/// Stores of this thread before it, write-combined ones included, reach the device before any
/// store after it.
inline void store_fence() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// For a loop that reads until a device answers.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

namespace detail {

template <class T>
concept DeviceWord = std::unsigned_integral<T> && sizeof(T) <= 8 && !std::same_as<T, bool>;

/// What the views share. A value: copy it. Owns nothing: mapping and remote window outlive it.
class DeviceWindow {
 public:
  DeviceWindow() = default;

  uint64_t size() const { return size_; }  ///< bytes
  explicit operator bool() const { return size_ != 0; }
  /// First byte in this process, or nullptr behind a transport.
  std::byte* host() const { return base_; }
  /// The first failure of the transport; always fine for mapped windows.
  Status status() const { return remote_ == nullptr ? Status{} : remote_->status(); }

 protected:
  static Result<DeviceWindow> make_mapped(void* base, uint64_t bytes);
  static Result<DeviceWindow> make_remote(RemoteWindow& remote);
  Result<DeviceWindow> make_part(uint64_t offset, uint64_t bytes) const;
  bool is_part(uint64_t offset, uint64_t bytes) const;
  /// Becomes a part, one that is_part().
  void narrow(uint64_t offset, uint64_t bytes);

  /// True: `offset` may be dereferenced. The one test of the fast path; a remote window has no
  /// bytes mapped, so it fails for it as for an offset that is wrong.
  bool is_mapped(uint64_t offset, uint64_t bytes) const {
    uint64_t end = 0;
    return !__builtin_add_overflow(offset, bytes, &end) && end <= mapped_;
  }
  template <DeviceWord T>
  T load_word(uint64_t offset) const {
    if (is_mapped(offset, sizeof(T)) && offset % sizeof(T) == 0) [[likely]]
      return *reinterpret_cast<const volatile T*>(base_ + offset);
    return static_cast<T>(read_remote(offset, sizeof(T)));
  }
  template <DeviceWord T>
  void store_word(uint64_t offset, T value) const {
    if (is_mapped(offset, sizeof(T)) && offset % sizeof(T) == 0) [[likely]]
      *reinterpret_cast<volatile T*>(base_ + offset) = value;
    else
      write_remote(offset, sizeof(T), value);
  }
  /// The slow path: through the transport, or the end of the process for an offset that is wrong.
  [[gnu::cold]] uint64_t read_remote(uint64_t offset, uint32_t width) const;
  [[gnu::cold]] void write_remote(uint64_t offset, uint32_t width, uint64_t value) const;
  [[gnu::cold]] void read_remote_block(uint64_t offset, std::span<std::byte> to) const;
  [[gnu::cold]] void write_remote_block(uint64_t offset, std::span<const std::byte> from) const;
  /// Ends the process unless the access is inside the window, aligned and behind a transport.
  RemoteWindow& checked_remote(uint64_t offset, uint64_t bytes, uint64_t alignment) const;

  std::byte* base_ = nullptr;
  uint64_t mapped_ = 0;  ///< bytes at base_: all of them, or none behind a transport
  uint64_t size_ = 0;
  RemoteWindow* remote_ = nullptr;
  uint64_t origin_ = 0;  ///< of this view in *remote_
};

}  // namespace detail

/// A window of registers. Offsets are bytes. Accesses are single, of the width named, and in the
/// order of the calls; they stay behind earlier stores to cached memory and before later loads from
/// it (write-combined stores need HostView::publish()). A device that is gone reads as all ones.
///
/// An offset outside the window or not aligned to the width ends the process (BM_CHECK): offsets
/// are constants of ours. One that a device or file names goes through window() first.
class Mmio : public detail::DeviceWindow {
 public:
  Mmio() = default;  ///< empty: no access is inside
  /// `bytes` at `base`, mapped uncached. Errors: kInvalidArgument (null, not aligned to 8, empty).
  static Result<Mmio> mapped(void* base, uint64_t bytes) {
    return Mmio::wrap(make_mapped(base, bytes));
  }
  /// Errors: kInvalidArgument (empty).
  static Result<Mmio> remote(RemoteWindow& window) { return Mmio::wrap(make_remote(window)); }
  /// A part of it, `offset` a multiple of 8. Errors: kInvalidArgument naming both ranges.
  Result<Mmio> window(uint64_t offset, uint64_t bytes) const {
    return Mmio::wrap(make_part(offset, bytes));
  }

  uint8_t read8(uint64_t offset) const { return read<uint8_t>(offset); }
  uint16_t read16(uint64_t offset) const { return read<uint16_t>(offset); }
  uint32_t read32(uint64_t offset) const { return read<uint32_t>(offset); }
  uint64_t read64(uint64_t offset) const { return read<uint64_t>(offset); }
  void write8(uint64_t offset, uint8_t value) const { write(offset, value); }
  void write16(uint64_t offset, uint16_t value) const { write(offset, value); }
  void write32(uint64_t offset, uint32_t value) const { write(offset, value); }
  void write64(uint64_t offset, uint64_t value) const { write(offset, value); }

  /// Consecutive 32-bit registers, ascending; one transaction where the transport can.
  void read_block(uint64_t offset, std::span<uint32_t> to) const;
  void write_block(uint64_t offset, std::span<const uint32_t> from) const;

 private:
  friend class HostView;
  explicit Mmio(const DeviceWindow& window) : DeviceWindow(window) {}
  static Result<Mmio> wrap(const Result<DeviceWindow>& window) {
    if (!window) return tl::unexpected<Error>(window.error());
    return Mmio(*window);
  }
  template <class T>
  T read(uint64_t offset) const {
    const T value = load_word<T>(offset);
    order();
    return value;
  }
  template <class T>
  void write(uint64_t offset, T value) const {
    order();
    store_word<T>(offset, value);
  }
  /// x86 keeps uncached accesses in order with everything but write-combined stores, so only the
  /// compiler is held there.
  static void order() {
#if defined(__x86_64__) || defined(__i386__)
    std::atomic_signal_fence(std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
};

/// Memory that device and process both see: cached system memory, or video memory through a BAR
/// (write-combined: reads there work and take about a microsecond each). Offsets are bytes.
///
/// load() and store() are single accesses that the compiler neither drops nor joins; copies are
/// not. No order among stores to write-combined memory until publish(). Range rule: as Mmio.
class HostView : public detail::DeviceWindow {
 public:
  HostView() = default;  ///< empty: no access is inside
  /// Errors: kInvalidArgument (null, not aligned to 8, empty).
  static Result<HostView> mapped(void* base, uint64_t bytes) {
    return HostView::wrap(make_mapped(base, bytes));
  }
  /// Errors: kInvalidArgument (empty).
  static Result<HostView> remote(RemoteWindow& window) {
    return HostView::wrap(make_remote(window));
  }
  /// A part of it, `offset` a multiple of 8. Errors: kInvalidArgument naming both ranges.
  Result<HostView> window(uint64_t offset, uint64_t bytes) const {
    return HostView::wrap(make_part(offset, bytes));
  }
  /// The same for offsets that are promises of ours: a wrong one ends the process.
  HostView slice(uint64_t offset, uint64_t bytes) const;

  template <detail::DeviceWord T>
  T load(uint64_t offset) const {
    return load_word<T>(offset);
  }
  template <detail::DeviceWord T>
  void store(uint64_t offset, T value) const {
    store_word<T>(offset, value);
  }
  /// A word that the device writes last: what it wrote before is seen by loads after this one.
  template <detail::DeviceWord T>
  T load_acquire(uint64_t offset) const {
    if (is_mapped(offset, sizeof(T)) && offset % sizeof(T) == 0) [[likely]]
      return atomic<T>(offset).load(std::memory_order_acquire);
    return load_word<T>(offset);
  }
  /// A word that the device reads first: it sees every store to cached memory before this one.
  template <detail::DeviceWord T>
  void store_release(uint64_t offset, T value) const {
    if (is_mapped(offset, sizeof(T)) && offset % sizeof(T) == 0) [[likely]]
      atomic<T>(offset).store(value, std::memory_order_release);
    else
      store_word<T>(offset, value);
  }

  /// Bytes to the device's memory and back; one transaction where the transport can.
  void copy_in(uint64_t offset, std::span<const std::byte> from) const {
    if (is_mapped(offset, from.size())) [[likely]] {
      if (!from.empty()) std::memcpy(base_ + offset, from.data(), from.size());
    } else {
      write_remote_block(offset, from);
    }
  }
  void copy_in(uint64_t offset, std::span<const uint32_t> words) const {
    copy_in(offset, std::as_bytes(words));
  }
  void copy_out(uint64_t offset, std::span<std::byte> to) const {
    if (is_mapped(offset, to.size())) [[likely]] {
      if (!to.empty()) std::memcpy(to.data(), base_ + offset, to.size());
    } else {
      read_remote_block(offset, to);
    }
  }

  /// `value` into each of the bytes.
  void fill(uint64_t offset, uint64_t bytes, std::byte value) const {
    if (is_mapped(offset, bytes)) [[likely]] {
      if (bytes != 0) std::memset(base_ + offset, static_cast<int>(value), bytes);
    } else {
      fill_remote(offset, bytes, value);
    }
  }

  /// The same bytes where they are registers.
  Mmio registers() const { return Mmio(*this); }

  /// Every store and copy before it reaches the device before any store after it: call it before
  /// the doorbell.
  void publish() const {
    if (remote_ == nullptr) [[likely]]
      store_fence();
    else
      remote_->flush();
  }

 private:
  explicit HostView(const DeviceWindow& window) : DeviceWindow(window) {}
  [[gnu::cold]] void fill_remote(uint64_t offset, uint64_t bytes, std::byte value) const;
  template <class T>
  std::atomic_ref<T> atomic(uint64_t offset) const {
    return std::atomic_ref<T>(*reinterpret_cast<T*>(base_ + offset));
  }
  static Result<HostView> wrap(const Result<DeviceWindow>& window) {
    if (!window) return tl::unexpected<Error>(window.error());
    return HostView(*window);
  }
};

/// The word of a register window whose store tells an engine that there is work: uint32_t or
/// uint64_t, as the engine wants it. Its place is checked when it is made, so that ringing is one
/// store. What the engine will read was published before.
template <class Word>
  requires std::same_as<Word, uint32_t> || std::same_as<Word, uint64_t>
class Doorbell {
 public:
  Doorbell() = default;  ///< must not be rung
  /// Errors: kInvalidArgument (outside the window, not aligned).
  static Result<Doorbell> at(const Mmio& page, uint64_t offset) {
    if (offset % sizeof(Word) != 0 || page.size() < sizeof(Word) ||
        offset > page.size() - sizeof(Word))
      return fail(Code::kInvalidArgument,
                  "a doorbell of {} bytes at {:#x} of a window of {:#x} bytes", sizeof(Word),
                  offset, page.size());
    Doorbell result;
    if (page.host() != nullptr) result.word_ = reinterpret_cast<Word*>(page.host() + offset);
    result.page_ = page;
    result.offset_ = offset;
    return result;
  }

  void ring(Word value) const {
    if (word_ != nullptr) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      *static_cast<volatile Word*>(word_) = value;
    } else {
      ring_remote(value);
    }
  }

 private:
  [[gnu::cold, gnu::noinline]] void ring_remote(Word value) const {
    if constexpr (sizeof(Word) == 8)
      page_.write64(offset_, value);
    else
      page_.write32(offset_, value);
  }
  Word* word_ = nullptr;
  Mmio page_;
  uint64_t offset_ = 0;
};

}  // namespace bm
