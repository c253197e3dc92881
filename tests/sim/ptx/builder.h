#pragma once
// Lowers statements to instructions: symbols to places, opcodes to handlers. One Builder per
// kernel; functions the kernel calls are lowered with it, each once, into registers of their own
// (there is no recursion, so a thread is in one activation of a function at a time).

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/sim/ptx/machine.h"
#include "tests/sim/ptx/syntax.h"

namespace bm::sim::ptx {

/// Where a module variable lives, found by name.
struct ModuleSymbol {
  Variables::Space space = Variables::Space::kGlobal;
  uint64_t offset = 0;  ///< in the image; shared: assigned by each kernel that uses it
  uint64_t bytes = 0;
  uint32_t alignment = 1;
  bool is_dynamic = false;
};

struct ModuleContext {
  std::unordered_map<std::string_view, ModuleSymbol> symbols;
  std::unordered_map<std::string_view, const Function*> functions;
};

class Builder {
 public:
  Builder(const ModuleContext& module, Kernel& kernel) : module_(module), kernel_(kernel) {}

  /// Lowers the kernel and what it calls.
  Status build(const Function& entry);

  // For the families of operations: the statement being lowered.

  /// Consumes the suffix `name` (with its dot) wherever it stands.
  bool has(std::string_view name);
  /// Consumes the first suffix left that names a type; kNone if there is none.
  Type next_type();
  /// Consumes the first suffix left, or "".
  std::string_view next_suffix();
  std::string_view peek_suffix() const;
  size_t operand_count() const { return statement_->operands.size(); }
  const Operand& operand(size_t i) const { return statement_->operands[i]; }
  Status expect_operands(size_t least, size_t most);
  tl::unexpected<Error> error(std::string_view what) const;
  tl::unexpected<Error> unknown_form() const { return error("form not known here"); }

  /// Place of a source of type `type`; literals and addresses get a constant column.
  Result<uint32_t> in(size_t i, Type type) { return in(operand(i), type); }
  Result<uint32_t> in(const Operand& o, Type type);
  /// Place of a destination; `_` is a register nobody reads.
  Result<uint32_t> out(size_t i, Type type) { return out(operand(i), type); }
  Result<uint32_t> out(const Operand& o, Type type);
  /// Register of the operand with whatever type it has (ld, st and cvt allow wider ones).
  struct Register {
    uint32_t place = kNone;
    Type type = Type::kNone;
  };
  Result<Register> out_any(const Operand& o, Type at_least);
  Result<Register> in_any(const Operand& o, Type at_least);
  /// Register pair p|q of setp and shfl; the second place is kNone if there is none.
  Result<std::pair<uint32_t, uint32_t>> out_pair(size_t i, Type type, Type second);

  struct Address {
    uint32_t base = kNone;
    bool is_wide = true;
    uint64_t offset = 0;
    Space space = Space::kGlobal;
  };
  /// `space` is that of the instruction; .param of a called function becomes local.
  Result<Address> address(const Operand& o, Space space);

  uint32_t constant(uint64_t bits, uint32_t width);
  uint32_t temporary(uint32_t width) { return new_place(width); }
  /// The thread's carry flag.
  uint32_t carry_place() {
    if (carry_ == kNone) carry_ = new_place(1);
    return carry_;
  }
  Inst& emit(Handler run, std::initializer_list<uint32_t> ops = {}, Flow flow = Flow::kPlain);

  /// Number of a list of places among Kernel::lists, each of which is there once.
  uint32_t add_list(const std::vector<uint32_t>& places) {
    for (size_t i = 0; i < kernel_.lists.size(); ++i)
      if (kernel_.lists[i] == places) return static_cast<uint32_t>(i);
    kernel_.lists.push_back(places);
    return static_cast<uint32_t>(kernel_.lists.size() - 1);
  }

