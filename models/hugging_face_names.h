#pragma once
// Folders of Hugging Face: which classes there are, and what their tensors are called in a GGUF
// file.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::models {

constexpr uint32_t kMaxFolderBlocks = 4096, kMaxFolderExperts = 4096;

namespace folder_traits {
enum FolderTrait : uint32_t {
  kTurnedHalves = 1,    ///< rotary pairs lie in halves, where files of this architecture have pairs
  kGainsFromOne = 2,    ///< gains of norms are kept less one
  kPostNorms = 4,       ///< post_attention_layernorm is what its name says
  kBlockExperts = 8,    ///< experts w1, w2, w3 of a block_sparse_moe
  kOwnWindows = 16,     ///< sliding_window holds for the layers that layer_types or a pattern names
  kPlainWindow = 32,    ///< sliding_window holds for all
  kTransposed = 64,     ///< matrices of blocks are [columns, rows]
  kGroupedHeads = 128,  ///< queries, key and value of a group of heads follow each other
  kEncoder = 256,       ///< hidden states are what the class is read for; it writes no text
  kRanks = 512,         ///< a classifier of one label: how well a text answers another
  kPositionsBehindPadding = 1024,  ///< a text's positions begin behind pad_token_id
  kNormsBehindSums = 2048,         ///< post_attention_layernorm is of x + attention(x)
};
}  // namespace folder_traits

struct FolderModel {
  const char* name;  ///< config.json, "architectures"
  const char* architecture;
  uint32_t words;
  const char* defaults;  ///< what transformers takes for keys that are left out
};

/// A class that ends in Model is the one that ends in ForCausalLM, where that is known.
/// Errors: kUnsupported, naming those that are known.
Result<const FolderModel*> find_folder_model(std::string_view name);

/// What NomicBertModel is where config.json has moe_every_n_layers.
const FolderModel& nomic_with_experts();

/// A number below `limit` and a dot at the front of `text`, which are taken off.
std::optional<uint32_t> take_number(std::string_view* text, uint32_t limit);
bool take_prefix(std::string_view* text, std::string_view prefix);

struct FolderPlace {
  std::string name;              ///< in a GGUF file; empty: the tensor has no use
  std::optional<uint32_t> part;  ///< of a tensor that is several of a folder's: its expert
};

/// Names that are not known stay as they are: loading refuses what has no use.
/// `blocks`: those behind guess the token after the next, and have no use here.
FolderPlace place_of(const FolderModel& model, uint32_t blocks, std::string_view name);

}  // namespace bm::models
