#include "tensor/packed_operands.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/schedules/gemm_cpu/prepack.h"
#include "tensor/exception.h"

namespace bm {
namespace {

bool overlaps(const runtime::Buffer& a, const runtime::Buffer& b) {
  return a.storage == b.storage && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
}

bool is_constant(const runtime::Arg& arg, const Schedule& schedule,
                 std::span<const runtime::Buffer> inputs) {
  const runtime::Buffer& buffer = arg.buffer;
  if (arg.is_written || buffer.storage->is_imported()) return false;
  for (const runtime::Buffer& input : inputs)
    if (overlaps(buffer, input)) return false;
  for (const runtime::Call& call : schedule.calls)
    for (const runtime::Arg& other : call.args)
      if (other.is_written && other.buffer.storage == buffer.storage) return false;
  return true;
}

}  // namespace

void PackedOperands::split(Schedule* schedule, std::span<const runtime::Buffer> inputs) {
  for (size_t i = 0; i < schedule->wanted.size(); ++i) {
    WantedKernel& wanted = schedule->wanted[i];
    const hal::Arch& arch = wanted.device->hal().arch();
    runtime::Call& call = schedule->calls[schedule->waiting[i]];
    std::vector<bool> constants;
    for (const runtime::Arg& arg : call.args)
      constants.push_back(is_constant(arg, *schedule, inputs));
    if (std::find(constants.begin(), constants.end(), true) == constants.end()) continue;
    const compiler::TargetInfo target = compiler::target_info(arch);
    while (auto packed = compiler::pack_constants(*wanted.kernel, target, arch.units, constants)) {
      const runtime::Buffer original = call.args[static_cast<size_t>(packed->operand)].buffer;
      call.args.push_back({.buffer = add(std::move(packed->pack), original, *wanted.device)});
      constants.push_back(false);
      wanted.kernel = std::make_shared<const ir::KernelIr>(std::move(packed->main));
    }
  }
}

runtime::Buffer PackedOperands::add(ir::KernelIr pack, const runtime::Buffer& original,
                                    runtime::Device& device) {
  const std::string key = fmt::format("{} {} {}", fmt::ptr(original.storage.get()), original.offset,
                                      ir::serialize(pack));
  const auto [it, is_new] = known_.try_emplace(key, operands_.size());
  if (!is_new) return operands_[it->second].call.args[0].buffer;
  const ir::Param& panels = pack.params[0];
  const auto bytes = static_cast<uint64_t>(panels.elements * item_size(panels.dtype));
  const runtime::Buffer copy = unwrap(runtime::allocate(device, {.size = bytes}));
  const ir::Cost cost = ir::estimate_cost(pack, {});
  runtime::KernelCall kernel;
  kernel.device = &device;
  kernel.flops = cost.flops;
  kernel.bytes = cost.bytes;
  const std::string name = pack.name;
  const WantedKernel wanted{&device, std::make_shared<const ir::KernelIr>(std::move(pack))};
  kernel.program = unwrap(programs_for({&wanted, 1}))[0];
  operands_.push_back(
      {{name,
        std::move(kernel),
        {{.buffer = copy, .is_written = true, .is_read = false}, {.buffer = original}}}});
  return copy;
}

void PackedOperands::refresh() {
  for (Operand& o : operands_) {
    // A write from now on is seen the next time.
    const uint64_t version = o.call.args[1].buffer.storage->version();
    if (o.is_packed && version == o.version) continue;
    unwrap(runtime::execute(o.call, {}));
    o.version = version;
    o.is_packed = true;
  }
}

uint64_t PackedOperands::bytes() const {
  uint64_t sum = 0;
  for (const Operand& o : operands_) sum += o.call.args[0].buffer.size;
  return sum;
}

}  // namespace bm
