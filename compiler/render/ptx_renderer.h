#pragma once
// The walk over a Program that writes PTX. Private to render_ptx.cpp, ptx_loops.cpp, ptx_memory.cpp
// and ptx_pipe.cpp.

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/render/ptx_text.h"
#include "compiler/render/ptx_values.h"

namespace bm::compiler {

class PtxRenderer {
 public:
  PtxRenderer(const Program& p, const TargetInfo& target) : p_(p), target_(target), v_(p, out_) {}

  std::string run();

 private:
  size_t num_arguments() const { return p_.params.size() + p_.num_vars; }

  std::string signature() const;
  void arguments();
  void registers(BlockId root);
  void block(BlockId id);
  void statement(const Stmt& s);
  // Loops. An index is a register that changes after the body.

  std::string sized(ValueId v, bool is_narrow) { return is_narrow ? v_.low(v) : v_.wide(v); }

  void loop(const Stmt& s);
  void guarded(const Stmt& s);
  std::string_view index_type(const Stmt& s) const { return v_.is_narrow(s.value) ? "s32" : "s64"; }

  void leave_at_end(const Stmt& s, const std::string& label);
  void repeat(const Stmt& s, const std::string& limit, const std::string& again);
  void advance(const Stmt& s, int64_t step);
  bool runs_at_all(const Stmt& s) const;
  bool stays_rolled(const Stmt& s) const;
  void serial(const Stmt& s);
  void start_items(const Stmt& s);
  void items(const Stmt& s);
  // Memory.

  struct Address {
    ValueId base = kNone;  ///< kNone: none but the offset
    int64_t offset = 0;    ///< elements
  };

  Address address(ValueId index) const;
  static bool fits(int64_t bytes) { return bytes >= INT32_MIN && bytes <= INT32_MAX; }

  /// What an address computed in this block or one around it was computed from.
  struct AddressKey {
    bool is_local = false;
    uint32_t memory = 0;
    ValueId base = kNone;
    auto operator<=>(const AddressKey&) const = default;
  };

  std::string known_address(const AddressKey& key) const;
  static std::string bracket(const std::string& reg, int64_t bytes);
  std::string global_address(uint32_t param, ValueId index);
  std::string local_address(uint32_t array, ValueId index);
  void store(std::string_view space, const std::string& address, ValueId value, ValueId gate);
  void load(ValueId id, std::string_view space, const std::string& address, ValueId gate);
  // MMA.

  static std::string braced(const std::vector<std::string>& registers);
  std::vector<std::string>& fresh_words(ValueId id);
  void words(ValueId id);
  void local_lanes(ValueId id);
  void any_words(ValueId id);
  void fill_words(uint32_t param, const std::string& address,
                  const std::vector<std::string>& words);
  void store_together(const Stmt& s);
  std::vector<std::string> packed(const std::vector<std::string>& from, DType t);
  // Asynchronous copies and warpgroup MMAs.
  void copy(const Stmt& s);
  void copy_words(const Stmt& s);
  void round_tf32(const Stmt& s);
  void fragment(ValueId id);
  void sub_group(ValueId id);
  void warpgroup_mma(const Stmt& s);
  std::string descriptor(uint32_t array, ValueId byte, const TileLayout& tile, uint64_t bits);
  // Tensor memory.
  void tensor(const Stmt& s);
  void allocate_tensor(const Stmt& s);
  void tensor_mma(const Stmt& s);
  void wait_tensor(const Stmt& s);
  void load_tensor(const Stmt& s);
  void free_tensor(const Stmt& s);
  /// Leaves for `end` what is not the first sub-group.
  void only_first_sub_group(const std::string& end);
  void is_aligned(ValueId id);
  void matrix(const Stmt& s);
  void dot(ValueId id);
  void table(ValueId id);
  void let(ValueId id);
  void call(ValueId id);
  BlockId root_of(BlockId block) const;
  const Program& p_;
  const TargetInfo& target_;
  ptx::Writer out_;
  ptx::Values v_;
  std::vector<std::string> params_, vars_, local_addresses_;
  std::vector<std::string> registers_;  // by Program::registers
  std::string item_;
  std::string tensor_memory_;                                 // where it is
  std::vector<std::map<AddressKey, std::string>> addresses_;  // by open block
  std::unordered_map<ValueId, std::vector<std::string>> words_;
};

}  // namespace bm::compiler
