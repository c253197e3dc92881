#pragma once
// Model folders of Hugging Face (config.json, safetensors, tokenizer.json), seen as GGUF files:
// metadata and tensors by the names that GGUF gives them. Nothing is written.
//
// Source of names and of what becomes of weights: llama.cpp, convert_hf_to_gguf.py (gguf-py,
// tensor_mapping.py); of keys: transformers, configuration_*.py.

#include <string>

#include "models/gguf.h"

namespace bm::models {

bool is_folder(const std::string& path);

/// Metadata of the tokenizer alone, for Tokenizer::from_gguf(); weights need not be there.
/// Errors: as open_hugging_face().
Result<GgufFile> open_hugging_face_tokenizer(const std::string& folder);

/// Errors: kNotFound naming the file that is missing, kIo; kCorrupt naming the file; kUnsupported
/// naming an architecture or a key of config.json that asks for what is not done.
Result<GgufFile> open_hugging_face(const std::string& folder);

}  // namespace bm::models
