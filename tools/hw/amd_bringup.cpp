// An AMD GPU from its nodes to copies, stage by stage, over the driver's own rings and packets: the
// first stage that fails says where a machine stands. Needs no privilege, changes no setting and
// resets nothing.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>

#include "drivers/amd/aql/packets.h"
#include "drivers/amd/chips.h"
#include "drivers/amd/kfd/abi.h"
#include "drivers/amd/kfd/errors.h"
#include "drivers/amd/kfd/gpu.h"
#include "drivers/amd/kfd/topology.h"
#include "drivers/amd/hardware_ring.h"
#include "drivers/hcq/memory_pool.h"
#include "drivers/amd/pm4/compute.h"
#include "drivers/amd/sdma/packets.h"
#include "drivers/transport/system.h"
#include "runtime/base/bits.h"
#include "runtime/base/env.h"

namespace {

using namespace bm;
using namespace bm::amd;
using hcq::Allocation;
using hcq::CommandSpace;
using hcq::MemoryPool;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kUsage =
    "usage: amd_bringup [--gpu N] [--mib N] [--fault]\n"
    "Opens an AMD GPU through /dev/kfd and tries its queues, one stage a line, a table last.\n"
    "  --gpu N   which of those there are (default 0)\n"
    "  --mib N   bytes of the timed copy (default 16)\n"
    "  --fault   ends with a copy from nowhere: the kernel driver then stops this process's "
    "queues\n"
    "Exit code: 0 all stages passed, 1 one failed, 3 there is no GPU to try.\n";

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class BringUp {
 public:
  BringUp(uint32_t gpu, uint64_t bytes) : index_(gpu), bytes_(bytes) {}
  int run(bool has_fault);

 private:
  struct Row {
    const char* stage;
    std::string result, detail;
  };
  using Stage = Result<std::string> (BringUp::*)();
  bool try_stage(const char* name, Stage stage);

  Result<std::string> nodes();
  Result<std::string> topology();
  Result<std::string> version();
  Result<std::string> open();
  Result<std::string> apertures();
  Result<std::string> memory();
  Result<std::string> compute_queue();
  Result<std::string> first_nop();
  Result<std::string> first_write();
  Result<std::string> interrupt();
  Result<std::string> copy_queue();
  Result<std::string> first_fence();
  Result<std::string> copy();
  Result<std::string> timings();
  Result<std::string> fault();

  bool is_several() const { return kernel_->facts().xccs > 1; }
  /// Puts words into the compute ring as the queues of the device do.
  Status put(HardwareRing& ring, std::span<const uint32_t> words);
  /// What every submission ends with.
  void add_fences(HardwareRing& ring, std::vector<uint32_t>& words) const;
  Result<double> wait_read(HardwareRing& ring);
  Result<double> copy_us(uint64_t to, uint64_t from, uint64_t bytes);

  System& system_ = real_system();
  const uint32_t index_;
  const uint64_t bytes_;
  std::vector<Row> rows_;
  std::vector<kfd::Node> all_;
  std::shared_ptr<kfd::Session> session_;
  std::unique_ptr<DriverInterface> kernel_;
  std::optional<MemoryPool> pool_;
  Allocation near_, video_;
  std::unique_ptr<HardwareRing> compute_, copies_;
  bool has_gpu_ = false;
};

bool BringUp::try_stage(const char* name, Stage stage) {
  const auto start = Clock::now();
  auto done = (this->*stage)();
  const double ms = us_since(start) / 1000;
  rows_.push_back({name, done ? fmt::format("{:.1f} ms", ms) : "FAIL",
                   done ? std::move(*done) : done.error().message});
  fmt::print("{:2} {:14} {:>10}  {}\n", rows_.size(), name, rows_.back().result,
             rows_.back().detail);
  std::fflush(stdout);
  return done.has_value();
}

Result<std::string> BringUp::nodes() {
  const int fd = system_.open("/dev/kfd", O_RDWR);
  if (fd < 0) return tl::unexpected(kfd::open_error(system_, "/dev/kfd", -fd));
  system_.close(fd);
  return "/dev/kfd opens";
}

Result<std::string> BringUp::topology() {
  all_ = BM_TRY(kfd::read_nodes(system_));
  if (index_ >= all_.size())
    return fail(Code::kNotFound, "GPU {} of {} that this process may use", index_, all_.size());
  const kfd::Node& node = all_[index_];
  const ChipRow* chip = BM_TRY(require_chip(node.target_version()));
  has_gpu_ = true;
  return fmt::format(
      "GPU {} of {}: {} '{}', node {}, {} chiplets of {} compute units in {} engines, "
      "{} MiB, {} copy engines",
      index_, all_.size(), chip->name, node.name, node.number, node.xccs(), node.cus_per_xcc(),
      node.engines_per_xcc(), node.video_memory >> 20, node.get("num_sdma_engines"));
}

Result<std::string> BringUp::version() {
  session_ = BM_TRY(kfd::Session::share(system_, 0));
  return fmt::format("KFD 1.{}", session_->minor());
}

Result<std::string> BringUp::open() {
  kernel_ = BM_TRY(kfd::open_gpu(system_, {.index = index_}));
  const GpuFacts& facts = kernel_->facts();
  const kfd::SaveSizes save = kfd::save_sizes(all_[index_], *facts.chip);
  return fmt::format("renderD{}; save area {} KiB a chiplet, control stack {} KiB; bus block {}",
                     all_[index_].render_minor(), save.save >> 10, save.control_stack >> 10,
                     facts.registers.has(Reg::BIF_BX_PF0_GPU_HDP_FLUSH_REQ) ? "known" : "unknown");
}

Result<std::string> BringUp::apertures() {
  std::vector<kfd::ProcessApertures> found(all_.size());
  kfd::GetApertures get{reinterpret_cast<uint64_t>(found.data()),
                        static_cast<uint32_t>(found.size()), 0};
  BM_TRY(session_->call(get, "GET_PROCESS_APERTURES_NEW"));
  for (const kfd::ProcessApertures& each : found)
    if (each.gpu_id == kernel_->facts().gpu_id)
      return fmt::format("LDS {:#x}, scratch {:#x}, memory {:#x} to {:#x}", each.lds_base,
                         each.scratch_base, each.memory_base, each.memory_limit);
  return fail(Code::kNotFound, "none of GPU {}", kernel_->facts().gpu_id);
}

Result<std::string> BringUp::memory() {
  pool_.emplace(*kernel_);
  near_ = BM_TRY(pool_->allocate(bytes_, MemoryDomain::kSystem));
  video_ = BM_TRY(pool_->allocate(bytes_, MemoryDomain::kVideo));
  for (uint64_t i = 0; i < bytes_ / 4; ++i)
    near_.view().store(i * 4, static_cast<uint32_t>(i * 2654435761u));
  return fmt::format("system at {:#x}, video at {:#x}, {} MiB each; {} MiB free", near_.va(),
                     video_.va(), bytes_ >> 20, kernel_->available_memory() >> 20);
}

Result<std::string> BringUp::compute_queue() {
  compute_ = BM_TRY(hcq::make_ring<HardwareRing>(
      *kernel_, *pool_,
      RingOptions{.type = is_several() ? QueueType::kAql : QueueType::kPm4,
                  .readers = kernel_->facts().xccs}));
  return fmt::format("{} of {} entries, event {}", is_several() ? "AQL" : "PM4",
                     compute_->entries(), compute_->queue().event_id);
}

Status BringUp::put(HardwareRing& ring, std::span<const uint32_t> words) {
  BM_TRY(ring.wait_room(HardwareRing::room_of(words.size())));
  if (ring.type() == QueueType::kSdma) {
    ring.enqueue(words);
    ring.publish();
    return {};
  }
  const CommandSpace space = BM_TRY(ring.reserve(words.size_bytes()));
  space.view.copy_in(0, words);
  ring.enqueue(space.va, static_cast<uint32_t>(words.size()));
  ring.publish();
  return {};
}

void BringUp::add_fences(HardwareRing& ring, std::vector<uint32_t>& words) const {
  const ChipRow& chip = *kernel_->facts().chip;
  if (ring.type() == QueueType::kSdma) {
    sdma::Writer writer(words, chip.sdma);
    writer.put(sdma::Fence{ring.fence_va(), lo32(ring.next_fence())});
    writer.put(sdma::Fence{ring.fence_va() + 4, hi32(ring.next_fence())});
    return;
  }
  pm4::Writer writer(words, chip.caches);
  for (uint32_t reader = 0; reader < ring.readers(); ++reader)
    pm4::release_once(writer,
                      {.caches = pm4::cache_actions(chip.caches).release,
                       .address = ring.fence_va() + reader * HardwareRing::kFenceBytes,
                       .value = ring.next_fence()},
                      ring.readers(), reader);
}

/// Until the read pointer has passed all that was written. TIMEOUT: BM_WAIT_TIMEOUT_MS; an engine
/// that was told reads within microseconds.
Result<double> BringUp::wait_read(HardwareRing& ring) {
  const auto start = Clock::now();
  BM_TRY(ring.wait_room(ring.entries() - 1));
  return us_since(start);
}

Result<std::string> BringUp::first_nop() {
  std::vector<uint32_t> words;
  pm4::Writer(words, kernel_->facts().chip->caches).put(pm4::Nop{8});
  BM_TRY(put(*compute_, words));
  const double us = BM_TRY(wait_read(*compute_));
  return fmt::format("read pointer moved after {:.0f} us", us);
}

Result<std::string> BringUp::first_write() {
  std::vector<uint32_t> words;
  add_fences(*compute_, words);
  BM_TRY(put(*compute_, words));
  compute_->finish();
  const auto start = Clock::now();
  BM_TRY(compute_->drain());
  return fmt::format("RELEASE_MEM of {} chiplet{} arrived after {:.0f} us", compute_->readers(),
                     compute_->readers() == 1 ? "" : "s", us_since(start));
}

Result<std::string> BringUp::interrupt() {
  const ChipRow& chip = *kernel_->facts().chip;
  HardwareQueue& queue = compute_->queue();
  std::vector<uint32_t> words;
  pm4::Writer writer(words, chip.caches);
  pm4::release_once(writer,
                    {.caches = pm4::cache_actions(chip.caches).release,
                     .interrupts = true,
                     .address = queue.mailbox,
                     .value = queue.event_id,
                     .context = queue.event_id},
                    compute_->readers());
  BM_TRY(put(*compute_, words));
  const auto start = Clock::now();
  if (!BM_TRY(kernel_->wait_event(2000)))
    return fail(Code::kTimeout, "no event {} within 2 s of its RELEASE_MEM", queue.event_id);
  return fmt::format("event {} woke this process after {:.0f} us", queue.event_id, us_since(start));
}

Result<std::string> BringUp::copy_queue() {
  copies_ = BM_TRY(hcq::make_ring<HardwareRing>(
      *kernel_, *pool_, RingOptions{.type = QueueType::kSdma, .entries = 16384, .sdma_engine = 0}));
  const std::array<uint32_t, 8> nops{};
  BM_TRY(put(*copies_, nops));
  const double us = BM_TRY(wait_read(*copies_));
  return fmt::format("packets in the ring{}; NOPs read after {:.0f} us",
                     kernel_->facts().has_indirect_copies ? "" : ", IB_ENABLE is clear here", us);
}

Result<std::string> BringUp::first_fence() {
  std::vector<uint32_t> words;
  add_fences(*copies_, words);
  BM_TRY(put(*copies_, words));
  copies_->finish();
  const auto start = Clock::now();
  BM_TRY(copies_->drain());
  return fmt::format("FENCE arrived after {:.0f} us", us_since(start));
}

Result<double> BringUp::copy_us(uint64_t to, uint64_t from, uint64_t bytes) {
  std::vector<uint32_t> words;
  sdma::Writer writer(words, kernel_->facts().chip->sdma);
  const uint64_t most = sdma::max_piece(writer.form());
  for (uint64_t at = 0; at < bytes; at += most)
    writer.put(sdma::Copy{from + at, to + at, std::min(most, bytes - at)});
  add_fences(*copies_, words);
  const auto start = Clock::now();
  BM_TRY(put(*copies_, words));
  copies_->finish();
  BM_TRY(copies_->drain());
  return us_since(start);
}

Result<std::string> BringUp::copy() {
  BM_TRY(copy_us(video_.va(), near_.va(), bytes_));
  near_.view().fill(0, bytes_, std::byte{0});
  BM_TRY(copy_us(near_.va(), video_.va(), bytes_));
  for (uint64_t i = 0; i < bytes_ / 4; ++i)
    if (const auto word = near_.view().load<uint32_t>(i * 4);
        word != static_cast<uint32_t>(i * 2654435761u))
      return fail(Code::kCorrupt, "dword {} came back as {:#x}", i, word);
  return fmt::format("{} MiB to video memory and back, equal", bytes_ >> 20);
}

Result<std::string> BringUp::timings() {
  std::array<double, 101> turns{};
  for (double& turn : turns) {
    std::vector<uint32_t> words;
    add_fences(*compute_, words);
    const auto start = Clock::now();
    BM_TRY(put(*compute_, words));
    compute_->finish();
    BM_TRY(compute_->drain());
    turn = us_since(start);
  }
  std::ranges::sort(turns);
  const double to = BM_TRY(copy_us(video_.va(), near_.va(), bytes_));
  const double from = BM_TRY(copy_us(near_.va(), video_.va(), bytes_));
  const double megabytes = static_cast<double>(bytes_) / 1e6;
  return fmt::format(
      "submission and back {:.1f} us (median of 101); to video {:.2f} GB/s, back "
      "{:.2f} GB/s",
      turns[turns.size() / 2], megabytes / to * 1e3, megabytes / from * 1e3);
}

/// Addresses below 64 KiB are nobody's. Source: Linux, amdgpu_vm.h, AMDGPU_VA_RESERVED_BOTTOM.
Result<std::string> BringUp::fault() {
  const auto copied = copy_us(near_.va(), 0x1000, 64);
  if (copied) return fail(Code::kInternal, "a copy from address 0x1000 ended well");
  const auto told = kernel_->take_fault();
  if (!told) return fail(Code::kTimeout, "no fault was told: {}", copied.error().message);
  if (told->kind != GpuFault::Kind::kMemory)
    return fail(Code::kInternal, "a reset was told instead of a memory fault: {}", told->log);
  return fmt::format("memory fault at {:#x} was told: {}", told->address, told->log);
}

int BringUp::run(bool has_fault) {
  struct Named {
    const char* name;
    Stage stage;
  };
  std::vector<Named> stages = {{"nodes", &BringUp::nodes},
                               {"topology", &BringUp::topology},
                               {"interface", &BringUp::version},
                               {"device", &BringUp::open},
                               {"apertures", &BringUp::apertures},
                               {"memory", &BringUp::memory},
                               {"compute queue", &BringUp::compute_queue},
                               {"first NOP", &BringUp::first_nop},
                               {"first write", &BringUp::first_write},
                               {"interrupt", &BringUp::interrupt},
                               {"copy queue", &BringUp::copy_queue},
                               {"first fence", &BringUp::first_fence},
                               {"copies", &BringUp::copy},
                               {"timings", &BringUp::timings}};
  if (has_fault) stages.push_back({"fault", &BringUp::fault});
  bool is_good = true;
  for (const Named& each : stages) {
    if (is_good)
      is_good = try_stage(each.name, each.stage);
    else
      rows_.push_back({each.name, "not reached", ""});
  }
  fmt::print("\n| stage | result | detail |\n| --- | --- | --- |\n");
  for (const Row& row : rows_) fmt::print("| {} | {} | {} |\n", row.stage, row.result, row.detail);
  // Queues stop before what they use is freed.
  compute_.reset();
  copies_.reset();
  near_.reset();
  video_.reset();
  if (is_good) fmt::print("all {} stages passed\n", rows_.size());
  return is_good ? 0 : has_gpu_ ? 1 : 3;
}

}  // namespace

int main(int count, char** words) {
  uint64_t gpu = 0, mib = 16;
  bool has_fault = false;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const auto number = [&](uint64_t* out) {
      if (++i >= count) return false;
      const std::string_view text = words[i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
      return error == std::errc() && end == text.data() + text.size();
    };
    if (word == "--fault") {
      has_fault = true;
    } else if (word == "--help") {
      fmt::print("{}", kUsage);
      return 0;
    } else if (!(word == "--gpu" && number(&gpu) && gpu < 1024) &&
               !(word == "--mib" && number(&mib) && mib >= 1 && mib <= 4096)) {
      fmt::print(stderr, "{}", kUsage);
      return 2;
    }
  }
  return BringUp(static_cast<uint32_t>(gpu), mib << 20).run(has_fault);
}
