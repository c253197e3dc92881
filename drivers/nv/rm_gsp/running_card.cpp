#include "drivers/nv/rm_gsp/running_card.h"

namespace bm::nv::gsp {

std::string_view upper_stage_name(UpperStage stage) {
  switch (stage) {
    case UpperStage::kStaticInfo: return "stage P12 (static info)";
    case UpperStage::kMemory: return "stage P13 (video memory)";
    case UpperStage::kGolden: return "stage P14 (golden context)";
    case UpperStage::kObjects: return "stage P15 (objects)";
    case UpperStage::kFaults: return "stage P16 (faults)";
  }
  __builtin_unreachable();
}

Error at_stage(UpperStage stage, Error error) {
  return std::move(error).within(upper_stage_name(stage));
}

}  // namespace bm::nv::gsp
