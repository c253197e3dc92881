#include "drivers/amd/am/gmc.h"

#include <vector>

#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::amd::am {
namespace {

constexpr uint64_t kPage = 4096, kLargePage = 2 << 20;
constexpr uint32_t kMtypeUncached = 3;  // MTYPE_UC, navi10_enum.h and soc24_enum.h
// TIMEOUT: an invalidation takes microseconds. The kernel gives it usec_timeout = 100 ms, but
// spins; a process of a loaded virtual machine was seen to be away longer than that.
constexpr uint64_t kFlushTimeoutUs = 1'000'000;
// Invalidation engines of a hub; the last one is the kernel's for its own table.
constexpr uint32_t kEngines = 18;
// MMIO_REG_HOLE_OFFSET of nbio headers' users (soc21.c, soc24.c): where the kernel puts the page.
constexpr uint32_t kKernelsRemap = 0x80000 - 0x1000;
constexpr uint32_t kVmid = 0;

}  // namespace

Status Gmc::allocate_boot() {
  scratch_page_ = BM_TRY(memory_.allocate_boot(kPage, kPage, "the default page"));
  dummy_page_ = BM_TRY(memory_.allocate_boot(kPage, kPage, "the fault page"));
  return {};
}

Status Gmc::create_tables(const Card& card, uint32_t window) {
  generation_ = card.generation;
  tables_ = BM_TRY(memory::PageTable::create(generation_->tables(), *this));
  window_ = std::make_unique<memory::VaSpace>(
      BM_TRY(memory::VaSpace::create(kWindowBase + window * kWindowBytes, kWindowBytes)));
  return {};
}

Result<uint64_t> Gmc::allocate(uint64_t bytes, uint64_t alignment) {
  const uint64_t address = BM_TRY(memory_.allocate(bytes, alignment, true));
  places_[address] = bytes;
  return address;
}
void Gmc::free(uint64_t address, uint64_t) {
  places_.erase(address);
  memory_.free(address);
}

Status Gmc::write(uint64_t address, std::span<const uint64_t> words) {
  if (is_card_reset_) return {};
  bus_.count_table_write();
  bus_.write_memory(address, std::as_bytes(words));
  return bus_.status();
}

/// Bits 47:24, end inclusive. Source: gfxhub_v3_0_get_fb_location(), amdgpu_gmc_vram_location().
Status Gmc::read_location() {
  const uint32_t base = bus_.read_field(Block::kMmhub, Field::MC_VM_FB_LOCATION_BASE_fb_base);
  const uint32_t top = bus_.read_field(Block::kMmhub, Field::MC_VM_FB_LOCATION_TOP_fb_top);
  BM_TRY(bus_.status());
  base_ = uint64_t{base} << 24;
  end_ = (uint64_t{top} << 24) | 0xffffff;
  if (end_ <= base_ || (base_ < kWindowBase + kWindows * kWindowBytes && end_ >= kWindowBase))
    return fail(
        Code::kUnsupported,
        "the memory controller shows video memory at {:#x} to {:#x}: empty, or over the window of "
        "our addresses at {:#x}",
        base_, end_, kWindowBase);
  return {};
}

Status Gmc::init_hdp() {
  const At remap{Block::kBus, Reg::BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL};
  uint32_t offset = bus_.read(remap);
  BM_TRY(bus_.status());
  if (offset == 0) {
    offset = kKernelsRemap;
    bus_.write(remap, offset);
  }
  flush_dword_ = offset / 4;
  return bus_.status();
}

void Gmc::flush_hdp() {
  bus_.publish();
  bus_.write_dword(flush_dword_, 0);
}

Status Gmc::init_hub(Block hub) {
  BM_TRY(bus_.for_each_instance(hub, [&](uint32_t) { return init_instance(hub); }));
  (hub == Block::kGc ? is_gc_up_ : is_mm_up_) = true;
  flush_hdp();
  return flush_tlb(hub);
}

