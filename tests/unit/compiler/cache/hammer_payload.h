#pragma once
// Payloads of the kill test: everything in them follows from the key and a generation number, so
// any mix of two writes shows.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace bm::compiler {

inline std::vector<std::byte> hammer_payload(uint32_t key, uint32_t generation) {
  std::minstd_rand random(key * 7919 + generation + 1);
  std::vector<std::byte> payload(8 + random() % 20000);
  for (std::byte& b : payload) b = static_cast<std::byte>(random());
  std::memcpy(payload.data(), &key, sizeof key);
  std::memcpy(payload.data() + 4, &generation, sizeof generation);
  return payload;
}

inline bool is_hammer_payload(uint32_t key, std::span<const std::byte> payload) {
  if (payload.size() < 8) return false;
  uint32_t generation = 0;
  std::memcpy(&generation, payload.data() + 4, sizeof generation);
  const std::vector<std::byte> expected = hammer_payload(key, generation);
  return expected.size() == payload.size() &&
         std::memcmp(expected.data(), payload.data(), payload.size()) == 0;
}

}  // namespace bm::compiler
