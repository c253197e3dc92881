// safetensors reader and index; a file that is accepted must come back the same after writing.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "models/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::models;
  (void)parse_safetensors_index(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto file =
      SafetensorsFile::from_bytes(std::span(reinterpret_cast<const std::byte*>(data), size));
  if (!file) return 0;
  const auto image = encode_safetensors(file->tensors(), file->metadata());
  if (!image) std::abort();
  const auto again = SafetensorsFile::from_bytes(*image);
  if (!again || again->tensors().size() != file->tensors().size()) std::abort();
  for (const SafeTensor& tensor : file->tensors()) {
    const SafeTensor* copy = again->find(tensor.name);
    if (copy == nullptr || copy->shape != tensor.shape || copy->dtype != tensor.dtype ||
        !std::ranges::equal(copy->data, tensor.data))
      std::abort();
  }
  return 0;
}
