#pragma once
// Conformance suite of the device contract (runtime/hal) and of the runtime over it. A case is a
// function over one device; a device joins all of them by one row in a list, which also names what
// it cannot do and why.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"
#include "tests/patience.h"

namespace bm::cts {

/// TIMEOUT: devices here execute a case in milliseconds; 20 s covers a busy machine with
/// sanitizers.
inline const std::chrono::milliseconds kDeadline = bm::test::patience(std::chrono::seconds(20));
/// BM_WAIT_TIMEOUT_MS of cases whose waits never end: long for work that gets on, also where a
/// model in another process shares a loaded machine. Whole runs of those cases stay within minutes.
/// No variable: tables of cases are made before main(), perhaps before it would be.
inline uint32_t short_wait_ms() {
  const auto wait = bm::test::patience(std::chrono::milliseconds(250));
  return static_cast<uint32_t>(std::min(wait, std::chrono::milliseconds(1000)).count());
}

/// Which cases, and the reason. `cases`: a case's name, a prefix ending in '*', or the tag of what
/// the cases need: "#copies", "#kernels" (Needs).
struct Exemption {
  std::string_view cases;
  std::string_view reason;
};

struct Subject {
  const char* name;
  Result<std::unique_ptr<hal::Device>> (*open)();
  /// Kernel of the table in kernels.h by name, compiled for the device; nullptr: no programs.
  Result<hal::CodeObject> (*kernel)(std::string_view name, const hal::Device& device);
  std::vector<Exemption> unsupported;        ///< not run
  std::vector<Exemption> expected_failures;  ///< run; passing is an error of the list
  /// Another instance for cross.peer_*: a second unit. nullptr: `open` works twice.
  Result<std::unique_ptr<hal::Device>> (*open_peer)() = nullptr;
};

/// One opened device with what every case needs.
class Rig {
 public:
  static Result<Rig> open(const Subject& subject);

  const Subject& subject() const { return *subject_; }
  hal::Device& device() { return *device_; }
  hal::Queue& queue(hal::QueueKind kind = hal::QueueKind::kCompute) { return device_->queue(kind); }
  /// Memory the host sees.
  Result<std::unique_ptr<hal::Buffer>> visible(uint64_t size);
  /// 32 zeroed words for signals.
  Result<std::unique_ptr<hal::Buffer>> words();
  Result<std::unique_ptr<hal::Program>> load(std::string_view kernel);
  /// Argument block in device memory.
  Result<std::unique_ptr<hal::Buffer>> pack(const std::vector<uint64_t>& values);
  /// Submits and returns when everything is done.
  Status run(std::vector<hal::Command> commands, hal::QueueKind kind = hal::QueueKind::kCompute);
  /// The commands that end a recording so that finish() can wait for it.
  hal::Command end_signal(uint64_t value) const;
  /// Waits until end_signal(value) has been performed.
  Status finish(uint64_t value);
  /// Waits until the word is at least `value`. Errors: the device's fault; kTimeout after
  /// `patience`.
  Status wait_for(std::atomic_ref<uint64_t> word, uint64_t value,
                  std::chrono::milliseconds patience = kDeadline);
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

class World;  // the same device opened by the runtime: world.h

/// What a device must be able to do for a case to mean anything.
enum class Needs : uint8_t {
  kNothing,  ///< holds for a device that does no work, too
  kCopies,   ///< looks at data that copies moved
  kKernels,  ///< launches kernels and looks at what they wrote
};

struct Case {
  std::string_view name;  ///< "memory.sizes"
  /// On the opened device, on the device opened by the runtime, or opening it as it needs.
  std::variant<Status (*)(Rig& rig), Status (*)(World& world), Status (*)(const Subject& subject)>
      run;
  Needs needs = Needs::kNothing;
  uint32_t wait_timeout_ms = 0;  ///< BM_WAIT_TIMEOUT_MS while it runs; 0: as it is
};
std::span<const Case> memory_cases();
std::span<const Case> copy_cases();
std::span<const Case> timeline_cases();
std::span<const Case> queue_cases();
std::span<const Case> dispatch_cases();
std::span<const Case> graph_cases();
std::span<const Case> cross_cases();
std::span<const Case> fault_cases();
std::span<const Case> runtime_fault_cases();

/// Devices of one test program; defined by the program.
std::vector<Subject> subjects();

/// Byte counts to go through: `for (uint64_t size : Sizes{1, 64})`.
using Sizes = std::initializer_list<uint64_t>;

/// Host view of a buffer as T.
template <class T>
std::span<T> view(hal::Buffer& buffer) {
  return {reinterpret_cast<T*>(buffer.host()), buffer.size() / sizeof(T)};
}
/// Word of a buffer the host sees.
inline std::atomic_ref<uint64_t> word(hal::Buffer& buffer, uint64_t index = 0) {
  return std::atomic_ref<uint64_t>(view<uint64_t>(buffer)[index]);
}
inline uint64_t va(const std::unique_ptr<hal::Buffer>& buffer) { return hal::raw(buffer->va()); }
inline hal::GpuVa word_va(const hal::Buffer& buffer, uint64_t index) {
  return hal::offset(buffer.va(), index * 8);
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
