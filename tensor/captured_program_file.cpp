#include "tensor/captured_program_file.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/byte_reader.h"

namespace bm {
namespace {

constexpr uint64_t kMagic = 0x4d5247504d42;  // "BMPGRM"
/// Raise when anything below, or the way kernels are called, changes.
constexpr uint32_t kVersion = 1;
constexpr size_t kPrologue = sizeof kMagic + sizeof kVersion + sizeof(uint64_t);
constexpr uint64_t kMostText = 4096;
/// Bounds every size and coefficient.
constexpr int64_t kMostSize = int64_t{1} << 48;

/// Writes fields in the order given.
class Writer {
 public:
  template <class... T>
  void operator()(const T&... fields) {
    (put(fields), ...);
  }
  std::vector<std::byte> bytes;

 private:
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void put(T value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), at, at + sizeof value);
  }
  void put(std::span<const std::byte> raw) {
    put(uint64_t{raw.size()});
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  void put(const std::string& text) { put(std::as_bytes(std::span(text))); }
  void put(const hal::CodeObject& code) { put(std::span<const std::byte>(code.serialize())); }
  template <class A, class B>
  void put(const std::pair<A, B>& p) {
    (*this)(p.first, p.second);
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put(uint64_t{list.size()});
    for (const T& item : list) put(item);
  }
  template <class T>
    requires std::is_class_v<T>
  void put(const T& record) {
    fields(*this, record);
  }
};

/// Reads the same fields; the first error ends it.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : in_(bytes) {}
  template <class... T>
  void operator()(T&... fields) {
    (get(fields), ...);
  }
  Status status = {};
  uint64_t remaining() const { return in_.remaining(); }

 private:
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      get(byte);
      if (byte > 1) stop(fail(Code::kCorrupt, "{} is no truth value", byte));
      value = byte == 1;
    } else {
      take(in_.read<T>(), value);
    }
  }
  void get(std::span<const std::byte>& raw) {
    uint64_t size = 0;
    get(size);
    take(in_.bytes(size), raw);
  }
  void get(std::string& text) {
    std::span<const std::byte> raw;
    get(raw);
    if (raw.size() > kMostText) return stop(fail(Code::kCorrupt, "text of {} bytes", raw.size()));
    text.assign(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  void get(hal::CodeObject& code) {
    std::span<const std::byte> raw;
    get(raw);
    if (status) take(hal::CodeObject::deserialize(raw), code);
  }
  template <class A, class B>
  void get(std::pair<A, B>& p) {
    (*this)(p.first, p.second);
  }
  template <class T>
  void get(std::vector<T>& list) {
    uint64_t count = 0;
    get(count);
    // Every item takes at least a byte, so the file bounds what is allocated.
    if (count > in_.remaining())
      return stop(fail(Code::kCorrupt, "list of {} items in {} bytes", count, in_.remaining()));
    for (uint64_t i = 0; i < count && status; ++i) {
      T item{};
      get(item);
      list.push_back(std::move(item));
    }
  }
  template <class T>
    requires std::is_class_v<T>
  void get(T& record) {
    fields(*this, record);
  }

  template <class T>
  void take(Result<T> result, T& into) {
    if (!status) return;
    if (result)
      into = std::move(*result);
    else
      status = tl::unexpected(std::move(result.error()));
  }
  void stop(tl::unexpected<Error> error) {
    if (status) status = std::move(error);
  }

  ByteReader in_;
};

// The order of fields in the file, for both directions.
template <class Io, class T>
void fields(Io& io, T& r) {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, ProgramImage::Device>)
    io(r.name, r.arch.vendor, r.arch.name, r.arch.cpu, r.arch.features);
  else if constexpr (std::is_same_v<U, ProgramImage::Variable>)
    io(r.name, r.min, r.max);
  else if constexpr (std::is_same_v<U, ProgramImage::Size>)
    io(r.constant, r.terms);
  else if constexpr (std::is_same_v<U, ProgramImage::View>)
    io(r.kind, r.shape, r.syms, r.ints);
  else if constexpr (std::is_same_v<U, ProgramImage::Input>)
    io(r.device, r.slot, r.dtype, r.shape, r.base_shape, r.views);
  else if constexpr (std::is_same_v<U, ProgramImage::Memory>)
    io(r.kind, r.device, r.size, r.contents);
  else if constexpr (std::is_same_v<U, ProgramImage::Arg>)
    io(r.slot, r.memory, r.offset, r.size, r.is_written, r.is_read);
  else if constexpr (std::is_same_v<U, ProgramImage::Call>)
    io(r.name, r.is_kernel, r.device, r.code, r.vars, r.constants, r.flops, r.bytes, r.args);
  else if constexpr (std::is_same_v<U, ProgramImage::Output>)
    io(r.kind, r.index, r.memory, r.offset, r.dtype, r.shape);
  else if constexpr (std::is_same_v<U, ProgramImage::New>)
    io(r.device, r.size, r.donor);
  else
    io(r.outputs_mode, r.is_checked, r.num_slots, r.devices, r.vars, r.inputs, r.memory, r.codes,
       r.calls, r.outputs, r.fresh);
}

