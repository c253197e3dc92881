#include "drivers/nv/rm_gsp/host_path.h"

namespace bm::nv::gsp {

Status BarPath::write(uint64_t va, std::span<const std::byte> from) {
  bar1_.copy_in(BM_TRY(places_.find(va, from.size())), from);
  return bar1_.status();
}

Status BarPath::read(uint64_t va, std::span<std::byte> to) {
  bar1_.copy_out(BM_TRY(places_.find(va, to.size())), to);
  return bar1_.status();
}

}  // namespace bm::nv::gsp
