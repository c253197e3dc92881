#pragma once
// The text of a module as a tree: what the parser makes and the lowering reads. Names are views
// into the module's text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "tests/sim/ptx/types.h"

namespace bm::sim::ptx {

struct Operand {
  enum class Kind : uint8_t {
    kName,
    kInteger,
    kFloat32,
    kFloat64,
    kVector,
    kAddress,
    kList,
    kSink
  };
  Kind kind = Kind::kSink;
  bool is_negated = false;        ///< !%p
  std::string_view name;          ///< kName; base of kAddress, or empty
  std::string_view second;        ///< kName: the q of p|q
  uint64_t bits = 0;              ///< literals; offset of kAddress
  std::vector<Operand> elements;  ///< kVector, kList
};

struct Variables {
  enum class Space : uint8_t { kReg, kGlobal, kConst, kShared, kLocal, kParam };
  Space space = Space::kReg;
  Type type = Type::kNone;
  uint32_t alignment = 0;  ///< 0: that of the type
  uint32_t vector = 1;
  bool is_extern = false;
  struct One {
    std::string_view name;
    uint32_t line = 0;
    uint32_t range = 0;  ///< %r<range>
    uint64_t count = 1;  ///< elements of an array; 0: unsized
    bool is_array = false;
    std::vector<Operand> values;  ///< initialisers, flattened in order
    uint64_t bytes = 0;           ///< of the whole variable
  };
  std::vector<One> names;
};

struct Statement {
  enum class Kind : uint8_t { kInstruction, kLabel, kVariables, kOpen, kClose, kTargets };
  Kind kind = Kind::kInstruction;
  uint32_t line = 0;
  std::string_view text;   ///< whole statement, for messages
  std::string_view name;   ///< label or opcode with its suffixes
  std::string_view guard;  ///< predicate name or empty
  bool guard_negated = false;
  std::vector<Operand> operands;  ///< also the labels of .branchtargets
  Variables variables;
};

struct Function {
  std::string_view name;
  uint32_t line = 0;
  bool is_entry = false;
  bool has_body = false;
  std::vector<Variables> results, params;
  std::vector<Statement> body;
  uint32_t max_block[3] = {0, 0, 0}, required_block[3] = {0, 0, 0};
  bool has_max_block = false, has_required_block = false;
};

struct Tree {
  uint32_t version = 0;
  uint32_t sm = 0;
  uint32_t address_bits = 64;
  std::vector<Variables> variables;
  std::vector<Function> functions;
};

Result<Tree> parse_tree(std::string_view text);

}  // namespace bm::sim::ptx
