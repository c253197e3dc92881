#pragma once
// What devices cannot do whose other side reaches no memory of this process.

#include "tests/cts/cts.h"

namespace bm::cts {

/// Neither remote PCI nor a model behind vfio-user reaches memory of this process that it was given
/// no descriptor of, which is what these wrap.
inline void exempt_process_memory(Subject& subject) {
  for (const char* const name : {"memory.external", "cross.freed_inputs", "cross.peer_points",
                                 "cross.chain", "cross.removed_wait", "cross.changed_inputs",
                                 "cross.peer_chain", "cross.scrambled", "fault.bad_imports"})
    subject.unsupported.push_back({name, "the card's side does not reach memory of this process"});
}

}  // namespace bm::cts
