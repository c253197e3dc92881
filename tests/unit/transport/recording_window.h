#pragma once
// A remote window backed by bytes of this process that writes down every access it is asked for.

#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "drivers/transport/mmio.h"

namespace bm::test {

class RecordingWindow final : public RemoteWindow {
 public:
  explicit RecordingWindow(uint64_t count) : bytes(count) {}

  uint64_t size() const override { return bytes.size(); }
  uint64_t read(uint64_t offset, uint32_t width) override {
    note("read{} {:#x}", width * 8, offset);
    if (!failure.empty()) return ~uint64_t{0};
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + offset, width);
    return value;
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    note("write{} {:#x} = {:#x}", width * 8, offset, value);
    if (failure.empty()) std::memcpy(bytes.data() + offset, &value, width);
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    note("read {} bytes at {:#x}", to.size(), offset);
    std::memcpy(to.data(), bytes.data() + offset, to.size());
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    note("write {} bytes at {:#x}", from.size(), offset);
    std::memcpy(bytes.data() + offset, from.data(), from.size());
  }
  void flush() override { note("flush"); }
  Status status() const override {
    if (failure.empty()) return {};
    return fail(Code::kDeviceLost, "{}", failure);
  }

  std::vector<std::byte> bytes;
  std::vector<std::string> log;
  std::string failure;  ///< set: the transport is dead

 private:
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    log.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
};

}  // namespace bm::test
