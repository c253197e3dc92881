#pragma once
// The table of planted faults: what a row is, faults that are planted alike everywhere, and what
// every one of them must hold.

#include <chrono>
#include <cstring>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/env.h"
#include "tests/unit/planted/bench.h"

namespace bm::planted {

/// One planted fault. `Machine`: the simulator's options.
template <class VendorBench, class Machine>
struct Row {
  using Bench = VendorBench;
  using Plant = Status (*)(Bench& bench);
  using Texts = std::vector<std::string>;

  const char* name;
  Machine machine = {};
  bool needs_device = true;  ///< opened before `plant` is called
  Plant plant = nullptr;
  Code code = Code::kDeviceFault;
  Texts says;                                           ///< all of it must be in the message
  std::string says_not = {};                            ///< and this must not, if any
  bool (*holds)(const std::string& message) = nullptr;  ///< and this must be true of it, if any
  bool is_sticky = false;                               ///< every later call must tell the same
  bool is_repairable = true;                            ///< the next process there works

  /// Kernels and copies that go wrong.
  static Row fault(const char* name, Plant plant, Texts says) {
    return {.name = name, .plant = plant, .says = std::move(says), .is_sticky = true};
  }
  /// Engines that stand still: the wait runs out.
  static Row hang(const char* name, Plant plant, Texts says, std::string says_not,
                  bool (*holds)(const std::string&) = nullptr) {
    return {.name = name,
            .plant = plant,
            .code = Code::kTimeout,
            .says = std::move(says),
            .says_not = std::move(says_not),
            .holds = holds,
            .is_sticky = true};
  }
  /// What is asked for is not given.
  static Row refused(const char* name, Plant plant, Code code, Texts says, Machine machine = {}) {
    return {.name = name,
            .machine = std::move(machine),
            .plant = plant,
            .code = code,
            .says = std::move(says)};
  }
  /// The same before there is a device.
  static Row opening(const char* name, Plant plant, Code code, Texts says, Machine machine = {},
                     bool is_repairable = true) {
    Row row = refused(name, plant, code, std::move(says), std::move(machine));
    row.needs_device = false;
    row.is_repairable = is_repairable;
    return row;
  }
  /// The name, for the test program's messages.
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
};

template <class AnyRow>
std::vector<AnyRow> joined(std::vector<AnyRow> rows, std::vector<AnyRow> more) {
  for (AnyRow& row : more) rows.push_back(std::move(row));
  return rows;
}

// Planted alike everywhere -------------------------------------------------------------------

inline constexpr uint64_t kOwnBytes = 40 << 20;  // more than a slab: its end is the mapping's

template <class Bench>
Status opens(Bench& bench) {
  return bench.open();
}
template <class Bench>
Status opens_third_card(Bench& bench) {
  return bench.open(2);
}

template <class Bench>
Status video_memory_ends(Bench& bench) {
  const uint64_t all = bench.hal().memory().total;
  bench.also = {std::to_string(all + 4096)};
  BM_TRY(bench.allocate(all + 4096));
  return {};
}

template <class Bench>
Status peers_are_refused(Bench& bench) {
  auto other = BM_TRY(bench.open_unit(1));
  auto memory = BM_TRY(other->hal().allocate({.size = 1 << 20}));
  const auto mapped = bench.hal().map(*memory);
  memory.reset();
  BM_TRY(mapped);
  return {};
}

/// The last allocation, so that none lies behind it.
template <class Bench>
Status copies_past_end(Bench& bench) {
  hal::Buffer* const to = BM_TRY(bench.allocate(kOwnBytes));
  hal::Buffer* const from = BM_TRY(bench.allocate(kOwnBytes));
  const uint64_t va = hal::raw(from->va());
  bench.also = {fmt::format("touches {:#x} (0 bytes past the end of a live allocation of {} bytes",
                            va + kOwnBytes, kOwnBytes)};
  return bench.copy(hal::QueueKind::kCompute, hal::raw(to->va()), va + 64, kOwnBytes);
}

/// Refused before the engine sees it.
template <class Bench>
Status copies_beyond_addresses(Bench& bench) {
  hal::Buffer* const from = BM_TRY(bench.allocate(4096));
  return bench.copy(hal::QueueKind::kCopy, uint64_t{1} << 60, hal::raw(from->va()), 4096);
}

template <class Bench>
Status wait_never_comes(Bench& bench) {
  hal::Buffer* const word = BM_TRY(bench.allocate(64, true));
  std::memset(word->host(), 0, 64);
  bench.also = {
      fmt::format("a queue may wait at {:#x} for value 7, it is 0", hal::raw(word->va()))};
  return bench.run(hal::QueueKind::kCompute, {hal::Wait{word->va(), 7}});
}

/// Loads code after a change to it.
template <class Change>
Status load_changed(Bench& bench, hal::CodeObject code, const Change& change) {
  change(code);
  BM_TRY(bench.hal().load(code));
  return {};
}

// What must hold -----------------------------------------------------------------------------

/// A fault that was planted on a machine of its own; the device stays open.
template <class AnyRow>
struct Trial {
  using Clock = std::chrono::steady_clock;
  std::optional<ScopedSetting> wait;
  std::optional<typename AnyRow::Bench> bench;
  Status status;
  Clock::duration took{};

