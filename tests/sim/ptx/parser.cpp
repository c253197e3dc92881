// Grammar of PTX: declarations, functions, statements. Meaning is lower*.cpp's business.
#include <algorithm>

#include "tests/sim/ptx/lexer.h"
#include "tests/sim/ptx/syntax.h"

namespace bm::sim::ptx {
namespace {

using Kind = Token::Kind;

constexpr int kMaxDepth = 64;
constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 28;

class Parser {
 public:
  Parser(std::string_view text, std::vector<Token> tokens)
      : text_(text), tokens_(std::move(tokens)) {}

  Result<Tree> run() {
    while (peek().kind != Kind::kEnd) BM_TRY(top());
    if (tree_.version == 0) return fail(Code::kCorrupt, "no .version directive: not a PTX module");
    if (tree_.sm == 0) return fail(Code::kCompile, "no .target directive");
    return std::move(tree_);
  }

 private:
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(std::string_view text) const {
    return peek().kind != Kind::kString && peek().text == text && peek().kind != Kind::kEnd;
  }
  bool accept(std::string_view text) {
    if (!is(text)) return false;
    take();
    return true;
  }
  Status expect(std::string_view text) {
    if (accept(text)) return {};
    return error(fmt::format("'{}' expected", text));
  }
  tl::unexpected<Error> error(std::string_view what) const {
    const Token& t = peek();
    return fail(Code::kCompile, "line {}: {} before '{}'", t.line, what,
                t.kind == Kind::kEnd ? "end of text" : t.text.substr(0, 40));
  }
  Result<std::string_view> word(std::string_view what) {
    if (peek().kind != Kind::kWord) return error(fmt::format("{} expected", what));
    return take().text;
  }
  Result<uint64_t> integer() {
    if (peek().kind != Kind::kInteger) return error("integer expected");
    return take().bits;
  }
  Result<uint32_t> small(uint64_t limit) {
    const uint64_t value = BM_TRY(integer());
    if (value > limit) return error(fmt::format("{} is above the limit of {}", value, limit));
    return static_cast<uint32_t>(value);
  }

  Status top() {
    if (is(".version")) return version();
    if (is(".target")) return target();
    if (accept(".address_size")) {
      tree_.address_bits = BM_TRY(small(64));
      if (tree_.address_bits != 64) return error("only 64-bit addresses are known here");
      return {};
    }
    if (is(".file") || is(".alias") || is(".pragma")) return skip_line();
    if (accept(".section")) {
      take();
      return skip_braces();
    }
    bool is_extern = false;
    for (;; take()) {
      if (is(".extern"))
        is_extern = true;
      else if (!is(".visible") && !is(".weak") && !is(".common"))
        break;
    }
    if (is(".entry") || is(".func")) return function();
    if (tree_.version == 0) return fail(Code::kCorrupt, "text does not start with .version");
    auto variables = BM_TRY(declaration(is_extern));
    BM_TRY(expect(";"));
    tree_.variables.push_back(std::move(variables));
    return {};
  }

  Status version() {
    take();
    if (peek().kind != Kind::kFloat64) return error("version number expected");
    const std::string_view text = take().text;
    const size_t dot = text.find('.');
    if (dot == std::string_view::npos || dot > 2 || text.size() != dot + 2)
      return error("version number expected");
    for (const char c : text)
      if (c != '.') tree_.version = tree_.version * 10 + static_cast<uint32_t>(c - '0');
    return {};
  }

  Status target() {
    take();
    do {
      const std::string_view name = BM_TRY(word("target"));
      if (!name.starts_with("sm_")) continue;
      for (const char c : name.substr(3, 4))
        if (c >= '0' && c <= '9') tree_.sm = tree_.sm * 10 + static_cast<uint32_t>(c - '0');
    } while (accept(","));
    return {};
  }

  /// .file and .loc end with their line, .alias and .pragma with a semicolon.
  Status skip_line() {
    const uint32_t line = peek().line;
    while (peek().kind != Kind::kEnd && peek().line == line) take();
    return {};
  }

