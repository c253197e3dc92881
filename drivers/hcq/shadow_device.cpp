#include "drivers/hcq/shadow_device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "drivers/hcq/encoded_commands.h"
#include "runtime/base/bits.h"
#include "runtime/hal/leaving.h"
#include "runtime/hal/waiting.h"

namespace bm::hcq {
namespace {

using Step = HostShadows::Step;
using Range = HostShadows::Range;
constexpr uint64_t kWord = 8;

class ShadowBuffer final : public hal::Buffer {
 public:
  ShadowBuffer(const hal::BufferDesc& desc, std::shared_ptr<HostShadows> shadows,
               std::shared_ptr<Shadow> shadow)
      : Buffer(desc, hal::GpuVa{shadow->va}, shadow->view()),
        shadows_(std::move(shadows)),
        shadow_(std::move(shadow)) {}
  ~ShadowBuffer() override { shadows_->remove(*shadow_); }
  const HostShadows& shadows() const { return *shadows_; }

 private:
  std::shared_ptr<HostShadows> shadows_;
  std::shared_ptr<Shadow> shadow_;
};

/// Arguments of a dispatch as its recording keeps them; empty for other commands.
using Arguments = std::vector<uint64_t>;

class ShadowRecording final : public hal::Recording {
 public:
  std::unique_ptr<hal::Recording> recording;
  std::vector<hal::Command> commands;
  std::vector<Arguments> arguments;
  std::vector<hal::Patch> patches;
};

uint64_t block_bytes(const hal::Dispatch& dispatch) {
  const hal::CodeObject& code = dispatch.program->code();
  return (uint64_t{code.num_buffers} + code.num_vars) * kWord;
}

/// What commands read and write of shadows.
class Effects {
 public:
  explicit Effects(const HostShadows& shadows) : shadows_(shadows) {}

  /// `arguments`: of a dispatch; none: read from the block's shadow, which is sent.
  void add(const hal::Command& command, const Arguments* arguments) {
    std::visit([&](const auto& c) { add_one(c, arguments); }, command);
  }
  /// What no signal follows waits for the next submission's.
  std::vector<Step> take_steps() {
    if (!step_.read.empty() || !step_.written.empty() || !step_.awaited.empty())
      steps_.push_back(std::move(step_));
    return std::move(steps_);
  }
  Arguments arguments_of(const hal::Dispatch& dispatch) const {
    const auto block = range(hal::raw(dispatch.kernarg), block_bytes(dispatch));
    if (!block || block->offset % kWord != 0) return {};
    const uint64_t* const begin = block->shadow->host + block->offset / kWord;
    return {begin, begin + block->bytes / kWord};
  }
  std::vector<Range> blocks, words, read;  ///< to be sent: nothing else writes blocks

 private:
  std::optional<Range> range(uint64_t va, uint64_t bytes) const {
    auto shadow = bytes == 0 ? nullptr : shadows_.find(va);
    if (shadow == nullptr) return std::nullopt;
    const uint64_t offset = va - shadow->va;
    return Range{shadow, offset, std::min(bytes, shadow->bytes - offset)};
  }
  void add_one(const hal::Wait& wait, const Arguments*) {
    if (auto word = range(hal::raw(wait.signal), kWord)) {
      words.push_back(*word);
      step_.awaited.push_back(std::move(*word));
    }
  }
  void add_one(const hal::Signal& signal, const Arguments*) {
    if (auto word = range(hal::raw(signal.signal), kWord)) {
      words.push_back(*word);
      step_.signal = std::move(*word);
      step_.value = signal.value;
      steps_.push_back(std::exchange(step_, {}));
    }
  }
  void add_one(const hal::Timestamp& stamp, const Arguments*) { write(hal::raw(stamp.dst), kWord); }
  void add_one(const hal::Barrier&, const Arguments*) {}
  void add_one(const hal::Copy& copy, const Arguments*) {
    if (auto from = range(hal::raw(copy.src), copy.bytes)) send(*from);
    write(hal::raw(copy.dst), copy.bytes);
  }
  void add_one(const hal::Write& write_command, const Arguments*) {
    write(hal::raw(write_command.dst), kWord);
  }
  void add_one(const hal::Dispatch& dispatch, const Arguments* arguments) {
    if (dispatch.program == nullptr) return;
    Arguments mine;
    if (arguments == nullptr) {
      if (auto block = range(hal::raw(dispatch.kernarg), block_bytes(dispatch)))
        blocks.push_back(std::move(*block));
      mine = arguments_of(dispatch);
      arguments = &mine;
    }
    for (const uint64_t word : *arguments) {
      auto shadow = shadows_.find(word);
      if (shadow == nullptr) continue;
      const auto is_it = [&](const Range& known) { return known.shadow == shadow; };
      if (std::ranges::any_of(step_.written, is_it)) continue;
      const Range all{shadow, 0, shadow->bytes};
      send(all);
      step_.written.push_back(all);
    }
  }
  void write(uint64_t va, uint64_t bytes) {
    if (auto there = range(va, bytes)) {
      there->is_all = true;
      step_.written.push_back(std::move(*there));
    }
  }
  void send(const Range& part) {
    read.push_back(part);
    step_.read.push_back(part);
  }