Status Gmc::init_instance(Block hub) {
  using enum Field;
  bus_.write({hub, Reg::MC_VM_AGP_BASE}, 0);
  // Bottom above top: there is no AGP aperture.
  bus_.write({hub, Reg::MC_VM_AGP_BOT}, static_cast<uint32_t>(0xffffffffffffull >> 24));
  bus_.write({hub, Reg::MC_VM_AGP_TOP}, 0);
  bus_.write({hub, Reg::MC_VM_SYSTEM_APERTURE_LOW_ADDR}, static_cast<uint32_t>(base_ >> 18));
  bus_.write({hub, Reg::MC_VM_SYSTEM_APERTURE_HIGH_ADDR}, static_cast<uint32_t>(end_ >> 18));
  bus_.write_pair(hub, Reg::MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_LSB,
                  Reg::MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_MSB, scratch_page_ >> 12);
  bus_.write_pair(hub, Reg::VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32,
                  Reg::VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32, dummy_page_ >> 12);
  bus_.update(hub, {{VM_L2_PROTECTION_FAULT_CNTL2_active_page_migration_pte_read_retry, 1}});

  bus_.update(hub, {{MC_VM_MX_L1_TLB_CNTL_enable_l1_tlb, 1},
                    {MC_VM_MX_L1_TLB_CNTL_system_access_mode, 3},
                    {MC_VM_MX_L1_TLB_CNTL_enable_advanced_driver_model, 1},
                    {MC_VM_MX_L1_TLB_CNTL_system_aperture_unmapped_access, 0},
                    {MC_VM_MX_L1_TLB_CNTL_eco_bits, 0},
                    {MC_VM_MX_L1_TLB_CNTL_mtype, kMtypeUncached}});
  if (bus_.has(MC_VM_MX_L1_TLB_CNTL_atc_en, hub))
    bus_.update(hub, {{MC_VM_MX_L1_TLB_CNTL_atc_en, 1}});
  bus_.update(hub, {{VM_L2_CNTL_enable_l2_cache, 1},
                    {VM_L2_CNTL_enable_l2_fragment_processing,
                     generation_->has_fragment_processing ? 1u : 0u},
                    {VM_L2_CNTL_enable_default_page_out_to_system_memory, 1},
                    {VM_L2_CNTL_l2_pde0_cache_tag_generation_mode, 0},
                    {VM_L2_CNTL_pde_fault_classification, 0},
                    {VM_L2_CNTL_context1_identity_access_mode, 1},
                    {VM_L2_CNTL_identity_mode_fragment_size, 0}});
  bus_.update(hub, {{VM_L2_CNTL2_invalidate_all_l1_tlbs, 1}, {VM_L2_CNTL2_invalidate_l2_cache, 1}});
  // Reset values (gc_11_0_0_default.h) with what the kernel changes.
  bus_.write_fields(hub,
                    {{VM_L2_CNTL3_l2_cache_4k_associativity, 1},
                     {VM_L2_CNTL3_l2_cache_bigk_associativity, 1},
                     {VM_L2_CNTL3_bank_select, generation_->l2_bank_select},
                     {VM_L2_CNTL3_l2_cache_bigk_fragment_size, generation_->l2_large_fragment}});
  bus_.write_fields(hub, {{VM_L2_CNTL4_l2_cache_4k_partition_count, 1},
                          {VM_L2_CNTL4_vmc_tap_pde_request_physical, 0},
                          {VM_L2_CNTL4_vmc_tap_pte_request_physical, 0}});
  if (bus_.has(VM_L2_CNTL5_walker_priority_client_id, hub))
    bus_.write_fields(hub, {{VM_L2_CNTL5_walker_priority_client_id, 0x1ff},
                            {VM_L2_CNTL5_l2_cache_smallk_fragment_size, 0}});

  // Walks begin at the context's start, so addresses are what they are: from 0 to the last page.
  const uint64_t last_page = (uint64_t{1} << (tables_->format().va_bits - 12)) - 1;
  bus_.write_pair(hub, Reg::VM_CONTEXT0_PAGE_TABLE_START_ADDR_LO32,
                  Reg::VM_CONTEXT0_PAGE_TABLE_START_ADDR_HI32, 0);
  bus_.write_pair(hub, Reg::VM_CONTEXT0_PAGE_TABLE_END_ADDR_LO32,
                  Reg::VM_CONTEXT0_PAGE_TABLE_END_ADDR_HI32, last_page);
  constexpr uint64_t kValid = 1;  // AMDGPU_PTE_VALID, amdgpu_gmc_pd_addr()
  bus_.write_pair(hub, Reg::VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32,
                  Reg::VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32, tables_->root_address() | kValid);
  const auto depth = static_cast<uint32_t>(tables_->format().levels.size()) - 1 -
                     (generation_->table_block_size != 0 ? 1 : 0);
  bus_.update(hub, {{VM_CONTEXT0_CNTL_enable_context, 1},
                    {VM_CONTEXT0_CNTL_page_table_depth, depth},
                    {VM_CONTEXT0_CNTL_page_table_block_size, generation_->table_block_size},
                    {VM_CONTEXT0_CNTL_retry_permission_or_invalid_page_fault, 0},
                    {VM_CONTEXT0_CNTL_range_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_range_protection_fault_enable_default, 1},
                    {VM_CONTEXT0_CNTL_dummy_page_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_dummy_page_protection_fault_enable_default, 1},
                    {VM_CONTEXT0_CNTL_pde0_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_pde0_protection_fault_enable_default, 1},
                    {VM_CONTEXT0_CNTL_valid_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_valid_protection_fault_enable_default, 1},
                    {VM_CONTEXT0_CNTL_read_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_read_protection_fault_enable_default, 1},
                    {VM_CONTEXT0_CNTL_write_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_write_protection_fault_enable_default, 1},
                    {VM_CONTEXT0_CNTL_execute_protection_fault_enable_interrupt, 1},
                    {VM_CONTEXT0_CNTL_execute_protection_fault_enable_default, 1}});

  // Low above high: no identity mapping.
  bus_.write_pair(hub, Reg::VM_L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_LO32,
                  Reg::VM_L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_HI32, 0xfffffffffull);
  bus_.write_pair(hub, Reg::VM_L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_LO32,
                  Reg::VM_L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_HI32, 0);
  bus_.write_pair(hub, Reg::VM_L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_LO32,
                  Reg::VM_L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_HI32, 0);
  const auto stride =
      static_cast<uint32_t>(bus_.address({hub, Reg::VM_INVALIDATE_ENG1_ADDR_RANGE_LO32}) -
                            bus_.address({hub, Reg::VM_INVALIDATE_ENG0_ADDR_RANGE_LO32}));
  for (uint32_t engine = 0; engine < kEngines; ++engine)
    bus_.write_pair(hub, Reg::VM_INVALIDATE_ENG0_ADDR_RANGE_LO32,
                    Reg::VM_INVALIDATE_ENG0_ADDR_RANGE_HI32, 0x1fffffffffull, engine * stride);
  // Who was killed in the middle of a flush still holds it; nobody else has the card.
  if (hub == Block::kMmhub) bus_.write({hub, Reg::VM_INVALIDATE_ENG17_SEM}, 0);
  return bus_.status();
}