  Status skip_braces() {
    BM_TRY(expect("{"));
    for (int depth = 1; depth > 0;) {
      if (peek().kind == Kind::kEnd) return error("'}' expected");
      if (is("{")) ++depth;
      if (is("}")) --depth;
      take();
    }
    return {};
  }

  static bool space_named(std::string_view name, Variables::Space& space) {
    using Space = Variables::Space;
    if (name == ".reg") return space = Space::kReg, true;
    if (name == ".global") return space = Space::kGlobal, true;
    if (name == ".const") return space = Space::kConst, true;
    if (name == ".shared") return space = Space::kShared, true;
    if (name == ".local") return space = Space::kLocal, true;
    if (name == ".param") return space = Space::kParam, true;
    return false;
  }

  Result<Variables> declaration(bool is_extern, bool is_parameter = false) {
    Variables out;
    out.is_extern = is_extern;
    if (peek().kind != Kind::kWord || !space_named(peek().text, out.space))
      return error("directive or declaration expected");
    take();
    BM_TRY(attributes(out));
    if (out.type == Type::kNone) return error("type expected");
    do {
      Variables::One one = BM_TRY(declared(out, is_parameter));
      out.names.push_back(std::move(one));
      if (out.names.size() > 4096) return error("too many names in one declaration");
    } while (!is_parameter && accept(","));
    return out;
  }

  Status attributes(Variables& out) {
    while (peek().kind == Kind::kWord && peek().text.starts_with('.')) {
      Variables::Space pointed;
      const std::string_view name = take().text;
      if (name == ".align") {
        out.alignment = BM_TRY(small(1 << 16));
        if (out.alignment == 0 || (out.alignment & (out.alignment - 1)))
          return error("alignment is no power of two");
      } else if (name == ".v2" || name == ".v4") {
        out.vector = name == ".v2" ? 2 : 4;
      } else if (name == ".ptr") {
        // The pointee's space and alignment are a promise to the optimiser.
        if (peek().kind == Kind::kWord && space_named(peek().text, pointed)) take();
        if (accept(".align")) BM_TRY(integer());
      } else if (name == ".attribute") {
        while (peek().kind != Kind::kEnd && !is(")")) take();
        BM_TRY(expect(")"));
      } else if (const Type type = type_named(name.substr(1)); type != Type::kNone) {
        out.type = type;
      } else {
        return error(fmt::format("unknown attribute '{}'", name));
      }
    }
    return {};
  }

  Result<Variables::One> declared(const Variables& all, bool is_parameter) {
    Variables::One out;
    out.line = peek().line;
    out.name = BM_TRY(word("name"));
    if (accept("<")) {
      out.range = BM_TRY(small(1 << 24));
      BM_TRY(expect(">"));
    }
    while (accept("[")) {
      out.is_array = true;
      const uint64_t size = is("]") ? 0 : BM_TRY(integer());
      BM_TRY(expect("]"));
      if (size > kMaxVariableBytes || out.count * size > kMaxVariableBytes)
        return error("array too large");
      out.count *= size;
    }
    if (!is_parameter && accept("=")) BM_TRY(initialiser(out.values, 0));
    if (out.is_array && out.count == 0 && !out.values.empty()) out.count = out.values.size();
    out.bytes = out.count * all.vector * type_bytes(all.type);
    if (out.bytes > kMaxVariableBytes) return error("variable too large");
    return out;
  }

  Status initialiser(std::vector<Operand>& out, int depth) {
    if (depth > kMaxDepth) return error("initialiser nested too deeply");
    if (accept("{")) {
      do BM_TRY(initialiser(out, depth + 1));
      while (accept(","));
      return expect("}");
    }
    const bool is_generic = accept("generic");
    if (is_generic) BM_TRY(expect("("));
    Operand value = BM_TRY(operand(depth + 1));
    if (is_generic) {
      BM_TRY(expect(")"));
      if (accept("+")) value.bits += BM_TRY(integer());
    }
    out.push_back(std::move(value));
    return {};
  }

