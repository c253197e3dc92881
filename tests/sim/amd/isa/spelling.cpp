#include "tests/sim/amd/isa/spelling.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace bm::sim::amd {
namespace {

std::string strip(std::string name) {
  for (const char* suffix : {"_e64_dpp", "_e32_dpp", "_dpp", "_sdwa", "_e32", "_e64"})
    if (name.size() > std::strlen(suffix) && name.ends_with(suffix)) {
      name.resize(name.size() - std::strlen(suffix));
      break;
    }
  return name;
}

}  // namespace

std::string normal(std::string text) {
  for (char& c : text)
    if (c == '\t') c = ' ';
  text.erase(0, text.find_first_not_of(' '));
  const size_t end = text.find(' ');
  const std::string name = strip(text.substr(0, end));
  constexpr std::string_view kNumbers[] = {"s_delay_alu",        "s_sendmsg",
                                           "s_sendmsg_rtn_b32",  "s_sendmsg_rtn_b64",
                                           "s_getreg_b32",       "s_setreg_b32",
                                           "s_setreg_imm32_b32", "ds_swizzle_b32",
                                           "s_endpgm",           "s_set_inst_prefetch_distance",
                                           "s_inst_prefetch",    "s_clause",
                                           "s_round_mode"};
  if (name.find("wait") != std::string::npos && name.starts_with("s_")) return name;
  for (const std::string_view plain : kNumbers)
    if (plain == name) return name;
  if (end == std::string::npos) return name;
  std::string rest;
  for (size_t at = end; at < text.size();) {
    const size_t begin = text.find_first_not_of(' ', at);
    if (begin == std::string::npos) break;
    at = std::min(text.find(' ', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, at - begin);
    // Temporal hints change no result.
    if (!word.starts_with("th:")) rest.append(" ").append(word);
  }
  // LLVM closes a bar behind the carry here.
  if (rest.find(", vcc_lo|") != std::string::npos) return name;
  return name + rest;
}

}  // namespace bm::sim::amd