  const HostShadows& shadows_;
  Step step_;
  std::vector<Step> steps_;
};

class ShadowQueue final : public hal::Queue {
 public:
  ShadowQueue(hal::Queue& queue, hal::QueueKind kind, std::shared_ptr<HostShadows> shadows,
              std::mutex& mutex)
      : queue_(queue), kind_(kind), shadows_(std::move(shadows)), mutex_(mutex) {}

  Status submit(std::span<const hal::Command> commands) override {
    const std::lock_guard lock(mutex_);
    Effects effects(*shadows_);
    for (const hal::Command& command : commands) effects.add(command, nullptr);
    return hand_on(effects, [&] { return queue_.submit(commands); });
  }

  Result<std::unique_ptr<hal::Recording>> record(std::span<const hal::Command> commands,
                                                 std::span<const hal::Patch> patches) override {
    const std::lock_guard lock(mutex_);
    auto recording = std::make_unique<ShadowRecording>();
    Effects effects(*shadows_);
    for (const hal::Command& command : commands) {
      const auto* dispatch = std::get_if<hal::Dispatch>(&command);
      const bool has_block = dispatch != nullptr && dispatch->program != nullptr;
      if (has_block) effects.add(command, nullptr);
      recording->arguments.push_back(has_block ? effects.arguments_of(*dispatch) : Arguments());
    }
    // The device takes the blocks over when it records.
    for (const Range& block : effects.blocks) BM_TRY(shadows_->push(block));
    recording->recording = BM_TRY(queue_.record(commands, patches));
    recording->commands.assign(commands.begin(), commands.end());
    recording->patches.assign(patches.begin(), patches.end());
    return std::unique_ptr<hal::Recording>(std::move(recording));
  }

  Status replay(hal::Recording& recording, std::span<const uint64_t> values) override {
    auto* mine = dynamic_cast<ShadowRecording*>(&recording);
    if (mine == nullptr) return queue_.replay(recording, values);
    const std::lock_guard lock(mutex_);
    std::vector<hal::Command> commands = mine->commands;
    std::vector<Arguments> arguments = mine->arguments;
    for (const hal::Patch& patch : mine->patches)
      if (patch.slot < values.size() && patch.command < commands.size())
        apply(patch, values[patch.slot] + patch.addend, commands[patch.command],
              arguments[patch.command]);
    Effects effects(*shadows_);
    for (size_t i = 0; i < commands.size(); ++i) effects.add(commands[i], &arguments[i]);
    return hand_on(effects, [&] { return queue_.replay(*mine->recording, values); });
  }

 private:
  static void apply(const hal::Patch& patch, uint64_t value, hal::Command& command,
                    Arguments& arguments) {
    using hal::PatchField;
    auto* const copy = std::get_if<hal::Copy>(&command);
    switch (patch.field) {
      case PatchField::kKernarg:
        if (patch.word < arguments.size()) arguments[patch.word] = value;
        return;
      case PatchField::kGridX:
      case PatchField::kGridY:
      case PatchField::kGridZ: return;
      case PatchField::kCopyDst:
        if (copy != nullptr) copy->dst = hal::GpuVa{value};
        return;
      case PatchField::kCopySrc:
        if (copy != nullptr) copy->src = hal::GpuVa{value};
        return;
      case PatchField::kCopyBytes:
        if (copy != nullptr) copy->bytes = value;
        return;
      case PatchField::kSignalAddress:
        if (auto* wait = std::get_if<hal::Wait>(&command)) wait->signal = hal::GpuVa{value};
        if (auto* signal = std::get_if<hal::Signal>(&command)) signal->signal = hal::GpuVa{value};
        if (auto* stamp = std::get_if<hal::Timestamp>(&command)) stamp->dst = hal::GpuVa{value};
        if (auto* write = std::get_if<hal::Write>(&command)) write->dst = hal::GpuVa{value};
        return;
      case PatchField::kSignalValue:
        if (auto* wait = std::get_if<hal::Wait>(&command)) wait->value = value;
        if (auto* signal = std::get_if<hal::Signal>(&command)) signal->value = value;
        return;
    }
  }

  template <class Submit>
  Status hand_on(Effects& effects, const Submit& submit) {
    for (const Range& block : effects.blocks) BM_TRY(shadows_->push(block));
    for (const Range& word : effects.words) BM_TRY(shadows_->push(word));
    for (const Range& part : effects.read) BM_TRY(shadows_->push(part));
    const uint64_t id = shadows_->expect(kind_, effects.take_steps());
    Status done = submit();
    if (!done) shadows_->drop(kind_, id);
    return done;
  }

