#pragma once
// Conformance suite of the device contract (runtime/hal). A case is a function over one device; a
// device joins by one row in a list, which also names what it cannot do and why.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cts {

/// Case name, or a prefix ending in '*', and the reason.
struct Exemption {
  std::string_view cases;
  std::string_view reason;
};

struct Subject {
  const char* name;
  Result<std::unique_ptr<hal::Device>> (*open)();
  /// Kernel of kernels.c by name, compiled for the device; nullptr: the device has no programs.
  Result<hal::CodeObject> (*kernel)(std::string_view name, const hal::Device& device);
  std::vector<Exemption> unsupported;        ///< not run
  std::vector<Exemption> expected_failures;  ///< run; passing is an error of the list
};

/// One opened device with what every case needs.
class Rig {
 public:
  static Result<Rig> open(const Subject& subject);

  hal::Device& device() { return *device_; }
  hal::Queue& queue(hal::QueueKind kind = hal::QueueKind::kCompute) { return device_->queue(kind); }
  /// Memory the host sees.
  Result<std::unique_ptr<hal::Buffer>> visible(uint64_t size);
  Result<std::unique_ptr<hal::Program>> load(std::string_view kernel);
  /// Submits and returns when everything is done.
  Status run(std::vector<hal::Command> commands, hal::QueueKind kind = hal::QueueKind::kCompute);
  /// The commands that end a recording so that finish() can wait for it.
  hal::Command end_signal(uint64_t value) const;
  /// Waits until end_signal(value) has been performed.
  Status finish(uint64_t value);
  uint64_t next_value() { return ++value_; }

 private:
  Rig(const Subject& subject, std::unique_ptr<hal::Device> device,
      std::unique_ptr<hal::Buffer> timeline)
      : subject_(&subject), device_(std::move(device)), timeline_(std::move(timeline)) {}
  const Subject* subject_;
  std::unique_ptr<hal::Device> device_;
  std::unique_ptr<hal::Buffer> timeline_;
  uint64_t value_ = 0;
};

struct Case {
  std::string_view name;  ///< "memory.sizes"
  Status (*run)(Rig& rig);
};
std::span<const Case> memory_cases();
std::span<const Case> copy_cases();
std::span<const Case> timeline_cases();
std::span<const Case> queue_cases();
std::span<const Case> dispatch_cases();

/// Devices of one test program; defined by the program.
std::vector<Subject> subjects();

/// Byte counts to go through: `for (uint64_t size : Sizes{1, 64})`.
using Sizes = std::initializer_list<uint64_t>;

/// Host view of a buffer as T.
template <class T>
std::span<T> view(hal::Buffer& buffer) {
  return {reinterpret_cast<T*>(buffer.host()), buffer.size() / sizeof(T)};
}

/// Ends the case with file, line and condition unless it holds.
#define CTS_CHECK(...)                                                                  \
  do {                                                                                  \
    if (!(__VA_ARGS__))                                                                 \
      return ::bm::fail(::bm::Code::kInternal, "{}:{}: not so: {}", __FILE__, __LINE__, \
                        #__VA_ARGS__);                                                  \
  } while (false)

/// Ends the case unless `result` is an error of `code`.
#define CTS_REFUSED(code_, ...)                                                               \
  do {                                                                                        \
    const auto cts_result_ = (__VA_ARGS__);                                                   \
    if (cts_result_ || cts_result_.error().code != (code_))                                   \
      return ::bm::fail(::bm::Code::kInternal, "{}:{}: not refused as it should be: {} ({})", \
                        __FILE__, __LINE__, #__VA_ARGS__,                                     \
                        cts_result_ ? "accepted" : cts_result_.error().message);              \
  } while (false)

}  // namespace bm::cts
