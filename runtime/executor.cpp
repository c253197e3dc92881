#include "runtime/executor.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "runtime/device.h"
#include "runtime/kernarg.h"
#include "runtime/stats.h"
#include "runtime/stream.h"

namespace bm::runtime {
namespace {

// Larger kernels take the heap; both bounds cover what the fuser makes.
constexpr size_t kStackWords = 64;
constexpr size_t kStackVars = 16;

/// Array of `size` elements on the stack when small.
template <class T, size_t kOnStack>
class SmallArray {
 public:
  explicit SmallArray(size_t size) : size_(size) {
    if (size > kOnStack) heap_.resize(size);
  }
  std::span<T> span() { return {size_ > kOnStack ? heap_.data() : stack_.data(), size_}; }

 private:
  size_t size_;
  alignas(16) std::array<T, kOnStack> stack_;
  std::vector<T> heap_;
};

/// Work of other devices that still touches the call's buffers: at most one Point per use.
std::vector<Point> foreign_points(const Call& call, Timeline& own) {
  std::vector<Point> points;
  if (!any_queue_device()) return points;
  for (const Arg& arg : call.args) {
    for (const Point& point : arg.buffer.storage->uses())
      if (point.timeline != &own) points.push_back(point);
  }
  return points;
}

void fill_arguments(std::span<uint64_t> words, const Call& call, std::span<const int64_t> vars) {
  size_t at = 0;
  for (const Arg& arg : call.args) words[at++] = hal::raw(arg.buffer.va());
  for (const int64_t var : vars) words[at++] = static_cast<uint64_t>(var);
}

int64_t ticks_to_ns(uint64_t ticks, uint64_t ticks_per_second) {
  return static_cast<int64_t>(static_cast<double>(ticks) * 1e9 /
                              static_cast<double>(ticks_per_second));
}

/// Duration of a launch that has just completed, for statistics and trace.
void report(const Launch& launch, const char* category, int64_t end_ns) {
  update_stats(launch);
  if (launch.duration_ns < 0 || !profiler().is_on()) return;
  profiler().record({.name = std::string(launch.name),
                     .row = std::string(launch.device),
                     .category = category,
                     .begin_ns = end_ns - launch.duration_ns,
                     .end_ns = end_ns,
                     .flops = launch.flops,
                     .bytes = launch.bytes});
}

/// Runs on the calling thread; arguments are read where they are. Returns nanoseconds, or -1.
Result<int64_t> launch_inline(Device& device, const Call& call, hal::Dispatch dispatch,
                              std::span<const int64_t> vars) {
  SmallArray<uint64_t, kStackWords> words(call.args.size() + vars.size());
  fill_arguments(words.span(), call, vars);
  dispatch.kernarg = hal::GpuVa{reinterpret_cast<uintptr_t>(words.span().data())};
  const std::array<hal::Command, 1> commands{dispatch};
  const std::vector<Point> points = foreign_points(call, device.stream().timeline());
  for (const Point& point : points) BM_TRY(wait(point));
  const int64_t begin_ns = is_timing() ? host_time_ns() : -1;
  BM_TRY(device.stream().submit(hal::QueueKind::kCompute, commands));
  return begin_ns < 0 ? -1 : host_time_ns() - begin_ns;
}

/// As launch_inline; waits for the kernel only when measuring.
Result<int64_t> launch_queued(Device& device, const Call& call, hal::Dispatch dispatch,
                              std::span<const int64_t> vars) {
  const size_t num_words = call.args.size() + vars.size();
  const bool timed = is_timing();
  // Two words for timestamps follow the arguments: the same memory is visible to both sides.
  KernargRing::Block block = BM_TRY(device.kernargs()->reserve(num_words + (timed ? 2 : 0)));
  fill_arguments(block.words(), call, vars);
  dispatch.kernarg = block.va();
  const hal::GpuVa timestamps = hal::offset(block.va(), num_words * sizeof(uint64_t));
  const std::array<hal::Command, 3> commands{
      hal::Timestamp{timestamps}, dispatch,
      hal::Timestamp{hal::offset(timestamps, sizeof(uint64_t))}};
  const std::span<const hal::Command> all(commands);
  const Point point =
      BM_TRY(device.stream().submit_after(hal::QueueKind::kCompute, timed ? all : all.subspan(1, 1),
                                          foreign_points(call, device.stream().timeline())));
  for (const Arg& arg : call.args) arg.buffer.storage->used_until(point);
  if (!timed) {
    block.commit(point);
    return -1;
  }
  const Status waited = device.stream().wait(point);
  const auto ticks_at = [&](size_t i) {
    return std::atomic_ref<uint64_t>(block.words()[num_words + i]).load(std::memory_order_acquire);
  };
  const uint64_t ticks = ticks_at(1) - ticks_at(0);
  block.commit(point);
  if (!waited) return tl::unexpected(waited.error());
  return ticks_to_ns(ticks, device.hal().arch().clock_hz);
}

Status execute_kernel(const Call& call, const KernelCall& kernel,
                      std::span<const int64_t> var_values) {
  BM_TRY(check_kernel_call(call, kernel, var_values.size()));
  const size_t count = kernel.vars.size();
  SmallArray<int64_t, kStackVars> vars(count + kernel.constants.size());
  for (size_t i = 0; i < count; ++i) vars.span()[i] = var_values[kernel.vars[i]];
  std::copy(kernel.constants.begin(), kernel.constants.end(),
            vars.span().begin() + static_cast<std::ptrdiff_t>(count));

  const auto& grid = kernel.program->code().grid;
  hal::Dispatch dispatch{kernel.program.get(), {}, {}};
  dispatch.grid.x = BM_TRY(grid_dim(grid[0], vars.span()));
  dispatch.grid.y = BM_TRY(grid_dim(grid[1], vars.span()));
  dispatch.grid.z = BM_TRY(grid_dim(grid[2], vars.span()));
  if (dispatch.grid.x == 0 || dispatch.grid.y == 0 || dispatch.grid.z == 0) return {};

  Device& device = *kernel.device;
  const int64_t duration_ns = device.hal().is_inline()
                                  ? BM_TRY(launch_inline(device, call, dispatch, vars.span()))
                                  : BM_TRY(launch_queued(device, call, dispatch, vars.span()));
  report({.kind = Launch::Kind::kKernel,
          .device = device.name(),
          .name = call.name,
          .num_args = call.args.size(),
          .flops = kernel.flops,
          .bytes = kernel.bytes,
          .duration_ns = duration_ns},
         "kernel", duration_ns < 0 ? 0 : host_time_ns());
  return {};
}

Status execute_copy(const Call& call) {
  BM_TRY(check_copy_call(call));
  const Buffer& dst = call.args[0].buffer;
  const Buffer& src = call.args[1].buffer;
  const int64_t begin_ns = is_timing() ? host_time_ns() : -1;
  BM_TRY(copy(dst, src));
  int64_t duration_ns = -1;
  if (begin_ns >= 0) {
    BM_TRY(src.device().synchronize());
    BM_TRY(dst.device().synchronize());
    duration_ns = host_time_ns() - begin_ns;
  }
  report({.kind = Launch::Kind::kCopy,
          .device = src.device().name(),
          .name = call.name,
          .num_args = 2,
          .bytes = 2.0 * static_cast<double>(dst.size),
          .duration_ns = duration_ns},
         "copy", duration_ns < 0 ? 0 : begin_ns + duration_ns);
  return {};
}

Status execute_host(const Call& call, const HostCall& host, std::span<const int64_t> var_values) {
  std::vector<std::byte*> pointers;
  for (const Arg& arg : call.args) {
    if (!arg.buffer.has_storage() || arg.buffer.host() == nullptr) {
      return fail(Code::kInvalidArgument,
                  "{}: argument {} of a host function is not visible to the host", call.name,
                  pointers.size());
    }
    BM_TRY(arg.buffer.device().synchronize());
    BM_TRY(arg.buffer.storage->wait_idle());
    pointers.push_back(arg.buffer.host());
  }
  std::vector<int64_t> vars;
  for (const uint32_t var : host.vars) {
    if (var >= var_values.size())
      return fail(Code::kInvalidArgument, "{}: variable {} of {} does not exist", call.name, var,
                  var_values.size());
    vars.push_back(var_values[var]);
  }
  const int64_t begin_ns = is_timing() ? host_time_ns() : -1;
  BM_TRY(host.function(pointers, vars));
  const int64_t duration_ns = begin_ns < 0 ? -1 : host_time_ns() - begin_ns;
  report({.kind = Launch::Kind::kHost,
          .device = host.device ? std::string_view(host.device->name()) : "HOST",
          .name = call.name,
          .num_args = call.args.size(),
          .duration_ns = duration_ns},
         "host", begin_ns + duration_ns);
  return {};
}

}  // namespace

Status check_kernel_call(const Call& call, const KernelCall& kernel, size_t num_vars) {
  if (kernel.program == nullptr || kernel.device == nullptr)
    return fail(Code::kInvalidArgument, "{}: kernel call without program or device", call.name);
  const hal::CodeObject& code = kernel.program->code();
  const size_t given_vars = kernel.vars.size() + kernel.constants.size();
  if (call.args.size() != code.num_buffers || given_vars != code.num_vars) {
    return fail(Code::kInvalidArgument,
                "{}: {} buffers and {} variables given, the kernel takes {} and {}", call.name,
                call.args.size(), given_vars, code.num_buffers, code.num_vars);
  }
  for (const uint32_t var : kernel.vars) {
    if (var >= num_vars)
      return fail(Code::kInvalidArgument, "{}: variable {} of {} does not exist", call.name, var,
                  num_vars);
  }
  for (const Arg& arg : call.args) {
    if (!arg.buffer.has_storage())
      return fail(Code::kInvalidArgument, "{}: argument without storage", call.name);
    if (Device& owner = arg.buffer.device(); &owner != kernel.device) {
      return fail(Code::kInvalidArgument, "{}: runs on {} but an argument is on {}", call.name,
                  kernel.device->name(), owner.name());
    }
  }
  return {};
}

Status check_copy_call(const Call& call) {
  if (call.args.size() != 2 || !call.args[0].buffer.has_storage() ||
      !call.args[1].buffer.has_storage())
    return fail(Code::kInvalidArgument, "{}: a copy takes destination and source", call.name);
  if (call.args[0].buffer.size != call.args[1].buffer.size) {
    return fail(Code::kInvalidArgument, "{}: copy of {} bytes into {}", call.name,
                call.args[1].buffer.size, call.args[0].buffer.size);
  }
  return {};
}

Result<uint32_t> grid_dim(const hal::DimExpr& dim, std::span<const int64_t> vars) {
  const int64_t value = dim.evaluate(vars);
  if (value > UINT32_MAX)
    return fail(Code::kInvalidArgument, "grid dimension {} exceeds 32 bits", value);
  return static_cast<uint32_t>(value);
}

Result<ClockMap> calibrate_clock(Device& device) {
  constexpr int kProbes = 40;
  BM_TRY(device.synchronize());
  const auto memory = BM_TRY(device.hal().allocate(
      {.size = 4096, .host_visible = true, .host_memory = true, .uncached = true, .zero = true}));
  if (memory->host() == nullptr)
    return fail(Code::kUnsupported, "{}: timestamps are not visible", device.name());
  ClockMap map{.ticks_per_second = std::max<uint64_t>(device.hal().arch().clock_hz, 1),
               .offset_ns = 0};
  std::array<int64_t, kProbes> offsets{};
  const std::array<hal::Command, 1> commands{hal::Timestamp{memory->va()}};
  for (int64_t& offset : offsets) {
    const int64_t before = host_time_ns();
    const Point point = BM_TRY(device.stream().submit(hal::QueueKind::kCompute, commands));
    BM_TRY(device.stream().wait(point));
    const int64_t middle = before + (host_time_ns() - before) / 2;
    const uint64_t ticks = std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory->host()))
                               .load(std::memory_order_acquire);
    offset = middle - map.to_host_ns(ticks);
  }
  std::nth_element(offsets.begin(), offsets.begin() + kProbes / 2, offsets.end());
  map.offset_ns = offsets[kProbes / 2];
  return map;
}

Status execute(const Call& call, std::span<const int64_t> var_values) {
  for (const Arg& arg : call.args)
    if (arg.is_written && arg.buffer.has_storage()) arg.buffer.storage->note_write();
  if (const auto* kernel = std::get_if<KernelCall>(&call.what))
    return execute_kernel(call, *kernel, var_values);
  if (const auto* host = std::get_if<HostCall>(&call.what))
    return execute_host(call, *host, var_values);
  return execute_copy(call);
}

}  // namespace bm::runtime
