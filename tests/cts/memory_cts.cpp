#include <algorithm>

#include "tests/cts/cts.h"

namespace bm::cts {
namespace {

/// Alignment every buffer has, whatever the device.
constexpr uint64_t kAlignment = 64;

Status sizes(Rig& rig) {
  std::vector<std::unique_ptr<hal::Buffer>> buffers;
  for (uint64_t size : Sizes{1, 63, 64, 65, 4095, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 3}) {
    auto buffer = BM_TRY(rig.visible(size));
    CTS_CHECK(buffer->size() == size);
    CTS_CHECK(hal::raw(buffer->va()) % kAlignment == 0);
    const auto bytes = view<uint8_t>(*buffer);
    std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(buffers.size() + 1));
    buffers.push_back(std::move(buffer));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto bytes = view<uint8_t>(*buffers[i]);
    CTS_CHECK(std::all_of(bytes.begin(), bytes.end(), [i](uint8_t byte) { return byte == i + 1; }));
  }
  return {};
}

Status zero(Rig& rig) {
  for (uint64_t size : Sizes{100, 4096, 3 << 20}) {
    {
      auto dirty = BM_TRY(rig.visible(size));
      std::ranges::fill(view<uint8_t>(*dirty), uint8_t{0xff});
    }
    auto buffer = BM_TRY(rig.device().allocate({.size = size, .host_visible = true, .zero = true}));
    const auto bytes = view<uint8_t>(*buffer);
    CTS_CHECK(std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; }));
  }
  return {};
}

Status external(Rig& rig) {
  std::vector<uint32_t> mine(1000, 7);
  {
    auto buffer = BM_TRY(
        rig.device().allocate({.size = 4000, .host_visible = true, .external = mine.data()}));
    CTS_CHECK(buffer->host() == reinterpret_cast<std::byte*>(mine.data()));
    view<uint32_t>(*buffer)[999] = 8;
  }
  CTS_CHECK(mine[0] == 7 && mine[999] == 8);  // still ours after the buffer is gone
  return {};
}

Status impossible_sizes(Rig& rig) {
  CTS_REFUSED(Code::kInvalidArgument, rig.device().allocate({.size = 0}));
  CTS_REFUSED(Code::kOutOfMemory, rig.device().allocate({.size = uint64_t{1} << 60}));
  CTS_REFUSED(Code::kOutOfMemory,
              rig.device().allocate({.size = uint64_t{1} << 60, .host_visible = true}));
  CTS_REFUSED(Code::kOutOfMemory, rig.device().allocate({.size = ~uint64_t{0}}));
  CTS_CHECK(rig.visible(4096).has_value());  // usable afterwards
  return {};
}

Status description(Rig& rig) {
  CTS_CHECK(rig.device().memory().total > 0);
  CTS_CHECK(rig.device().memory().used <= rig.device().memory().total);
  CTS_CHECK(!rig.device().description().empty());
  CTS_CHECK(!rig.device().arch().name.empty());
  CTS_CHECK(rig.device().arch().units >= 1 && rig.device().arch().max_block >= 1);
  CTS_CHECK(rig.device().status().has_value());
  return {};
}

Status map_own_buffer(Rig& rig) {
  auto buffer = BM_TRY(rig.visible(4096));
  CTS_CHECK(BM_TRY(rig.device().map(*buffer)) == buffer->va());
  return {};
}

constexpr Case kMemoryCases[] = {{"memory.sizes", sizes},
                                 {"memory.zero", zero},
                                 {"memory.external", external},
                                 {"memory.impossible_sizes", impossible_sizes},
                                 {"memory.description", description},
                                 {"memory.map_own_buffer", map_own_buffer}};

}  // namespace

std::span<const Case> memory_cases() { return kMemoryCases; }

}  // namespace bm::cts