Status Gmc::flush_tlb(Block hub) {
  if (!(hub == Block::kMmhub ? is_mm_up_ : is_gc_up_)) return {};
  return bus_.for_each_instance(hub, [&](uint32_t) { return flush_instance(hub); });
}

Status Gmc::flush_instance(Block hub) {
  using enum Field;
  const bool is_mm = hub == Block::kMmhub;
  // Only this hub can be put to sleep between request and answer.
  if (is_mm)
    BM_TRY(bus_.wait_for({hub, Reg::VM_INVALIDATE_ENG17_SEM}, 1, 1, kFlushTimeoutUs,
                         "taking the semaphore of the TLB"));
  bus_.write_fields(hub, {{VM_INVALIDATE_ENG17_REQ_per_vmid_invalidate_req, 1u << kVmid},
                          {VM_INVALIDATE_ENG17_REQ_flush_type, 0},
                          {VM_INVALIDATE_ENG17_REQ_invalidate_l2_ptes, 1},
                          {VM_INVALIDATE_ENG17_REQ_invalidate_l2_pde0, 1},
                          {VM_INVALIDATE_ENG17_REQ_invalidate_l2_pde1, 1},
                          {VM_INVALIDATE_ENG17_REQ_invalidate_l2_pde2, 1},
                          {VM_INVALIDATE_ENG17_REQ_invalidate_l1_ptes, 1},
                          {VM_INVALIDATE_ENG17_REQ_clear_protection_fault_status_addr, 0}});
  const Status done = bus_.wait_for({hub, Reg::VM_INVALIDATE_ENG17_ACK}, 1u << kVmid, 1u << kVmid,
                                    kFlushTimeoutUs, "invalidating the TLB");
  if (is_mm) {
    bus_.write({hub, Reg::VM_INVALIDATE_ENG17_SEM}, 0);
  }
  if (is_mm && generation_->has_private_caches) {
    bus_.update(hub, {{VM_L2_BANK_SELECT_RESERVED_CID2_reserved_cache_private_invalidation, 1}});
    // Reading it back is how the kernel knows that it is over.
    static_cast<void>(bus_.read({hub, Reg::VM_L2_BANK_SELECT_RESERVED_CID2}));
  }
  return done;
}

