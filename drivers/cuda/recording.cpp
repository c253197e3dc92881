#include "drivers/cuda/recording.h"

#include <algorithm>
#include <cstring>

#include "drivers/vendor/steps.h"
#include "runtime/base/log.h"

namespace bm::cuda {
namespace {

/// A single command is launched faster than a graph of it.
constexpr uint32_t kFewestNodes = 2;

}  // namespace

Result<std::unique_ptr<CudaRecording>> CudaRecording::build(std::span<const hal::Command> commands,
                                                            std::span<const hal::Patch> patches,
                                                            const Memory& memory, CuStream stream) {
  auto recording = std::make_unique<CudaRecording>();
  recording->generation_ = memory.generation();
  BM_TRY(translate(commands, memory, recording->steps_));
  recording->patches_ = BM_TRY(hal::PatchTable::build(commands, patches));
  recording->keep_arguments();
  BM_TRY(recording->make_parts(memory.context(), stream));
  return recording;
}

void CudaRecording::keep_arguments() {
  size_t words = 0;
  for (const Step& step : steps_)
    if (step.arguments != nullptr) words += step.program->argument_words();
  arguments_.resize(words);
  uint64_t* next = arguments_.data();
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    if (step.kind == StepKind::kCopy) copies_.push_back(i);
    if (step.arguments == nullptr) continue;
    const uint32_t count = step.program->argument_words();
    std::memcpy(next, step.arguments, count * sizeof(uint64_t));
    step.arguments = reinterpret_cast<std::byte*>(next);
    next += count;
  }
  stale_.reserve(steps_.size());
  is_stale_.assign(steps_.size(), 0);
}

/// Cuts where something cannot be a node. Barriers in between are what a chain is anyway.
Status CudaRecording::make_parts(const Context& context, CuStream stream) {
  part_of_.assign(steps_.size(), kNoPart);
  for (uint32_t first = 0; first < steps_.size();) {
    uint32_t end = first, nodes = 0;
    while (end < steps_.size() &&
           (steps_[end].kind == StepKind::kNothing || can_be_node(steps_[end]))) {
      nodes += steps_[end].kind == StepKind::kNothing ? 0 : 1;
      ++end;
    }
    Part part{.first = first, .count = std::max(end - first, 1u), .graph = nullptr};
    if (nodes >= kFewestNodes && context.api.has_graphs()) {
      auto graph =
          GraphSegment::build(context, std::span(steps_).subspan(first, part.count), stream);
      if (graph) {
        part.graph = std::move(*graph);
        std::fill_n(part_of_.begin() + first, part.count, static_cast<uint32_t>(parts_.size()));
      } else if (graph.error().code != Code::kUnsupported) {
        return tl::unexpected(std::move(graph.error()));
      } else {
        log("cuda", LogLevel::kInfo, "no graph of {} commands, they run one by one: {}", nodes,
            graph.error().message);
      }
    }
    first += part.count;
    parts_.push_back(std::move(part));
  }
  return {};
}

// ---- Patches

Status CudaRecording::patch(std::span<const uint64_t> values, const Memory& memory) {
  BM_TRY(patches_.update(values, false, [this](const hal::Patch& patch, uint64_t value) {
    return apply(patch, value);
  }));
  // A buffer went since: its address may be that of memory of another kind now.
  const uint64_t generation = memory.generation();
  BM_TRY(resolve_stale(memory, generation != generation_));
  generation_ = generation;
  patches_.finish();
  return {};
}

Status CudaRecording::apply(const hal::Patch& patch, uint64_t value) {
  Step& step = steps_[patch.command];
  return vendor::apply_patch(
      patch, value,
      [&] {
        uint64_t& word = reinterpret_cast<uint64_t*>(step.arguments)[patch.word];
        if (word == value) return Status{};
        word = value;
        touch(patch.command);
        return Status{};
      },
      [&](size_t axis, uint32_t blocks) -> Status {
        constexpr uint32_t hal::Dim3::* kAxes[] = {&hal::Dim3::x, &hal::Dim3::y, &hal::Dim3::z};
        hal::Dim3 grid = step.grid;
        grid.*kAxes[axis] = blocks;
        if (grid == step.grid) return {};
        BM_TRY(step.program->check_grid(grid));
        step.grid = grid;
        touch(patch.command);
        return {};
      },
      [&](size_t word, bool is_address) {
        if (step.words[word] == value) return Status{};
        step.words[word] = value;
        if (is_address && is_stale_[patch.command] == 0) {
          is_stale_[patch.command] = 1;
          stale_.push_back(patch.command);
        }
        return Status{};
      });
}

Status CudaRecording::resolve_stale(const Memory& memory, bool all_copies) {
  for (const uint32_t index : stale_) {
    BM_TRY(resolve(steps_[index], memory));
    touch(index);
  }
  // Only now: after a refusal all of them are resolved again.
  for (const uint32_t index : stale_) is_stale_[index] = 0;
  stale_.clear();
  if (!all_copies) return {};
  for (const uint32_t index : copies_) {
    Step& step = steps_[index];
    const Space dst = step.dst.space, src = step.src.space;
    BM_TRY(resolve(step, memory));
    if (step.dst.space != dst || step.src.space != src) touch(index);
  }
  return {};
}

/// The step's node must be set again.
void CudaRecording::touch(uint32_t step) {
  if (part_of_[step] == kNoPart) return;
  Part& part = parts_[part_of_[step]];
  part.graph->mark(step - part.first);
}

}  // namespace bm::cuda
