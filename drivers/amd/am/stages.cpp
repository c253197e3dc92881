#include "drivers/amd/am/stages.h"

namespace bm::amd::am {
namespace {

constexpr StageTerms kTerms[] = {
    {"map", "somebody gave us the function", "BAR 0, 2 and 5 are mapped, memory decoding is on"},
    {"discovery", "registers answer; the machine's firmware has started the card",
     "chip, block versions and register bases are known"},
    {"firmware", "the chip is known",
     "every file it wants is loaded and parsed; nothing is written"},
    {"layout", "size and visible part of video memory are known",
     "every boot structure has its place in the first 64 MiB"},
    {"state", "registers have their bases", "cold, warm or somebody else's is decided"},
    {"reset", "the PSP runs somebody else's system, or a process of ours has crashed",
     "BARs are back, the boot loader waits, the PSP's system is gone"},
    {"bus master", "nothing of the card's uses memory of the host", "DMA and interrupts are on"},
    {"bus block", "the card is not in reset",
     "doorbell aperture on, straps set, HDP flush is known"},
    {"page tables", "the memory controller says where video memory is",
     "a root table without entries"},
    {"multimedia hub", "the tree has a root", "apertures and context 0 are on, its TLB is empty"},
    {"interrupts", "the multimedia hub translates", "two rings take entries"},
    {"PSP system", "the boot loader answers", "every component is taken, its system has signed on"},
    {"PSP ring", "the PSP's system runs", "the PSP takes frames of a ring of 64 KiB"},
    {"protected memory", "the ring takes frames",
     "the SMU's file is loaded, protected memory is set"},
    {"firmware files", "protected memory is set", "every engine's file is loaded, the RLC starts"},
    {"SMU", "its file is loaded", "it answers, knows its tables and has its features on"},
    {"RLC autoload", "the RLC has started", "BOOTLOAD_COMPLETE, and the command processor is idle"},
    {"graphics hub", "the graphics block has its firmware", "as the multimedia hub"},
    {"command processor", "the graphics hub translates", "pipes run from their start addresses"},
    {"copy engines", "both hubs translate", "engines run, doorbells reach them"},
    {"RLC autoload proof", "only where BOOTLOAD_COMPLETE stayed away; queues can be made",
     "a compute queue has executed a packet"},
    {"mark", "every stage before it ended well", "the card says it is ours and in use"},
    {"power limit", "only where one is asked for; the SMU has its features on",
     "the package's limit is the one asked for, read back"},
};

}  // namespace

std::span<const StageTerms> boot_terms() { return kTerms; }

}  // namespace bm::amd::am
