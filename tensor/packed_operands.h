#pragma once
// Weight prepacking: operands that a captured program multiplies with and never writes; see
// compiler/schedules/gemm_cpu/prepack.h.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/graph.h"
#include "tensor/schedule.h"

namespace bm {

/// Packed copies lie beside the originals, as memory of the same device, for as long as this lives.
class PackedOperands {
 public:
  /// Splits the kernels of a capture that is not compiled yet. `inputs` may differ from run to run,
  /// as may what the captured calls write and memory of others: none of it is packed. Throws
  /// bm::Exception without memory for the copies.
  void split(Schedule* schedule, std::span<const runtime::Buffer> inputs);
  /// Before every run: packs what was written since the last time, the first time all. Throws
  /// bm::Exception.
  void refresh();
  bool empty() const { return operands_.empty(); }
  uint64_t bytes() const;

 private:
  struct Operand {
    runtime::Call call;  ///< args: the copy, the original
    uint64_t version = 0;
    bool is_packed = false;
  };
  runtime::Buffer add(ir::KernelIr pack, const runtime::Buffer& original, runtime::Device& device);

  std::vector<Operand> operands_;
  std::map<std::string, size_t> known_;  ///< by kernel and original
};

}  // namespace bm
