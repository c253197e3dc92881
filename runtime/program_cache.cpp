#include "runtime/program_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/device.h"

namespace bm::runtime {

ProgramCache::Key ProgramCache::key_of(const hal::CodeObject& code) {
  const std::vector<std::byte> bytes = code.serialize();
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Result<std::shared_ptr<const hal::Program>> ProgramCache::load(const hal::CodeObject& code) {
  const Key key = key_of(code);
  // Held while loading: a second thread that wants the same kernel must not load it again.
  const std::lock_guard lock(mutex_);
  if (const auto found = programs_.find(key); found != programs_.end()) return found->second;
  std::shared_ptr<const hal::Program> program = BM_TRY(device_.load(code));
  programs_.emplace(key, program);
  return program;
}

void ProgramCache::clear() {
  const std::lock_guard lock(mutex_);
  programs_.clear();
}

size_t ProgramCache::size() const {
  const std::lock_guard lock(mutex_);
  return programs_.size();
}

Result<std::shared_ptr<const hal::Program>> load_program(Device& device,
                                                         const hal::CodeObject& code) {
  Result<std::shared_ptr<const hal::Program>> loaded;
  if (ProgramCache* cache = device.programs())
    loaded = cache->load(code);
  else
    loaded = device.hal().load(code).map(
        [](auto program) { return std::shared_ptr<const hal::Program>(std::move(program)); });
  if (!loaded && is_device_error(loaded.error().code)) {
    const std::string what = fmt::format("loading kernel '{}'", code.entry);
    return tl::unexpected<Error>(device.first_cause(std::move(loaded.error()).within(what)));
  }
  return loaded;
}

}  // namespace bm::runtime
