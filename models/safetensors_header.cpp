#include "models/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "models/model_error.h"

namespace bm::models {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxRank = 64;
constexpr size_t kMaxIndexDepth = 16;

struct DtypeRow {
  SafeDtype dtype;
  std::string_view name;
  size_t bytes;
};
constexpr DtypeRow kDtypes[] = {
    {SafeDtype::kBool, "BOOL", 1},      {SafeDtype::kU8, "U8", 1},
    {SafeDtype::kI8, "I8", 1},          {SafeDtype::kF8E5M2, "F8_E5M2", 1},
    {SafeDtype::kF8E4M3, "F8_E4M3", 1}, {SafeDtype::kI16, "I16", 2},
    {SafeDtype::kU16, "U16", 2},        {SafeDtype::kF16, "F16", 2},
    {SafeDtype::kBF16, "BF16", 2},      {SafeDtype::kI32, "I32", 4},
    {SafeDtype::kU32, "U32", 4},        {SafeDtype::kF32, "F32", 4},
    {SafeDtype::kF64, "F64", 8},        {SafeDtype::kI64, "I64", 8},
    {SafeDtype::kU64, "U64", 8},
};

const DtypeRow& row_of(SafeDtype dtype) {
  for (const DtypeRow& row : kDtypes)
    if (row.dtype == dtype) return row;
  __builtin_unreachable();
}

/// Events of nlohmann's SAX interface, all refused; a subclass accepts what its format allows.
class StrictHandler {
 public:
  virtual ~StrictHandler() = default;
  virtual bool null() { return refuse("null"); }
  virtual bool boolean(bool) { return refuse("true or false"); }
  virtual bool number_integer(int64_t) { return refuse("a negative number"); }
  virtual bool number_unsigned(uint64_t) { return refuse("a number"); }
  virtual bool number_float(double, const std::string&) { return refuse("a fraction"); }
  virtual bool string(std::string&) { return refuse("a string"); }
  virtual bool binary(std::vector<uint8_t>&) { return refuse("binary data"); }
  virtual bool start_object(size_t) { return refuse("an object"); }
  virtual bool key(std::string&) { return refuse("a key"); }
  virtual bool end_object() { return true; }
  virtual bool start_array(size_t) { return refuse("an array"); }
  virtual bool end_array() { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
    return fail_with(Code::kCorrupt, fmt::format("offset {}: not JSON: {}", position, e.what()));
  }

  /// Feeds `json` through this handler.
  Status run(std::string_view json) {
    // The lexer takes a NUL for the end of input, which would hide everything after it.
    const size_t nul = json.find('\0');
    if (nul != std::string_view::npos) return fail(Code::kCorrupt, "offset {}: NUL byte", nul);
    const bool ok = Json::sax_parse(json.begin(), json.end(), this);
    if (error_) return tl::unexpected<Error>(std::move(*error_));
    if (!ok) return fail(Code::kCorrupt, "not JSON");
    return {};
  }

 protected:
  bool fail_with(Code code, std::string message) {
    if (!error_) error_ = Error{code, std::move(message)};
    return false;
  }
  virtual std::string where() const = 0;
  bool refuse(const char* what) {
    return fail_with(Code::kCorrupt, fmt::format("{}: {} is not allowed here", where(), what));
  }

