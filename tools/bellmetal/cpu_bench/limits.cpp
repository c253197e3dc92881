#include "tools/bellmetal/cpu_bench/limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "tools/bellmetal/cpu_bench/limit_loops.h"

namespace bm::cli {

struct Team::Impl {
  std::vector<std::thread> threads;
  const std::function<void(uint32_t)>* part = nullptr;
  std::atomic<uint32_t> turn{0};
  std::atomic<uint32_t> left{0};
  std::atomic<bool> is_over{false};

  /// Also where a thread of the team could not be had.
  ~Impl() {
    is_over = true;
    turn.fetch_add(1);
    turn.notify_all();
    for (std::thread& t : threads) t.join();
  }

  void serve(uint32_t index) {
    for (uint32_t seen = 0;; ++seen) {
      for (int spins = 0; turn.load(std::memory_order_acquire) == seen; ++spins) {
        if (spins < 20'000)
          relax();
        else
          turn.wait(seen);
      }
      if (is_over.load()) return;
      (*part)(index);
      left.fetch_sub(1, std::memory_order_release);
    }
  }
};

Team::Team(uint32_t threads) : threads_(std::max(threads, 1U)), impl_(std::make_unique<Impl>()) {
  impl_->threads.reserve(threads_);
  for (uint32_t i = 1; i < threads_; ++i)
    impl_->threads.emplace_back([this, i] { impl_->serve(i); });
}

Team::~Team() = default;

void Team::run(const std::function<void(uint32_t)>& part) {
  impl_->part = &part;
  impl_->left.store(threads_ - 1, std::memory_order_relaxed);
  impl_->turn.fetch_add(1, std::memory_order_release);
  impl_->turn.notify_all();
  part(0);
  while (impl_->left.load(std::memory_order_acquire) != 0) relax();
}

Arena::Arena(size_t bytes) : data_(nullptr), bytes_((bytes + 4095) / 4096 * 4096) {
  void* memory =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BM_CHECK(memory != MAP_FAILED);
  ::madvise(memory, bytes_, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes_);
  data_ = static_cast<float*>(memory);
}

Arena::~Arena() { ::munmap(data_, bytes_); }

namespace {

/// Share `index` of `count` floats, in whole cache lines.
struct Part {
  size_t begin, count;
};
Part part_of(size_t floats, uint32_t index, uint32_t parts) {
  const size_t lines = floats / 16;
  const size_t begin = lines * index / parts, end = lines * (index + 1) / parts;
  return {begin * 16, (end - begin) * 16};
}

}  // namespace

Contender read_limit(Team& team, size_t bytes, int times) {
  auto memory = std::make_shared<Arena>(bytes);
  return contender("plain read", [&team, memory, times] {
    team.run([&](uint32_t i) {
      const Part p = part_of(memory->bytes() / 4, i, team.size());
      for (int n = 0; n < times; ++n) limit_loops().read(memory->data() + p.begin, p.count);
    });
  });
}

Contender copy_limit(Team& team, size_t bytes, bool is_streaming) {
  auto from = std::make_shared<Arena>(bytes), to = std::make_shared<Arena>(bytes);
  return contender(is_streaming ? "copy, non-temporal" : "copy", [&team, from, to, is_streaming] {
    const auto loop = is_streaming ? limit_loops().stream : limit_loops().copy;
    team.run([&](uint32_t i) {
      const Part p = part_of(from->bytes() / 4, i, team.size());
      loop(to->data() + p.begin, from->data() + p.begin, p.count);
    });
  });
}

Contender fma_limit(Team& team, double* flops) {
  constexpr size_t kRounds = 20'000;
  *flops = limit_loops().flops_per_round * static_cast<double>(kRounds) * team.size();
  return contender("peak FMA", [&team] { team.run([](uint32_t) { limit_loops().fma(kRounds); }); });
}

}  // namespace bm::cli