/// Whether every index and range of an image is good.
class Checker {
 public:
  explicit Checker(const ProgramImage& image) : image_(image) {}

  Status run() {
    if (image_.outputs_mode > 2)
      return fail(Code::kCorrupt, "outputs mode {}", image_.outputs_mode);
    for (const ProgramImage::Device& d : image_.devices)
      if (d.arch.vendor > hal::Vendor::kOpenCl)
        return fail(Code::kCorrupt, "vendor {}", static_cast<int>(d.arch.vendor));
    for (const ProgramImage::Variable& v : image_.vars)
      if (v.min > v.max || v.min < -kMostSize || v.max > kMostSize)
        return fail(Code::kCorrupt, "variable {} between {} and {}", v.name, v.min, v.max);
    for (const ProgramImage::Memory& m : image_.memory) BM_TRY(check_memory(m));
    BM_TRY(check_inputs());
    for (const ProgramImage::New& n : image_.fresh) {
      BM_TRY(below("device", n.device, image_.devices.size()));
      if (n.size > static_cast<uint64_t>(kMostSize) || n.donor < -1 ||
          n.donor >= static_cast<int64_t>(image_.inputs.size()))
        return fail(Code::kCorrupt, "output of {} bytes given by argument {}", n.size, n.donor);
      slot_bytes_.push_back(n.size);
    }
    for (const ProgramImage::Call& c : image_.calls) BM_TRY(check_call(c));
    for (const ProgramImage::Output& o : image_.outputs) BM_TRY(check_output(o));
    return {};
  }

 private:
  static Status below(std::string_view what, uint64_t index, size_t count) {
    if (index < count) return {};
    return fail(Code::kCorrupt, "{} {} of {}", what, index, count);
  }

  static Status check_range(uint64_t offset, uint64_t size, uint64_t whole) {
    if (offset <= whole && size <= whole - offset) return {};
    return fail(Code::kCorrupt, "{} bytes at {} of {}", size, offset, whole);
  }

  Status check_memory(const ProgramImage::Memory& m) const {
    BM_TRY(below("device", m.device, image_.devices.size()));
    const bool has_contents = m.kind == ProgramImage::Memory::Kind::kContents;
    if (m.kind > ProgramImage::Memory::Kind::kContents ||
        m.size > static_cast<uint64_t>(kMostSize) ||
        m.contents.size() != (has_contents ? m.size : 0))
      return fail(Code::kCorrupt, "memory of {} bytes with {} bytes of contents", m.size,
                  m.contents.size());
    return {};
  }

  /// Elements of the largest extent.
  Result<uint64_t> elements(const ProgramImage::Sizes& shape) const {
    int64_t product = 1;
    for (const ProgramImage::Size& s : shape) {
      int64_t extent = s.constant;
      if (s.constant < -kMostSize || s.constant > kMostSize)
        return fail(Code::kCorrupt, "size {}", s.constant);
      for (const auto& [var, coefficient] : s.terms) {
        BM_TRY(below("variable", var, image_.vars.size()));
        if (coefficient < -kMostSize || coefficient > kMostSize)
          return fail(Code::kCorrupt, "coefficient {}", coefficient);
        const ProgramImage::Variable& v = image_.vars[var];
        int64_t most = 0;
        if (__builtin_mul_overflow(coefficient, coefficient > 0 ? v.max : v.min, &most) ||
            __builtin_add_overflow(extent, most, &extent))
          return fail(Code::kCorrupt, "a size is out of range");
      }
      if (extent < 0 || extent > kMostSize) return fail(Code::kCorrupt, "a size is out of range");
      if (__builtin_mul_overflow(product, extent, &product) || product > kMostSize)
        return fail(Code::kCorrupt, "a shape of too many elements");
    }
    return static_cast<uint64_t>(product);
  }

  Result<uint64_t> bytes(const ProgramImage::Sizes& shape, DType dtype) const {
    if (static_cast<int>(dtype) >= kNumDTypes)
      return fail(Code::kCorrupt, "dtype {}", static_cast<int>(dtype));
    return BM_TRY(elements(shape)) * static_cast<uint64_t>(item_size(dtype));
  }

