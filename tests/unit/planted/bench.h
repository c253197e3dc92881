#pragma once
// What planted faults need of any vendor: a device on a simulated machine as the runtime opens it,
// with memory, programs and work on it.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/hal/device.h"
#include "runtime/stream.h"
#include "tests/patience.h"

namespace bm::planted {

/// BM_WAIT_TIMEOUT_MS where a wait is to run out; longer on a busy machine, whose simulated engines
/// may not have begun by then.
inline const uint32_t kWaitMs =
    static_cast<uint32_t>(test::patience(std::chrono::milliseconds(300)).count());

/// A vendor's bench owns the machine and closes the device before it goes.
class Bench {
 public:
  virtual ~Bench() = default;
  virtual Result<std::unique_ptr<runtime::Device>> open_unit(uint32_t index) = 0;
  /// Of any kernel that can be loaded.
  virtual hal::CodeObject any_code() = 0;
  /// Kernels and copies give the right bytes.
  virtual Status works() = 0;

  runtime::Device& device() { return *device_; }
  hal::Device& hal() { return device_->hal(); }
  bool is_open() const { return device_ != nullptr; }
  Status open(uint32_t index = 0);
  void close();

  /// Lives until close(), as programs do. `host_visible`: host() works.
  Result<hal::Buffer*> allocate(uint64_t bytes, bool host_visible = false);
  Result<const hal::Program*> load(const hal::CodeObject& code);
  /// Submits and waits as the runtime does.
  Status run(hal::QueueKind kind, std::vector<hal::Command> commands);
  /// A kernel whose only argument is the address `at`.
  Status launch(const hal::CodeObject& code, uint64_t at, hal::Dim3 grid = {});
  Status copy(hal::QueueKind kind, uint64_t to, uint64_t from, uint64_t bytes);

  /// More of what the message must say, known only when the fault is planted.
  std::vector<std::string> also;

 private:
  std::unique_ptr<runtime::Device> device_;
  std::vector<std::unique_ptr<hal::Buffer>> buffers_;
  std::vector<std::unique_ptr<hal::Program>> programs_;
};

}  // namespace bm::planted
