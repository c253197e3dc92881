#pragma once
// Grids of the IQ formats: lattice points that a code of several values names.
//
// Source: ggml, ggml-common.h (iq2xxs_grid … iq1s_grid). A point is kept as the numbers of its
// levels, the first value in the lowest bits: two bits each for IQ1 (−1, 0, 1) and IQ2 (8, 25, 43),
// three for IQ3_XXS (4, 12, … 52, 62) and IQ3_S (1, 3, … 15).

#include <array>
#include <cstdint>

namespace bm::models {

extern const std::array<uint16_t, 256> kIq2XxsGrid;
extern const std::array<uint16_t, 512> kIq2XsGrid;
extern const std::array<uint16_t, 1024> kIq2SGrid;
extern const std::array<uint16_t, 256> kIq3XxsGrid;
extern const std::array<uint16_t, 512> kIq3SGrid;
extern const std::array<uint16_t, 2048> kIq1SGrid;

}  // namespace bm::models
