#pragma once
// A model divided by layers over the ranks of mpirun: pipeline parallelism over processes and
// machines. Rank 0 reads, chooses and writes; the others compute their blocks until it leaves.

#include <memory>

#include "models/llama_session.h"
#include "tools/bellmetal/mpi_world.h"
#include "tools/bellmetal/options.h"

namespace bm::cli {

/// What rank 0 has of the others.
class SplitModel {
 public:
  explicit SplitModel(MpiWorld& world) : world_(world) {}
  /// Tells the others to leave.
  ~SplitModel();
  SplitModel(const SplitModel&) = delete;
  SplitModel& operator=(const SplitModel&) = delete;

  /// Returns once all have loaded their blocks. Errors: the first one's, naming its rank; those of
  /// MpiWorld.
  Status wait_loaded();
  models::LlamaSession::NextStage next_stage();

 private:
  Result<MpiWorld::Message> answer(const std::string& who);
  MpiWorld& world_;
  bool is_broken_ = false;  ///< somebody does not answer
};

/// Another rank than 0: loads its blocks and computes them until rank 0 leaves. Returns the
/// process's exit code; what went wrong is told by rank 0.
int run_stage(MpiWorld& world, const ModelOptions& options);

}  // namespace bm::cli
