// GGUF reader: parses any bytes, then uses everything the reader hands out.
// The input is one file, or two shards when its first byte is 0xFF: then two bytes of length of the
// first.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "models/gguf.h"

namespace {

using bm::models::GgufFile;

void use(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    (void)file.get_u32(key);
    (void)file.get_f32(key);
    (void)file.get_bool(key, true);
    (void)file.get_string(key);
    (void)file.get_strings(key);
    (void)file.get_f32s(key);
    (void)file.get_i32s(key);
    (void)file.get_bytes(key);
  }
  for (const bm::models::GgufTensor& tensor : file.tensors()) {
    if (file.find_tensor(tensor.name) != &tensor || tensor.shape().size() != tensor.rank)
      std::abort();
    if (tensor.value_count > 1 << 20) continue;
    std::vector<float> values(static_cast<size_t>(tensor.value_count));
    if (!bm::models::dequantize_row(tensor.type, tensor.data, values)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (size > 3 && data[0] == 0xFF) {
    const size_t first = std::min<size_t>(data[1] + size_t{256} * data[2], size - 3);
    const auto file = GgufFile::from_shards({bytes.subspan(3, first), bytes.subspan(3 + first)});
    if (file) use(*file);
  } else if (const auto file = GgufFile::from_bytes(bytes)) {
    use(*file);
  }
  return 0;
}
