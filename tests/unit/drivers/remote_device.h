#pragma once
// A device whose memory and registers lie in no address space of this process. All its windows
// write down their accesses into one list, so that a test sees them in the order of the device.

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "drivers/hcq/driver_interface.h"
#include "drivers/transport/mmio.h"

namespace bm::test {

struct RemoteDevice {
  std::vector<std::string> log;
  /// Called with "fence: read64 0x0" and the like, before reads and after writes.
  std::function<void(const std::string&)> on_access;
  std::string failure;  ///< set: the transport is dead

  void note(const std::string& access) {
    log.push_back(access);
    if (on_access) on_access(access);
  }
  size_t count(std::string_view beginning) const {
    size_t found = 0;
    for (const std::string& line : log) found += line.starts_with(beginning) ? 1 : 0;
    return found;
  }
};

class RemoteBytes final : public RemoteWindow {
 public:
  RemoteBytes(RemoteDevice& device, std::string name, uint64_t count)
      : bytes(count), device_(device), name_(std::move(name)) {}

  uint64_t size() const override { return bytes.size(); }
  uint64_t read(uint64_t offset, uint32_t width) override {
    device_.note(fmt::format("{}: read{} {:#x}", name_, width * 8, offset));
    if (!device_.failure.empty()) return ~uint64_t{0};
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + offset, width);
    return value;
  }
  void write(uint64_t offset, uint32_t width, uint64_t value) override {
    if (device_.failure.empty()) std::memcpy(bytes.data() + offset, &value, width);
    device_.note(fmt::format("{}: write{} {:#x} = {:#x}", name_, width * 8, offset, value));
  }
  void read_block(uint64_t offset, std::span<std::byte> to) override {
    device_.note(fmt::format("{}: read {} bytes at {:#x}", name_, to.size(), offset));
    std::memcpy(to.data(), bytes.data() + offset, to.size());
  }
  void write_block(uint64_t offset, std::span<const std::byte> from) override {
    if (device_.failure.empty()) std::memcpy(bytes.data() + offset, from.data(), from.size());
    device_.note(fmt::format("{}: write {} bytes at {:#x}", name_, from.size(), offset));
  }
  void flush() override { device_.note(name_ + ": flush"); }
  Status status() const override {
    if (device_.failure.empty()) return {};
    return fail(Code::kDeviceLost, "{}", device_.failure);
  }
  template <class T>
  T word(uint64_t offset) const {
    T value{};
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  }
  void set64(uint64_t offset, uint64_t value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  }

  std::vector<std::byte> bytes;

 private:
  RemoteDevice& device_;
  const std::string name_;
};

class RemoteMemory final : public hcq::Memory {
 public:
  RemoteMemory(RemoteDevice& device, std::string name, uint64_t address, uint64_t count)
      : window(device, std::move(name), count) {
    va = address;
    size = count;
    view = HostView::remote(window).value();
  }
  RemoteBytes window;
};

}  // namespace bm::test
