#include "tests/sim/amd/chip/options.h"

#include <charconv>
#include <vector>

namespace bm::sim::amd {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t end = text.find(at);
    out.push_back(text.substr(0, end));
    if (end == text.npos) return out;
    text.remove_prefix(end + 1);
  }
}

bool number(std::string_view text, uint64_t* out) {
  const bool is_hex = text.starts_with("0x");
  if (is_hex) text.remove_prefix(2);
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), *out, is_hex ? 16 : 10);
  return error == std::errc() && end == text.data() + text.size();
}

bool plant_one(std::string_view text, ChipOptions& options) {
  const auto words = split(text, ',');
  uint64_t first = 0, second = 0;
  if (words[0] == "mec-hang" || words[0] == "sdma-hang") {
    ChipOptions::Cure cure = ChipOptions::Cure::kNothing;
    if (words.size() == 2 && words[1] == "engine")
      cure = ChipOptions::Cure::kEngineReset;
    else if (words.size() == 2 && words[1] == "card")
      cure = ChipOptions::Cure::kCardReset;
    else if (words.size() != 1)
      return false;
    const bool is_mec = words[0] == "mec-hang";
    (is_mec ? options.mec_cure : options.sdma_cure) = cure;
    (is_mec ? options.hangs_mec : options.hangs_sdma) = true;
    return true;
  }
  if (words.size() > 1 && !number(words[1], &first)) return false;
  if (words.size() > 2 && !number(words[2], &second)) return false;
  const auto bus = [&](BusFault fault, size_t most) {
    options.fault = fault;
    options.fault_access = first;
    if (words.size() > 2) options.stall_ms = static_cast<uint32_t>(second);
    return words.size() >= 2 && words.size() <= most && first != 0;
  };
  if (words[0] == "all-ones") return bus(BusFault::kAllOnes, 2);
  if (words[0] == "stall") return bus(BusFault::kStall, 3);
  if (words[0] == "wrong-answer") return bus(BusFault::kWrongAnswer, 2);
  if (words[0] == "unplug") return bus(BusFault::kUnplug, 2);
  if (words[0] == "psp" && words.size() == 3) {
    options.psp_status[static_cast<uint32_t>(first)] = static_cast<uint32_t>(second);
    return true;
  }
  if (words[0] == "smu" && words.size() == 3) {
    options.smu_answer[static_cast<uint32_t>(first)] = static_cast<uint32_t>(second);
    return true;
  }
  if (words.size() != 1) return false;
  if (words[0] == "no-bootload-flag") return options.hides_bootload = true;
  if (words[0] == "no-sums") return options.has_no_sums = true;
  if (words[0] == "psp-hang") return options.hangs_psp = true;
  if (words[0] == "gfx-gated") return options.gates_graphics = true;
  if (words[0] == "lost-interrupts") return options.loses_interrupts = true;
  return false;
}

}  // namespace

bool plant_fault(std::string_view text, ChipOptions& options) {
  for (const std::string_view one : split(text, ';'))
    if (!plant_one(one, options)) return false;
  return true;
}

}  // namespace bm::sim::amd
