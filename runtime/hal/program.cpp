#include "runtime/hal/program.h"

namespace bm::hal {}
