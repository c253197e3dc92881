#include <algorithm>
#include <iterator>

#include "firmware/amd/ucode.h"

namespace bm::firmware::amd {
namespace {

struct KindName {
  Kind kind;
  std::string_view name;
  std::span<const std::string_view> endings;  ///< of file names without ".bin" and "_kicker"
};
constexpr std::string_view kSosEndings[] = {"_sos"};
constexpr std::string_view kTaEndings[] = {"_ta"};
constexpr std::string_view kTocEndings[] = {"_toc"};
constexpr std::string_view kCpEndings[] = {"_mec", "_mec2", "_me", "_pfp", "_ce"};
constexpr std::string_view kRlcEndings[] = {"_rlc", "_rlc_1"};
constexpr std::string_view kImuEndings[] = {"_imu"};
constexpr std::string_view kMesEndings[] = {"_mes", "_mes1", "_mes_2", "_uni_mes"};
// SMU and SDMA files end with the IP's version.
constexpr KindName kKinds[] = {{Kind::kSos, "sos", kSosEndings}, {Kind::kTa, "ta", kTaEndings},
                               {Kind::kToc, "toc", kTocEndings}, {Kind::kSmu, "smu", {}},
                               {Kind::kSdma, "sdma", {}},        {Kind::kCp, "cp", kCpEndings},
                               {Kind::kRlc, "rlc", kRlcEndings}, {Kind::kImu, "imu", kImuEndings},
                               {Kind::kMes, "mes", kMesEndings}};

constexpr std::string_view kPartNames[] = {"ucode",
                                           "jt",
                                           "data",
                                           "sos",
                                           "sys_drv",
                                           "kdb",
                                           "toc",
                                           "spl",
                                           "rl",
                                           "soc_drv",
                                           "intf_drv",
                                           "dbg_drv",
                                           "ras_drv",
                                           "ipkeymgr_drv",
                                           "spdm_drv",
                                           "res",
                                           "asd",
                                           "xgmi",
                                           "ras",
                                           "hdcp",
                                           "dtm",
                                           "rap",
                                           "securedisplay",
                                           "xgmi_aux",
                                           "pptable",
                                           "ctx_ucode",
                                           "ctx_jt",
                                           "ctl_ucode",
                                           "ctl_jt",
                                           "reg_list_format",
                                           "reg_list",
                                           "reg_list_format_separate",
                                           "reg_list_separate",
                                           "save_restore_list_cntl",
                                           "save_restore_list_gpm",
                                           "save_restore_list_srm",
                                           "rlc_iram_ucode",
                                           "rlc_dram_ucode",
                                           "rlcp_ucode",
                                           "rlcv_ucode",
                                           "global_tap_delays_ucode",
                                           "se0_tap_delays_ucode",
                                           "se1_tap_delays_ucode",
                                           "se2_tap_delays_ucode",
                                           "se3_tap_delays_ucode",
                                           "rlc_1_iram_ucode",
                                           "rlc_1_dram_ucode",
                                           "imu_iram_ucode",
                                           "imu_dram_ucode",
                                           "unknown"};
static_assert(std::size(kPartNames) == static_cast<size_t>(PartId::kUnknown) + 1);

}  // namespace

std::string_view kind_name(Kind kind) {
  for (const KindName& row : kKinds)
    if (row.kind == kind) return row.name;
  return "unknown";
}

std::optional<Kind> kind_of(std::string_view file_name) {
  if (const size_t slash = file_name.rfind('/'); slash != std::string_view::npos)
    file_name.remove_prefix(slash + 1);
  for (const std::string_view ending : {".bin", "_kicker"})
    if (file_name.ends_with(ending)) file_name.remove_suffix(ending.size());
  for (const KindName& row : kKinds)
    if (std::ranges::any_of(row.endings, [&](auto e) { return file_name.ends_with(e); }))
      return row.kind;
  const bool is_old_smu = file_name.ends_with("_smc") || file_name.ends_with("_k_smc");
  if (file_name.starts_with("smu_") || is_old_smu) return Kind::kSmu;
  if (file_name.starts_with("sdma_") || file_name.ends_with("_sdma") ||
      file_name.ends_with("_sdma1"))
    return Kind::kSdma;
  return std::nullopt;
}

std::string_view part_name(PartId id) { return kPartNames[static_cast<size_t>(id)]; }

}  // namespace bm::firmware::amd
