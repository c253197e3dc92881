#pragma once
// Options that commands with a language model share.

#include "tools/bellmetal/options.h"

namespace CLI {
class App;
}

namespace bm::cli {

/// --device, --threads, --bundle, --ctx-size, --json.
void add_model_flags(CLI::App& command, ModelOptions& options);
/// What models/sampler.h offers, under the names that llama.cpp has made known; defaults are those
/// in `options`.
void add_sampling_flags(CLI::App& command, SamplingOptions& options);

}  // namespace bm::cli