  /// The same of the registers of a left operand of wgmma.
  uint32_t add_left_list(const std::vector<uint32_t>& places) {
    const uint32_t number = add_list(places);
    std::vector<uint32_t>& lists = kernel_.left_lists;
    if (std::find(lists.begin(), lists.end(), number) == lists.end()) lists.push_back(number);
    return number;
  }

  Inst& last() { return kernel_.code.back(); }

  // Control flow, for ops_control.cpp.
  Status branch_to(std::string_view label);
  Status branch_table(std::string_view label, uint32_t index);
  Status call(const Operand* results, std::string_view callee, const Operand* arguments);
  void return_from_function();

 private:
  struct Symbol {
    enum class Kind : uint8_t { kRegister, kRange, kShared, kLocal, kParam };
    Kind kind = Kind::kRegister;
    Type type = Type::kNone;
    uint32_t place = 0;  ///< register; offset in shared, local or parameter space
    uint32_t range = 0;
    uint32_t bytes = 0;
  };
  struct Scope {
    uint32_t parent = kNone;
    std::unordered_map<std::string_view, Symbol> symbols;
    std::unordered_map<std::string_view, uint32_t> labels;
    std::unordered_map<std::string_view, const Statement*> targets;
  };
  struct Fixup {
    uint32_t inst = 0, scope = 0;
    std::string_view label;
    uint32_t table = kNone, entry = 0;
    const Statement* statement = nullptr;
  };
  /// A function with its fixed activation.
  struct Activation {
    uint32_t entry = 0;
    uint32_t return_place = kNone;
    std::vector<Symbol> results, params;
  };

  Status collect(const Function& f, std::vector<const Function*>& order, int depth);
  Status lower_function(const Function& f);
  Status formals(const std::vector<Variables>& all, std::vector<Symbol>& out);
  Status entry_params(const Function& f);
  Status declare(const Variables& v);
  Status lower_statement(const Statement& s);
  Status resolve_fixups();
  uint32_t new_place(uint32_t width);
  uint32_t pooled(const Constant& c);
  uint32_t take_local(uint64_t bytes, uint32_t alignment);
  Result<uint32_t> take_shared(uint64_t bytes, uint32_t alignment);
  const Symbol* find(std::string_view name);
  Result<Constant> address_of(std::string_view name, uint32_t width, Space* space);
  Result<uint32_t> special(std::string_view name, Type type);
  Result<uint64_t> literal(const Operand& o, Type type) const;
  Result<uint32_t> copy_argument(const Symbol& formal, const Operand& o, bool is_result);

  const ModuleContext& module_;
  Kernel& kernel_;
  std::unordered_map<std::string_view, uint32_t> shared_places_;
  std::unordered_map<const Function*, Activation> activations_;
  std::map<std::tuple<uint8_t, uint8_t, uint64_t>, uint32_t> pool_;
  std::vector<Scope> scopes_;
  std::vector<Fixup> fixups_;
  uint32_t scope_ = 0;
  const Function* function_ = nullptr;
  const Statement* statement_ = nullptr;
  std::vector<std::string_view> suffixes_;
  uint32_t guard_ = kNone;
  uint32_t carry_ = kNone;
};

using Lowering = Status (*)(Builder&);
struct Operation {
  std::string_view name;  ///< first word of the opcode
  Lowering lower;
};
std::span<const Operation> arithmetic_operations();
std::span<const Operation> rounding_operations();
std::span<const Operation> bit_operations();
std::span<const Operation> carry_operations();
std::span<const Operation> compare_operations();
std::span<const Operation> convert_operations();
std::span<const Operation> memory_operations();
std::span<const Operation> atomic_operations();
std::span<const Operation> control_operations();
std::span<const Operation> warp_operations();
std::span<const Operation> matrix_operations();
std::span<const Operation> copy_operations();
std::span<const Operation> group_matrix_operations();
std::span<const Operation> tensor_memory_operations();

/// Null for an unknown first word.
Lowering find_operation(std::string_view name);

}  // namespace bm::sim::ptx
