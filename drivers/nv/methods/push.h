#pragma once
// Words of a push buffer: method headers with their data, for one channel.
//
// Source: open-gpu-doc, classes/host/clc56f.h, NVC56F_DMA_* (header), NVC56F_GP_ENTRY* (ring).

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/result.h"

namespace bm::nv {

/// Which engine object a method goes to. Host methods work on any.
enum class Subchannel : uint32_t { kHost = 0, kCompute = 1, kCopy = 4 };

/// Classes behind the subchannels of a channel; 0: none there.
struct ChannelClasses {
  uint32_t channel = 0, compute = 0, copy = 0;
};

/// One method: where it is and which bits any of its fields cover.
struct Method {
  uint32_t offset;
  uint32_t mask;
  std::string_view name;
};

/// Methods of a class that the encoders may use; empty for a class they do not know.
std::span<const Method> methods_of(uint32_t class_number);

/// Errors: kInvalidArgument naming class and method when the class has no such method or the word
/// sets bits outside its fields.
Status check_method(const ChannelClasses& classes, Subchannel subchannel, uint32_t method,
                    uint32_t word);

/// Checks every method of a finished push buffer. Errors: as check_method; kCorrupt for a header
/// that no opcode explains or that passes the end.
Status check_push(std::span<const uint32_t> words, const ChannelClasses& classes);

/// How the words after a header are spread over methods.
enum class PushOp : uint32_t {
  kIncrement = 1,      ///< method, method + 4, …
  kNonIncrement = 3,   ///< all to one method
  kImmediate = 4,      ///< 13 bits in place of the count, no words follow
  kIncrementOnce = 5,  ///< method, then all to method + 4
};

inline constexpr uint32_t kMaxPushCount = 0x1fff;

constexpr uint32_t push_header(PushOp op, Subchannel subchannel, uint32_t method, uint32_t count) {
  return static_cast<uint32_t>(op) << 29 | count << 16 | static_cast<uint32_t>(subchannel) << 13 |
         method >> 2;
}

/// Appends methods to a list of words that the caller keeps. Debug builds check every word against
/// the method table of its class.
class Push {
 public:
  Push(std::vector<uint32_t>& words, const ChannelClasses& classes)
      : words_(words), classes_(classes) {}

  /// Index of the next word.
  uint32_t position() const { return static_cast<uint32_t>(words_.size()); }
  const ChannelClasses& classes() const { return classes_; }

  /// Words to `method`, `method` + 4, …; returns the index of the first of them.
  template <class... Words>
  uint32_t incr(Subchannel subchannel, uint32_t method, Words... data) {
    constexpr auto kCount = static_cast<uint32_t>(sizeof...(Words));
    words_.push_back(push_header(PushOp::kIncrement, subchannel, method, kCount));
    const uint32_t first = position();
    (words_.push_back(static_cast<uint32_t>(data)), ...);
    check(subchannel, method, 4, first);
    return first;
  }
  /// All words to one method.
  void non_incr(Subchannel subchannel, uint32_t method, std::span<const uint32_t> data) {
    BM_CHECK(data.size() <= kMaxPushCount);
    append(PushOp::kNonIncrement, subchannel, method, data);
    check(subchannel, method, 0, position() - static_cast<uint32_t>(data.size()));
  }
  /// First word to `method`, the rest to `method` + 4.
  void incr_once(Subchannel subchannel, uint32_t method, std::span<const uint32_t> data) {
    BM_CHECK(!data.empty() && data.size() <= kMaxPushCount);
    append(PushOp::kIncrementOnce, subchannel, method, data);
    const uint32_t first = position() - static_cast<uint32_t>(data.size());
    check(subchannel, method, 4, first, first + 1);
    check(subchannel, method + 4, 0, first + 1);
  }
  /// 13 bits in the header itself.
  void immediate(Subchannel subchannel, uint32_t method, uint32_t value) {
    BM_CHECK(value <= kMaxPushCount);
    check_word(subchannel, method, value);
    words_.push_back(push_header(PushOp::kImmediate, subchannel, method, value));
  }

 private:
  void append(PushOp op, Subchannel subchannel, uint32_t method, std::span<const uint32_t> data) {
    words_.push_back(push_header(op, subchannel, method, static_cast<uint32_t>(data.size())));
    words_.insert(words_.end(), data.begin(), data.end());
  }
  void check([[maybe_unused]] Subchannel subchannel, [[maybe_unused]] uint32_t method,
             [[maybe_unused]] uint32_t step, [[maybe_unused]] uint32_t first,
             [[maybe_unused]] uint32_t last = UINT32_MAX) const {
#ifndef NDEBUG
    for (uint32_t i = first; i < words_.size() && i < last; ++i)
      check_word(subchannel, method + (i - first) * step, words_[i]);
#endif
  }
  void check_word([[maybe_unused]] Subchannel subchannel, [[maybe_unused]] uint32_t method,
                  [[maybe_unused]] uint32_t word) const {
#ifndef NDEBUG
    if (const Status good = check_method(classes_, subchannel, method, word); !good)
      check_failed(good.error().message.c_str(), __FILE__, __LINE__);
#endif
  }

  std::vector<uint32_t>& words_;
  const ChannelClasses classes_;
};

/// Ring entry: `words` dwords of push buffer at `address`, in the main program.
/// `address`: multiple of 4, below 2^40; `words`: below 2^21.
constexpr uint64_t ring_entry(uint64_t address, uint32_t words) {
  return (address & 0xff'ffff'fffcu) | uint64_t{words} << 42;
}
inline constexpr uint32_t kMaxEntryWords = (1u << 21) - 1;

/// USERD, the 512 bytes of a channel that the host reads: where GPPut lies.
/// Source: clc56f.h, Nvc56fControl; the same in clca6f.h, Nvca6fControl, which has nothing else.
inline constexpr uint32_t kUserdBytes = 512;
inline constexpr uint32_t kUserdPut = 0x8c;

}  // namespace bm::nv