Status Gmc::flush_tlbs() {
  if (is_card_reset_) return {};
  flush_hdp();
  BM_TRY(flush_tlb(Block::kGc));
  return flush_tlb(Block::kMmhub);
}

Result<uint64_t> Gmc::take_addresses(uint64_t bytes) {
  return window_->allocate(bytes, bytes >= kLargePage ? kLargePage : kPage);
}
void Gmc::give_back(uint64_t va) { static_cast<void>(window_->free(va)); }

Status Gmc::map(uint64_t va, std::span<const memory::PhysicalRange> ranges,
                const memory::PageAttributes& attributes) {
  return tables_->map_flushed(va, ranges, attributes, [&](bool) { return flush_tlbs(); });
}

/// The kernel flushes here as well (amdgpu_vm_update_range()): memory that was freed must not be
/// reached by what TLBs remember.
Status Gmc::unmap(uint64_t va, uint64_t bytes) {
  return tables_->unmap_flushed(va, bytes, [&](bool) { return flush_tlbs(); });
}

/// gfx12 has the status in two halves; what is used is in the low one.
static Reg status_register(const Bus& bus, Block hub) {
  return bus.has(Reg::VM_L2_PROTECTION_FAULT_STATUS_LO32, hub)
             ? Reg::VM_L2_PROTECTION_FAULT_STATUS_LO32
             : Reg::VM_L2_PROTECTION_FAULT_STATUS;
}

static HubFault read_instance_fault(Bus& bus, Block hub) {
  using enum Field;
  HubFault fault;
  const bool is_split = status_register(bus, hub) == Reg::VM_L2_PROTECTION_FAULT_STATUS_LO32;
  // The first read only makes sure that the register is up to date (gmc_v11_0_process_interrupt).
  static_cast<void>(bus.read({hub, status_register(bus, hub)}));
  fault.status = bus.read({hub, status_register(bus, hub)});
  if (fault.status == 0 || !bus.status()) return fault;
  const auto field = [&](Field whole, Field low) {
    return bus.get(hub, is_split ? low : whole, fault.status);
  };
  fault.permissions = field(VM_L2_PROTECTION_FAULT_STATUS_permission_faults,
                            VM_L2_PROTECTION_FAULT_STATUS_LO32_permission_faults);
  fault.walker_error = field(VM_L2_PROTECTION_FAULT_STATUS_walker_error,
                             VM_L2_PROTECTION_FAULT_STATUS_LO32_walker_error);
  fault.client = field(VM_L2_PROTECTION_FAULT_STATUS_cid, VM_L2_PROTECTION_FAULT_STATUS_LO32_cid);
  fault.is_write =
      field(VM_L2_PROTECTION_FAULT_STATUS_rw, VM_L2_PROTECTION_FAULT_STATUS_LO32_rw) != 0;
  fault.is_mapping_error = field(VM_L2_PROTECTION_FAULT_STATUS_mapping_error,
                                 VM_L2_PROTECTION_FAULT_STATUS_LO32_mapping_error) != 0;
  const uint64_t low = bus.read({hub, Reg::VM_L2_PROTECTION_FAULT_ADDR_LO32});
  const uint64_t high = bus.read({hub, Reg::VM_L2_PROTECTION_FAULT_ADDR_HI32}) & 0xf;
  fault.address = (high << 32 | low) << 12;
  return fault;
}

HubFault read_hub_fault(Bus& bus, Block hub) {
  HubFault fault;
  for (uint32_t i = 0; i < bus.instances(hub) && fault.status == 0; ++i)
    fault = bus.with_instance(hub, i, [&] { return read_instance_fault(bus, hub); });
  return fault;
}

void Gmc::clear_fault(Block hub) {
  static_cast<void>(bus_.for_each_instance(hub, [&](uint32_t) {
    bus_.update(hub, {{Field::VM_L2_PROTECTION_FAULT_CNTL_clear_protection_fault_status_addr, 1}});
    return Status{};
  }));
}

}  // namespace bm::amd::am