  Status function() {
    Function f;
    f.line = peek().line;
    f.is_entry = take().text == ".entry";
    if (!f.is_entry && is("(")) BM_TRY(formals(f.results));
    f.name = BM_TRY(word("function name"));
    if (is("(")) BM_TRY(formals(f.params));
    BM_TRY(tuning(f));
    if (!accept(";")) {
      f.has_body = true;
      BM_TRY(body(f));
    }
    tree_.functions.push_back(std::move(f));
    return {};
  }

  Status formals(std::vector<Variables>& out) {
    BM_TRY(expect("("));
    if (accept(")")) return {};
    do {
      auto one = BM_TRY(declaration(false, true));
      if (one.space != Variables::Space::kParam && one.space != Variables::Space::kReg)
        return error("parameter in a space other than .param and .reg");
      out.push_back(std::move(one));
    } while (accept(","));
    return expect(")");
  }

  Status tuning(Function& f) {
    while (peek().kind == Kind::kWord && peek().text.starts_with('.')) {
      const std::string_view name = take().text;
      if (name == ".maxntid" || name == ".reqntid") {
        uint32_t* size = name == ".maxntid" ? f.max_block : f.required_block;
        (name == ".maxntid" ? f.has_max_block : f.has_required_block) = true;
        size[0] = size[1] = size[2] = 1;
        for (int i = 0; i < 3; ++i) {
          size[i] = BM_TRY(small(1024));
          if (!accept(",")) break;
        }
      } else if (name == ".pragma") {
        while (peek().kind != Kind::kEnd && !is(";")) take();
        BM_TRY(expect(";"));
      } else if (name == ".noreturn" || name == ".explicitcluster" ||
                 name == ".blocksareclusters") {
      } else if (name == ".minnctapersm" || name == ".maxnreg" || name == ".maxclusterrank" ||
                 name == ".maxnctapersm" || name == ".reqnctapercluster") {
        do BM_TRY(integer());
        while (accept(","));
      } else {
        return error(fmt::format("unknown directive '{}'", name));
      }
    }
    return {};
  }

  Status body(Function& f) {
    BM_TRY(expect("{"));
    for (int depth = 1; depth > 0;) {
      if (peek().kind == Kind::kEnd) return error("'}' expected");
      if (is(".loc") || is(".file")) {
        BM_TRY(skip_line());
        continue;
      }
      if (is(".pragma")) {
        while (peek().kind != Kind::kEnd && !accept(";")) take();
        continue;
      }
      if (is("{") || is("}")) {
        depth += is("{") ? 1 : -1;
        if (depth > kMaxDepth) return error("scopes nested too deeply");
        if (depth > 0)
          f.body.push_back(brace(is("{") ? Statement::Kind::kOpen : Statement::Kind::kClose));
        take();
        continue;
      }
      auto statement = BM_TRY(this->statement());
      f.body.push_back(std::move(statement));
    }
    return {};
  }

  Statement brace(Statement::Kind kind) const {
    Statement s;
    s.kind = kind;
    s.line = peek().line;
    return s;
  }

  Result<Statement> statement() {
    Statement s;
    s.line = peek().line;
    const char* begin = peek().text.data();
    if (peek().kind == Kind::kWord && peek(1).text == ":" && peek(1).kind == Kind::kPunctuation) {
      s.name = take().text;
      take();
      s.text = s.name;
      s.kind = Statement::Kind::kLabel;
      if (accept(".branchtargets")) {
        s.kind = Statement::Kind::kTargets;
        BM_TRY(operands(s.operands));
        BM_TRY(expect(";"));
      } else if (accept(".callprototype")) {
        while (peek().kind != Kind::kEnd && !accept(";")) take();
      }
      return s;
    }
    Variables::Space space;
    if (peek().kind == Kind::kWord && space_named(peek().text, space)) {
      s.kind = Statement::Kind::kVariables;
      s.variables = BM_TRY(declaration(false));
    } else {
      BM_TRY(instruction(s));
    }
    const char* end = peek().text.data();
    BM_TRY(expect(";"));
    s.text = std::string_view(begin, static_cast<size_t>(end - begin));
    return s;
  }

