#pragma once
// Pages of the KV cache: who has them, and which hold the beginning of a prompt that may come
// again (prefix cache).

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace bm::serve {

/// Pages are shared once they are full, and then never written again. One that nobody uses is kept
/// for as long as no other is free; the one used longest ago goes first.
///
/// Reservations keep sequences from waiting for each other: who is let in may take all the pages it
/// will ever need. Thread: the caller's.
class PagePool {
 public:
  /// Pages 1 … `count` of `page_length` tokens.
  PagePool(uint32_t count, uint32_t page_length);

  /// False when so many more could not be taken by everybody who has reserved.
  bool reserve(uint32_t pages);
  void cancel_reservation(uint32_t pages);
  /// A page of one's own, within one's reservation.
  uint32_t take();
  void release(uint32_t page);

  /// Pages that hold the first tokens of `prompt`, at most `most`; they are the caller's until
  /// release().
  std::vector<uint32_t> match(std::span<const int32_t> prompt, size_t most);
  /// `pages` hold the first pages.size() · page_length tokens of `prompt`, the last page newly so.
  void publish(std::span<const int32_t> prompt, std::span<const uint32_t> pages);
  /// Forgets what pages hold; all of them are free.
  void reset();

  uint32_t count() const { return static_cast<uint32_t>(pages_.size()) - 1; }
  uint32_t used() const { return used_; }  ///< by sequences
  uint32_t cached() const { return static_cast<uint32_t>(idle_.size()); }

 private:
  struct Page {
    uint32_t users = 0;
    uint64_t serial = 0;  ///< of the contents; 0: nothing that could come again
    uint64_t idle_since = 0;
    std::string key;
  };
  std::string key_of(uint64_t parent, std::span<const int32_t> prompt, size_t index) const;
  void forget(uint32_t page);

  uint32_t page_length_, used_ = 0, reserved_ = 0;
  uint64_t now_ = 0, last_serial_ = 0;
  std::vector<Page> pages_;  ///< by number; 0 is nobody's
  std::vector<uint32_t> free_;
  std::map<uint64_t, uint32_t> idle_;  ///< cached and unused, longest first
  /// Serial of the page before and the tokens, byte for byte: two prompts never meet by accident.
  std::unordered_map<std::string, uint32_t> contents_;
};

}  // namespace bm::serve
