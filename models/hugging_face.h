#pragma once
// Model folders of Hugging Face (config.json, safetensors, tokenizer.json), seen as GGUF files:
// metadata and tensors by the names that GGUF gives them. Nothing is written.
//
// Source of names and of what becomes of weights: llama.cpp, convert_hf_to_gguf.py (gguf-py,
// tensor_mapping.py); of keys: transformers, configuration_*.py.

#include <string>

#include "models/gguf.h"

namespace bm::models {

/// A folder in which a config.json lies.
bool is_hugging_face_folder(const std::string& path);

/// Errors: kNotFound, kIo; kCorrupt naming the file; kUnsupported naming an architecture or a key
/// of config.json that asks for what is not done.
Result<GgufFile> open_hugging_face(const std::string& folder);

}  // namespace bm::models