  /// `more`: what the bench takes beside the machine.
  template <class... More>
  void plant(const AnyRow& row, More... more) {
    bench.emplace(row.machine, more...);
    if (row.needs_device) {
      const Status opened = bench->open();
      ASSERT_TRUE(opened) << opened.error().message;
    }
    // Short only where it is to run out, lest a busy machine look like a hanging one.
    if (row.code == Code::kTimeout && !wait)
      wait.emplace("BM_WAIT_TIMEOUT_MS", std::to_string(kWaitMs));
    const auto begin = Clock::now();
    status = row.plant(*bench);
    took = Clock::now() - begin;
  }
};

template <class AnyRow>
void expect_cause(const AnyRow& row, const Bench& bench, const Error& error) {
  EXPECT_EQ(error.code, row.code) << error.message;
  for (const auto* parts : {&row.says, &bench.also})
    for (const std::string& part : *parts)
      EXPECT_NE(error.message.find(part), std::string::npos)
          << "not said: " << part << "\nin: " << error.message;
  if (!row.says_not.empty()) {
    EXPECT_EQ(error.message.find(row.says_not), std::string::npos) << error.message;
  }
  if (row.holds != nullptr) {
    EXPECT_TRUE(row.holds(error.message)) << error.message;
  }
}

/// Every later call returns the first error. `told`: it, perhaps with the device's name before it.
inline void expect_sticky(Bench& bench, const std::string& told) {
  hal::Device& device = bench.hal();
  const Status first = device.status();
  ASSERT_FALSE(first);
  const std::string& cause = first.error().message;
  EXPECT_TRUE(told.ends_with(cause)) << told << "\nis not: " << cause;
  const auto same = [&](const auto& result) { return !result && result.error().message == cause; };
  EXPECT_TRUE(same(device.status()));
  EXPECT_TRUE(same(device.queue(hal::QueueKind::kCompute).submit({})));
  EXPECT_TRUE(same(device.queue(hal::QueueKind::kCopy).submit({})));
  EXPECT_TRUE(same(device.allocate({.size = 64})));
  EXPECT_TRUE(same(device.load(bench.any_code())));
}

inline void expect_works(Bench& bench) {
  const Status opened = bench.open();
  ASSERT_TRUE(opened) << opened.error().message;
  const Status works = bench.works();
  EXPECT_TRUE(works) << works.error().message;
  bench.close();
}

/// At least twenty different faults, each with a message to expect.
template <class AnyRow>
void expect_table(const std::vector<AnyRow>& rows) {
  std::set<std::string> names;
  for (const AnyRow& row : rows) {
    EXPECT_FALSE(row.says.empty() || row.plant == nullptr) << row.name;
    names.insert(row.name);
  }
  EXPECT_EQ(names.size(), rows.size());
  EXPECT_GE(names.size(), 20u);
}

}  // namespace bm::planted