  hal::Queue& queue_;
  const hal::QueueKind kind_;
  std::shared_ptr<HostShadows> shadows_;
  std::mutex& mutex_;
};

class ShadowDevice final : public hal::Device, public hal::Waiting, public hal::Leaving {
 public:
  ShadowDevice(std::unique_ptr<hal::Device> device, HostPath& path)
      : device_(std::move(device)),
        waiting_(dynamic_cast<hal::Waiting*>(device_.get())),
        shadows_(std::make_shared<HostShadows>(path)),
        compute_(device_->queue(hal::QueueKind::kCompute), hal::QueueKind::kCompute, shadows_,
                 mutex_),
        copies_(device_->queue(hal::QueueKind::kCopy), hal::QueueKind::kCopy, shadows_, mutex_) {}
  ~ShadowDevice() override {
    shadows_->stop();
    for (const auto& [place, shadow] : imported_) shadows_->remove(*shadow);
  }

  const hal::Arch& arch() const override { return device_->arch(); }
  std::string description() const override { return device_->description(); }

  Result<std::unique_ptr<hal::Buffer>> allocate(const hal::BufferDesc& desc) override {
    const bool is_for_host = desc.host_visible || desc.host_memory || desc.uncached;
    if (desc.external != nullptr) {
      if (desc.external_kind != hal::ExternalKind::kHostPointer) return device_->allocate(desc);
      auto shadow = BM_TRY(stand_for(static_cast<std::byte*>(desc.external), desc.size));
      return std::make_unique<ShadowBuffer>(desc, shadows_, std::move(shadow));
    }
    if (!is_for_host) return device_->allocate(desc);
    hal::BufferDesc wanted = desc;
    wanted.zero = true;  // both sides begin with the same
    auto memory = BM_TRY(device_->allocate(wanted));
    return std::make_unique<ShadowBuffer>(desc, shadows_, shadows_->add(std::move(memory)));
  }
  /// Memory of another device goes through the host's view of it.
  Result<hal::GpuVa> map(hal::Buffer& peer) override {
    if (auto* known = dynamic_cast<ShadowBuffer*>(&peer);
        known != nullptr && &known->shadows() == shadows_.get())
      return peer.va();
    if (peer.host() == nullptr) return device_->map(peer);
    const std::lock_guard lock(mutex_);
    auto& shadow = imported_[{peer.host(), peer.size()}];
    if (shadow == nullptr) {
      auto made = stand_for(peer.host(), peer.size());
      if (!made) {
        imported_.erase({peer.host(), peer.size()});
        return tl::unexpected(std::move(made.error()));
      }
      shadow = std::move(*made);
    }
    return hal::GpuVa{shadow->va};
  }
  Result<std::unique_ptr<hal::Program>> load(const hal::CodeObject& code) override {
    return device_->load(code);
  }
  hal::Queue& queue(hal::QueueKind kind) override {
    return kind == hal::QueueKind::kCompute ? compute_ : copies_;
  }
  Status status() override {
    BM_TRY(device_->status());
    return shadows_->status();
  }
  void lose(const Error& cause) override { device_->lose(cause); }
  bool stop() override {
    shadows_->stop();
    return device_->stop();
  }
  void leave() override {
    shadows_->stop();
    if (auto* const leaving = dynamic_cast<hal::Leaving*>(device_.get())) leaving->leave();
  }
  hal::MemoryInfo memory() const override { return device_->memory(); }
  Result<std::string> disassemble(const hal::CodeObject& code) override {
    return device_->disassemble(code);
  }

  bool sleep_until_event(uint64_t longest_ns) override {
    return shadows_->wait_progress(longest_ns);
  }
  std::string activity() override {
    return waiting_ != nullptr ? waiting_->activity() : std::string();
  }

 private:
  /// Memory of the device that stands for memory of the process.
  Result<std::shared_ptr<Shadow>> stand_for(std::byte* host, uint64_t bytes) {
    if (bytes == 0 || !checked_add(uint64_t{reinterpret_cast<uintptr_t>(host)}, bytes))
      return fail(Code::kInvalidArgument, "{} bytes at {} are no memory of this process", bytes,
                  static_cast<void*>(host));
    if (reinterpret_cast<uintptr_t>(host) % kWord != 0 || bytes % kWord != 0)
      return fail(Code::kUnsupported,
                  "{} bytes at {}: the device reaches no memory of this process, and what stands "
                  "for it here is compared in words of {} bytes; copy into a buffer instead",
                  bytes, static_cast<void*>(host), kWord);
    auto memory = BM_TRY(device_->allocate({.size = bytes, .host_visible = true, .zero = true}));
    return shadows_->add(std::move(memory), host);
  }

  std::unique_ptr<hal::Device> device_;
  hal::Waiting* const waiting_;
  std::shared_ptr<HostShadows> shadows_;
  std::mutex mutex_;  ///< of submissions: what is expected comes in their order
  ShadowQueue compute_, copies_;
  /// Memory of other devices, by the host's view; taken once.
  std::map<std::pair<std::byte*, uint64_t>, std::shared_ptr<Shadow>> imported_;
};

}  // namespace

std::unique_ptr<hal::Device> make_shadowed(std::unique_ptr<hal::Device> device, HostPath& path) {
  return std::make_unique<ShadowDevice>(std::move(device), path);
}

}  // namespace bm::hcq