  Status instruction(Statement& s) {
    if (accept("@")) {
      s.guard_negated = accept("!");
      s.guard = BM_TRY(word("predicate"));
    }
    s.name = BM_TRY(word("instruction"));
    if (s.name.starts_with('.')) return error(fmt::format("unknown directive '{}'", s.name));
    if (is(";")) return {};
    return operands(s.operands);
  }

  Status operands(std::vector<Operand>& out) {
    do {
      Operand one = BM_TRY(operand(0));
      out.push_back(std::move(one));
      if (out.size() > 4096) return error("too many operands");
    } while (accept(","));
    return {};
  }

  Result<Operand> operand(int depth) {
    if (depth > kMaxDepth) return error("operand nested too deeply");
    Operand out;
    if (is("{") || is("(")) {
      out.kind = is("{") ? Operand::Kind::kVector : Operand::Kind::kList;
      const std::string_view close = is("{") ? "}" : ")";
      take();
      while (!is(close)) {
        Operand element = BM_TRY(operand(depth + 1));
        out.elements.push_back(std::move(element));
        if (!accept(",")) break;
      }
      BM_TRY(expect(close));
      return out;
    }
    if (accept("[")) return address();
    if (accept("!")) {
      out.is_negated = true;
      out.kind = Operand::Kind::kName;
      out.name = BM_TRY(word("predicate"));
      return out;
    }
    if (is("-") || peek().kind == Kind::kInteger || peek().kind == Kind::kFloat32 ||
        peek().kind == Kind::kFloat64)
      return literal();
    if (accept("_")) {  // kSink, perhaps one of a pair
      if (accept("|")) out.second = BM_TRY(word("operand"));
      return out;
    }
    out.kind = Operand::Kind::kName;
    out.name = BM_TRY(word("operand"));
    if (accept("|")) out.second = BM_TRY(word("operand"));
    if (accept("[")) {  // name[0], the address of an array
      if (BM_TRY(integer()) != 0) return error("only element 0 of an array has a name here");
      BM_TRY(expect("]"));
    }
    if (is("+") || is("-")) out.bits = BM_TRY(offset());
    return out;
  }

  Result<Operand> literal() {
    Operand out;
    const bool is_minus = accept("-");
    const Token t = take();
    out.bits = t.bits;
    if (t.kind == Kind::kInteger) {
      out.kind = Operand::Kind::kInteger;
      if (is_minus) out.bits = ~out.bits + 1;
    } else if (t.kind == Kind::kFloat32) {
      out.kind = Operand::Kind::kFloat32;
      if (is_minus) out.bits ^= uint64_t{1} << 31;
    } else if (t.kind == Kind::kFloat64) {
      out.kind = Operand::Kind::kFloat64;
      if (is_minus) out.bits ^= uint64_t{1} << 63;
    } else {
      return error("literal expected");
    }
    return out;
  }

  /// "+ 4", "+ -4", "- 4", or nothing.
  Result<uint64_t> offset() {
    bool is_minus = false;
    if (accept("-"))
      is_minus = true;
    else if (accept("+"))
      is_minus = accept("-");
    else
      return uint64_t{0};
    const uint64_t value = BM_TRY(integer());
    return is_minus ? ~value + 1 : value;
  }

  Result<Operand> address() {
    Operand out;
    out.kind = Operand::Kind::kAddress;
    if (peek().kind == Kind::kInteger) {
      out.bits = take().bits;
    } else {
      out.name = BM_TRY(word("address"));
      out.bits = BM_TRY(offset());
    }
    BM_TRY(expect("]"));
    return out;
  }

  std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  Tree tree_;
};

}  // namespace

Result<Tree> parse_tree(std::string_view text) {
  auto tokens = BM_TRY(tokens_of(text));
  return Parser(text, std::move(tokens)).run();
}

}  // namespace bm::sim::ptx
