#pragma once
// What a GPU's driver is judged by: time from submission to completion, copies, a large matmul.
// Each beside the CUDA driver API or cuBLAS, where they are installed, in the same run.

#include <string>
#include <vector>

#include "runtime/device.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

/// One measured line.
struct Measurement {
  std::string name, unit;  ///< "us" (less is better) or "GB/s", "TFLOP/s" (more is better)
  double ours = 0;
  double peer = 0;  ///< 0: no peer
  std::string peer_name, goal;

  /// Above 1: ours is better; 0 without a peer.
  double ratio() const;
};

struct GpuReport {
  std::vector<Measurement> rows;
  std::vector<std::string> notes;  ///< why something has no peer or was not measured
};

/// Suites kLatency, kBandwidth and kMatmul. Errors: whatever a submission or compilation gives.
Result<GpuReport> bench_gpu(runtime::Device& device, const BenchOptions& options);

}  // namespace bm::cli
