#pragma once
// The stages of a boot of an AMD card, in words.

#include <span>

#include "drivers/transport/stages.h"

namespace bm::amd::am {

/// In the order of a boot.
std::span<const StageTerms> boot_terms();

}  // namespace bm::amd::am