 private:
  std::optional<Error> error_;
};

class HeaderHandler final : public StrictHandler {
 public:
  SafeHeader take() { return std::move(header_); }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kTop; return true;
      case State::kTensorValue: state_ = State::kTensor; return true;
      case State::kMetadataValue: state_ = State::kMetadata; return true;
      case State::kTop:
      case State::kTensor:
      case State::kMetadata:
      case State::kText:
      case State::kDtype:
      case State::kShapeValue:
      case State::kOffsetsValue:
      case State::kShape:
      case State::kOffsets: break;
    }
    return refuse("an object");
  }

  bool key(std::string& name) override {
    if (state_ == State::kTop) return top_key(name);
    if (state_ == State::kTensor) return field_key(name);
    if (state_ != State::kMetadata) return refuse("a key");
    if (header_.metadata.contains(name))
      return fail_with(Code::kCorrupt, fmt::format("metadata {} appears twice", quote_name(name)));
    text_ = &header_.metadata[name];
    state_ = State::kText;
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kText) {
      *text_ = std::move(value);
      state_ = State::kMetadata;
      return true;
    }
    if (state_ != State::kDtype) return refuse("a string");
    for (const DtypeRow& row : kDtypes) {
      if (row.name != value) continue;
      entry_.dtype = row.dtype;
      state_ = State::kTensor;
      return true;
    }
    return fail_with(Code::kUnsupported, fmt::format("tensor {}: number type {} is not supported",
                                                     quote_name(entry_.name), quote_name(value)));
  }

  bool start_array(size_t) override {
    if (state_ == State::kShapeValue)
      state_ = State::kShape;
    else if (state_ == State::kOffsetsValue)
      state_ = State::kOffsets;
    else
      return refuse("an array");
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (state_ == State::kShape) {
      if (entry_.shape.size() == kMaxRank) return refuse("a 65th dimension");
      entry_.shape.push_back(value);
      return true;
    }
    if (state_ != State::kOffsets) return refuse("a number");
    if (offset_count_ == 2) return refuse("a third offset");
    (offset_count_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offset_count_ != 2) return refuse("a single offset");
    state_ = State::kTensor;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (fields_ != kAllFields)
        return fail_with(Code::kCorrupt,
                         fmt::format("tensor {}: dtype, shape or data_offsets missing",
                                     quote_name(entry_.name)));
      header_.entries.push_back(std::move(entry_));
    }
    state_ = State::kTop;
    return true;
  }

 private:
  enum class State : uint8_t {
    kStart,
    kTop,
    kTensorValue,
    kTensor,
    kMetadataValue,
    kMetadata,
    kText,
    kDtype,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
  };
  static constexpr unsigned kDtypeField = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7;

  bool top_key(std::string& name) {
    if (!names_.insert(name).second)
      return fail_with(Code::kCorrupt, fmt::format("key {} appears twice", quote_name(name)));
    if (name == "__metadata__") {
      state_ = State::kMetadataValue;
      return true;
    }
    entry_ = {};
    entry_.name = std::move(name);
    fields_ = offset_count_ = 0;
    state_ = State::kTensorValue;
    return true;
  }

  bool field_key(const std::string& name) {
    unsigned field = 0;
    if (name == "dtype") field = kDtypeField, state_ = State::kDtype;
    if (name == "shape") field = kShapeField, state_ = State::kShapeValue;
    if (name == "data_offsets") field = kOffsetsField, state_ = State::kOffsetsValue;
    if (field == 0 || (fields_ & field) != 0)
      return fail_with(Code::kCorrupt,
                       fmt::format("tensor {}: field {} is unknown or appears twice",
                                   quote_name(entry_.name), quote_name(name)));
    fields_ |= field;
    return true;
  }

  std::string where() const override {
    return entry_.name.empty() ? "header" : fmt::format("tensor {}", quote_name(entry_.name));
  }

  SafeHeader header_;
  SafeHeaderEntry entry_;
  std::set<std::string> names_;
  std::string* text_ = nullptr;
  State state_ = State::kStart;
  unsigned fields_ = 0, offset_count_ = 0;
};

/// A name that stays in the folder of the index: nothing but letters, digits, '.', '_' and '-'.
bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name[0] == '.') return false;
  for (const char c : name) {
    const bool is_alnum =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!is_alnum && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

/// Keeps "weight_map" and skips everything else, to a bounded depth.
class IndexHandler final : public StrictHandler {
 public:
  std::map<std::string, std::string> take() { return std::move(map_); }
  bool has_map() const { return has_map_; }

  bool null() override { return skip_value("null"); }
  bool boolean(bool) override { return skip_value("true or false"); }
  bool number_integer(int64_t) override { return skip_value("a number"); }
  bool number_unsigned(uint64_t) override { return skip_value("a number"); }
  bool number_float(double, const std::string&) override { return skip_value("a fraction"); }
  bool start_array(size_t) override { return skip_value("an array") && descend(); }
  bool end_array() override { return ascend(); }
  bool end_object() override { return ascend(); }

  bool start_object(size_t) override {
    if (depth_ == 1 && is_map_key_)
      in_map_ = has_map_ = true;
    else if (in_map_)
      return refuse("an object");
    return descend();
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      is_map_key_ = name == "weight_map";
      if (is_map_key_ && has_map_) return refuse("a second weight_map");
    }
    if (in_map_) name_ = name;
    return true;
  }

  bool string(std::string& value) override {
    if (!in_map_) return skip_value("a string");
    if (!is_plain_file_name(value))
      return fail_with(Code::kCorrupt,
                       fmt::format("weight_map: {} is not a plain file name", quote_name(value)));
    if (!map_.emplace(std::move(name_), std::move(value)).second)
      return refuse("a repeated tensor");
    return true;
  }

 private:
  bool skip_value(const char* what) {
    const bool is_allowed = depth_ > 0 && !in_map_ && !(depth_ == 1 && is_map_key_);
    return is_allowed || refuse(what);
  }
  bool descend() { return ++depth_ <= kMaxIndexDepth || refuse("deeper nesting"); }
  bool ascend() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  std::string where() const override { return in_map_ ? "weight_map" : "index"; }

  std::map<std::string, std::string> map_;
  std::string name_;
  size_t depth_ = 0;
  bool in_map_ = false, is_map_key_ = false, has_map_ = false;
};

}  // namespace

std::string_view safe_dtype_name(SafeDtype dtype) { return row_of(dtype).name; }
size_t safe_dtype_bytes(SafeDtype dtype) { return row_of(dtype).bytes; }

Result<SafeHeader> parse_safetensors_header(std::string_view json) {
  HeaderHandler handler;
  BM_TRY(handler.run(json));
  return handler.take();
}

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json) {
  IndexHandler handler;
  BM_TRY(handler.run(json));
  if (!handler.has_map()) return fail(Code::kCorrupt, "the index has no weight_map");
  return handler.take();
}

}  // namespace bm::models