  Status check_inputs() {
    if (image_.num_slots > image_.inputs.size())
      return fail(Code::kCorrupt, "{} slots of {} inputs", image_.num_slots, image_.inputs.size());
    slot_bytes_.resize(image_.num_slots);
    std::vector<bool> is_used(image_.num_slots);
    for (const ProgramImage::Input& in : image_.inputs) {
      BM_TRY(below("device", in.device, image_.devices.size()));
      BM_TRY(below("slot", in.slot, image_.num_slots));
      BM_TRY(bytes(in.shape, in.dtype));
      const uint64_t size = BM_TRY(bytes(in.base_shape, in.dtype));
      if (is_used[in.slot] && slot_bytes_[in.slot] != std::max<uint64_t>(size, 1))
        return fail(Code::kCorrupt, "slot {} has two sizes", in.slot);
      is_used[in.slot] = true;
      slot_bytes_[in.slot] = std::max<uint64_t>(size, 1);
      for (const ProgramImage::View& view : in.views) {
        if (view.kind > NodeKind::kCopy || !is_movement(view.kind))
          return fail(Code::kCorrupt, "view of kind {}", static_cast<int>(view.kind));
        BM_TRY(elements(view.shape));
        for (const ProgramImage::Size& s : view.syms)
          for (const auto& term : s.terms)
            BM_TRY(below("variable", term.first, image_.vars.size()));
      }
    }
    if (std::find(is_used.begin(), is_used.end(), false) != is_used.end())
      return fail(Code::kCorrupt, "a slot without an input");
    return {};
  }

  Status check_call(const ProgramImage::Call& c) const {
    for (const ProgramImage::Arg& a : c.args) {
      if (a.slot < -1) return fail(Code::kCorrupt, "slot {}", a.slot);
      if (a.slot >= 0) {
        BM_TRY(below("slot", static_cast<uint64_t>(a.slot), slot_bytes_.size()));
        BM_TRY(check_range(a.offset, a.size, slot_bytes_[static_cast<size_t>(a.slot)]));
      } else {
        BM_TRY(below("memory", a.memory, image_.memory.size()));
        BM_TRY(check_range(a.offset, a.size, image_.memory[a.memory].size));
      }
    }
    if (!c.is_kernel)
      return c.args.size() == 2 && c.args[0].size == c.args[1].size
                 ? Status{}
                 : fail(Code::kCorrupt, "copy '{}' of {} arguments", c.name, c.args.size());
    BM_TRY(below("device", c.device, image_.devices.size()));
    BM_TRY(below("code object", c.code, image_.codes.size()));
    for (const uint32_t var : c.vars) BM_TRY(below("variable", var, image_.vars.size()));
    const hal::CodeObject& code = image_.codes[c.code];
    if (c.args.size() != code.num_buffers || c.vars.size() + c.constants.size() != code.num_vars)
      return fail(Code::kCorrupt, "kernel '{}' takes {} buffers and {} variables, not {} and {}",
                  c.name, code.num_buffers, code.num_vars, c.args.size(),
                  c.vars.size() + c.constants.size());
    return {};
  }

  Status check_output(const ProgramImage::Output& o) const {
    const uint64_t size = BM_TRY(bytes(o.shape, o.dtype));
    if (o.kind == 2) return below("argument", o.index, image_.inputs.size());
    if (o.kind == 0 && image_.outputs_mode != 0) {
      BM_TRY(below("output", o.index, image_.fresh.size()));
      return check_range(0, size, image_.fresh[o.index].size);
    }
    if (o.kind > 2) return fail(Code::kCorrupt, "output of kind {}", o.kind);
    BM_TRY(below("memory", o.memory, image_.memory.size()));
    return check_range(o.offset, size, image_.memory[o.memory].size);
  }

  const ProgramImage& image_;
  std::vector<uint64_t> slot_bytes_;
};

}  // namespace

std::vector<std::byte> write_image(const ProgramImage& image) {
  Writer body;
  body(image);
  Writer out;
  out(kMagic, kVersion, uint64_t{XXH3_64bits(body.bytes.data(), body.bytes.size())});
  out.bytes.insert(out.bytes.end(), body.bytes.begin(), body.bytes.end());
  return std::move(out.bytes);
}

Result<ProgramImage> parse_image(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto magic = in.read<uint64_t>();
  if (!magic || *magic != kMagic) return fail(Code::kCorrupt, "not a captured program");
  const uint32_t version = BM_TRY(in.read<uint32_t>());
  if (version != kVersion)
    return fail(
        Code::kUnsupported,
        "saved by another version of Bellmetal (format {}, this is {}): capture and save it "
        "again",
        version, kVersion);
  const uint64_t stored = BM_TRY(in.read<uint64_t>());
  const std::span<const std::byte> body = bytes.subspan(kPrologue);
  if (XXH3_64bits(body.data(), body.size()) != stored)
    return fail(Code::kCorrupt, "checksum does not match: damaged or cut short");
  ProgramImage image;
  Reader reader(body);
  reader(image);
  BM_TRY(std::move(reader.status));
  if (reader.remaining() != 0)
    return fail(Code::kCorrupt, "{} bytes behind the end", reader.remaining());
  BM_TRY(Checker(image).run());
  return image;
}

}  // namespace bm
