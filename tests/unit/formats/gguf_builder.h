#pragma once
// Writes GGUF files byte by byte, right ones and wrong ones. It knows the format from its
// description and shares nothing with the reader.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace bm::models::test {

class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    data_.insert(data_.end(), raw, raw + sizeof(T));
    return *this;
  }
  Bytes& text(std::string_view s) {
    put<uint64_t>(s.size());
    return raw(s);
  }
  Bytes& raw(std::string_view s) {
    const auto* p = reinterpret_cast<const std::byte*>(s.data());
    data_.insert(data_.end(), p, p + s.size());
    return *this;
  }
  Bytes& append(const std::vector<std::byte>& more) {
    data_.insert(data_.end(), more.begin(), more.end());
    return *this;
  }
  Bytes& pad_to(size_t alignment) {
    while (data_.size() % alignment != 0) data_.push_back(std::byte{0});
    return *this;
  }
  const std::vector<std::byte>& data() const { return data_; }
  size_t size() const { return data_.size(); }

 private:
  std::vector<std::byte> data_;
};

class GgufBuilder {
 public:
  uint32_t version = 3;
  size_t alignment = 32;  ///< used for placing; add the key yourself when it is not 32

  template <class T>
  GgufBuilder& scalar(std::string_view key, uint32_t type, T value) {
    entry(key, type).put(value);
    return *this;
  }
  GgufBuilder& u16(std::string_view key, uint16_t v) { return scalar(key, 2, v); }
  GgufBuilder& u32(std::string_view key, uint32_t v) { return scalar(key, 4, v); }
  GgufBuilder& i32(std::string_view key, int32_t v) { return scalar(key, 5, v); }
  GgufBuilder& f32(std::string_view key, float v) { return scalar(key, 6, v); }
  GgufBuilder& boolean(std::string_view key, bool v) {
    return scalar(key, 7, static_cast<uint8_t>(v));
  }
  GgufBuilder& text(std::string_view key, std::string_view v) {
    entry(key, 8).text(v);
    return *this;
  }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& values) {
    Bytes& out = entry(key, 9).put<uint32_t>(8).put<uint64_t>(values.size());
    for (const std::string& v : values) out.text(v);
    return *this;
  }
  template <class T>
  GgufBuilder& array(std::string_view key, uint32_t element, const std::vector<T>& values) {
    Bytes& out = entry(key, 9).put(element).template put<uint64_t>(values.size());
    for (const T v : values) out.put(v);
    return *this;
  }
  GgufBuilder& f32s(std::string_view key, const std::vector<float>& v) { return array(key, 6, v); }
  GgufBuilder& i32s(std::string_view key, const std::vector<int32_t>& v) {
    return array(key, 5, v);
  }
  /// Key, type number and nothing else: the caller continues with the value.
  Bytes& entry(std::string_view key, uint32_t type) {
    ++entries_;
    return metadata_.text(key).put(type);
  }

  /// Tensor with its data placed after the ones before.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::vector<std::byte>& data) {
    data_.pad_to(alignment);
    tensor_at(name, dims, type, data_.size());
    data_.append(data);
    return *this;
  }
  /// Table entry only, with any offset.
  GgufBuilder& tensor_at(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         uint64_t offset) {
    ++tensors_;
    table_.text(name).put(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) table_.put(d);
    table_.put(type).put(offset);
    return *this;
  }

  std::vector<std::byte> build() const {
    Bytes out;
    out.raw("GGUF").put(version).put<uint64_t>(tensors_).put<uint64_t>(entries_);
    out.append(metadata_.data()).append(table_.data()).pad_to(alignment).append(data_.data());
    return out.data();
  }

 private:
  Bytes metadata_, table_, data_;
  uint64_t entries_ = 0, tensors_ = 0;
};

inline std::vector<std::byte> zeros(size_t n) { return std::vector<std::byte>(n); }

}  // namespace bm::models::test
