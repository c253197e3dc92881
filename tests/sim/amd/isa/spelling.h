#pragma once
// One spelling of an instruction, from LLVM's text and from ours.

#include <string>

namespace bm::sim::amd {

/// Names without encodings, single spaces; immediates with many spellings left out.
std::string normal(std::string text);

}  // namespace bm::sim::amd
