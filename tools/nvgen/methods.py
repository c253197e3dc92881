#!/usr/bin/env python3
"""Tables of drivers/nv/methods from the class headers' contents as CSV.

usage: methods.py DIR [OUT]    DIR holds nv-methods.csv and nv-qmd-fields.csv, extracted from
                               NVIDIA's open-gpu-doc (classes/) and open-gpu-kernel-modules;
                               OUT defaults to drivers/nv/methods

Only what the encoders use is kept: methods as offset and mask of the bits their fields cover,
launch descriptors as one bit range per meaning.
"""
import csv
import os
import sys

HOST = ["SET_OBJECT", "NON_STALL_INTERRUPT", "SEM_ADDR_LO", "SEM_ADDR_HI", "SEM_PAYLOAD_LO",
        "SEM_PAYLOAD_HI", "SEM_EXECUTE", "WFI"]
COMPUTE = ["NO_OPERATION", "WAIT_FOR_IDLE", "LINE_LENGTH_IN", "LINE_COUNT", "OFFSET_OUT_UPPER",
           "OFFSET_OUT", "LAUNCH_DMA", "LOAD_INLINE_DATA", "SET_SHADER_SHARED_MEMORY_WINDOW_A",
           "SET_SHADER_SHARED_MEMORY_WINDOW_B", "SEND_PCAS_A", "SEND_SIGNALING_PCAS_B",
           "SEND_SIGNALING_PCAS2_B", "INVALIDATE_SKED_CACHES",
           "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A",
           "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B", "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C",
           "SET_SHADER_LOCAL_MEMORY_A", "SET_SHADER_LOCAL_MEMORY_B",
           "SET_SHADER_LOCAL_MEMORY_WINDOW_A", "SET_SHADER_LOCAL_MEMORY_WINDOW_B",
           "INVALIDATE_SHADER_CACHES_NO_WFI"]
COPY = ["NOP", "SET_SEMAPHORE_A", "SET_SEMAPHORE_B", "SET_SEMAPHORE_PAYLOAD", "LAUNCH_DMA",
        "OFFSET_IN_UPPER", "OFFSET_IN_LOWER", "OFFSET_OUT_UPPER", "OFFSET_OUT_LOWER", "PITCH_IN",
        "PITCH_OUT", "LINE_LENGTH_IN", "LINE_COUNT", "SET_REMAP_CONST_A", "SET_REMAP_CONST_B",
        "SET_REMAP_COMPONENTS"]

# Later channel headers publish few methods; methods and
# fields left out are those of the header before them.
HOST_CLASSES = [("Turing", 0xc46f), ("Ampere/Ada", 0xc56f), ("Hopper", 0xc86f),
                ("Blackwell GB10x", 0xc96f), ("Blackwell GB20x", 0xca6f)]
COMPUTE_CLASSES = [("Turing", 0xc5c0), ("Ampere GA100", 0xc6c0), ("Ampere GA10x", 0xc7c0),
                   ("Ada", 0xc9c0), ("Hopper", 0xcbc0), ("Blackwell GB10x", 0xcdc0),
                   ("Blackwell GB20x", 0xcec0)]
COPY_CLASSES = [("Turing", 0xc5b5), ("Ampere GA100", 0xc6b5), ("Ampere GA10x/Ada", 0xc7b5),
                ("Hopper", 0xc8b5), ("Blackwell GB10x", 0xc9b5), ("Blackwell GB20x", 0xcab5)]

# Meaning -> names of the field, as "LOWER[+UPPER]", oldest header first. The first that exists is
# taken. Suffixes SHIFTEDn carry the shift. Instances: the name with 0 and 1 gives the stride.
KEYS = [
    ("kMajorVersion", ["QMD_MAJOR_VERSION"]),
    ("kMinorVersion", ["QMD_VERSION", "QMD_MINOR_VERSION"]),
    ("kType", ["QMD_TYPE"]),
    ("kGroupId", ["QMD_GROUP_ID"]),
    ("kGridX", ["CTA_RASTER_WIDTH", "GRID_WIDTH"]),
    ("kGridY", ["CTA_RASTER_HEIGHT", "GRID_HEIGHT"]),
    ("kGridZ", ["CTA_RASTER_DEPTH", "GRID_DEPTH"]),
    ("kBlockX", ["CTA_THREAD_DIMENSION0"]),
    ("kBlockY", ["CTA_THREAD_DIMENSION1"]),
    ("kBlockZ", ["CTA_THREAD_DIMENSION2"]),
    ("kRegisters", ["REGISTER_COUNT_V", "REGISTER_COUNT"]),
    ("kBarriers", ["BARRIER_COUNT"]),
    ("kProgram", ["PROGRAM_ADDRESS_LOWER+PROGRAM_ADDRESS_UPPER",
                  "PROGRAM_ADDRESS_LOWER_SHIFTED4+PROGRAM_ADDRESS_UPPER_SHIFTED4"]),
    ("kSharedBytes", ["SHARED_MEMORY_SIZE", "SHARED_MEMORY_SIZE_SHIFTED7"]),
    ("kMinSharedConfig", ["MIN_SM_CONFIG_SHARED_MEM_SIZE"]),
    ("kMaxSharedConfig", ["MAX_SM_CONFIG_SHARED_MEM_SIZE"]),
    ("kTargetSharedConfig", ["TARGET_SM_CONFIG_SHARED_MEM_SIZE"]),
    ("kLocalLowBytes", ["SHADER_LOCAL_MEMORY_LOW_SIZE", "SHADER_LOCAL_MEMORY_LOW_SIZE_SHIFTED4"]),
    ("kLocalHighBytes", ["SHADER_LOCAL_MEMORY_HIGH_SIZE",
                         "SHADER_LOCAL_MEMORY_HIGH_SIZE_SHIFTED4"]),
    ("kSassVersion", ["SASS_VERSION"]),
    ("kGlobalCaching", ["SM_GLOBAL_CACHING_ENABLE"]),
    ("kNoCallLimit", ["API_VISIBLE_CALL_LIMIT"]),
    ("kSamplerIndex", ["SAMPLER_INDEX"]),
    ("kInvalidateTextureHeaders", ["INVALIDATE_TEXTURE_HEADER_CACHE"]),
    ("kInvalidateSamplers", ["INVALIDATE_TEXTURE_SAMPLER_CACHE"]),
    ("kInvalidateTextureData", ["INVALIDATE_TEXTURE_DATA_CACHE"]),
    ("kInvalidateShaderData", ["INVALIDATE_SHADER_DATA_CACHE"]),
    ("kInvalidateInstructions", ["INVALIDATE_INSTRUCTION_CACHE"]),
    ("kInvalidateConstants", ["INVALIDATE_SHADER_CONSTANT_CACHE"]),
    ("kMembar", ["CWD_MEMBAR_TYPE"]),
    ("kBankValid", ["CONSTANT_BUFFER_VALID"]),
    ("kBankInvalidate", ["CONSTANT_BUFFER_INVALIDATE"]),
    ("kBankAddress", ["CONSTANT_BUFFER_ADDR_LOWER+CONSTANT_BUFFER_ADDR_UPPER",
                      "CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6+CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6"]),
    ("kBankBytes", ["CONSTANT_BUFFER_SIZE_SHIFTED4"]),
    ("kPrefetchAddress",
     ["PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED+PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED"]),
    ("kPrefetchSize", ["PROGRAM_PREFETCH_SIZE"]),
    ("kReleaseEnable", ["SEMAPHORE_RELEASE_ENABLE#", "RELEASE#_ENABLE", "RELEASE_ENABLE"]),
    ("kReleaseSize", ["RELEASE#_STRUCTURE_SIZE", "RELEASE_STRUCTURE_SIZE"]),
    ("kReleaseMembar", ["RELEASE#_MEMBAR_TYPE", "RELEASE_MEMBAR_TYPE"]),
    ("kReleasePayload64", ["RELEASE#_PAYLOAD64B", "RELEASE_PAYLOAD64B"]),
    ("kReleaseAddress", ["RELEASE#_ADDRESS_LOWER+RELEASE#_ADDRESS_UPPER",
                         "RELEASE_SEMAPHORE#_ADDR_LOWER+RELEASE_SEMAPHORE#_ADDR_UPPER"]),
    ("kReleasePayload", ["RELEASE#_PAYLOAD", "RELEASE#_PAYLOAD_LOWER+RELEASE#_PAYLOAD_UPPER",
                         "RELEASE_SEMAPHORE#_PAYLOAD_LOWER+RELEASE_SEMAPHORE#_PAYLOAD_UPPER"]),
    ("kDependentEnable", ["DEPENDENT_QMD_SCHEDULE_ENABLE", "DEPENDENT_QMD0_ENABLE",
                          "DEPENDENT_QMD_ENABLE"]),
    ("kDependentIsGrid", ["DEPENDENT_QMD_TYPE"]),
    ("kDependentAction", ["DEPENDENT_QMD0_ACTION", "DEPENDENT_QMD_ACTION"]),
    ("kDependentPrefetch", ["DEPENDENT_QMD0_PREFETCH", "DEPENDENT_QMD_PREFETCH"]),
    ("kDependentPointer", ["DEPENDENT_QMD0_POINTER", "DEPENDENT_QMD_POINTER"]),
    ("kClusterX", ["GPC_CGA_WIDTH"]),
    ("kClusterY", ["GPC_CGA_HEIGHT"]),
    ("kClusterZ", ["GPC_CGA_DEPTH"]),
]
# Shifts that the headers do not put into the name (all descriptors are 256-byte aligned).
SHIFTS = {"kPrefetchAddress": 8, "kDependentPointer": 8}
FORMATS = [("C5C0", "QMDV02_03", "kQmd2_3", 64), ("C9C0", "QMDV03_00", "kQmd3_0", 64),
           ("CBC0", "QMDV04_00", "kQmd4_0", 96), ("CEC0", "QMDV05_00", "kQmd5_0", 96)]


def bits_of(text):
    hi, lo = text.split(":")
    return int(hi), int(lo)


def read_methods(path):
    """(kind, generation) -> name -> [offset, mask, source]"""
    table = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            offset = row["offset"]
            if not offset or offset.startswith("("):
                continue
            methods = table.setdefault((row["kind"], row["generation"]), {})
            entry = methods.setdefault(row["method"], [int(offset, 16), 0, row["source"]])
            if not row["bits"]:
                entry[1] = 0xffffffff
                continue
            hi, lo = bits_of(row["bits"])
            entry[1] |= ((1 << (hi - lo + 1)) - 1) << lo
    return table


# Second words of pairs whose first word alone is in the CSV: the headers give 31:0.
IMPLIED = {("compute", "SET_SHADER_LOCAL_MEMORY_WINDOW_B"): (0x7b4, 0xffffffff)}
# Methods that the oldest classes do not have.
LATER = ["SEND_SIGNALING_PCAS2_B"]


def emit_classes(out, table, kind, classes, names):
    known = {}
    for generation, number in classes:
        here = table.get((kind, generation), {})
        for name, entry in here.items():
            earlier = known.get(name, [0, 0])[1] if kind == "host" else 0
            known[name] = [entry[0], entry[1] | earlier, entry[2]]
        rows = []
        for name in names:
            entry = known.get(name)
            if entry is None and (kind, name) in IMPLIED:
                entry = (*IMPLIED[kind, name], "")
            if entry is None and name in LATER:
                continue
            if entry is None:
                sys.exit(f"{kind} {generation}: no {name}")
            rows.append((entry[0], entry[1], name))
        source = next(iter(here.values()))[2].split(";")[0]
        out.append(f"// {generation}: {source}")
        out.append(f"constexpr Method kMethods{number:04x}[] = {{")
        for offset, mask, name in sorted(rows):
            out.append(f'    {{0x{offset:x}, 0x{mask:x}, "{name}"}},')
        out.append("};")


def emit_methods(path, table):
    out = ["// Generated by tools/nvgen/methods.py from open-gpu-doc's class headers; do not edit."]
    for kind, classes, names in (("host", HOST_CLASSES, HOST), ("compute", COMPUTE_CLASSES, COMPUTE),
                                 ("copy", COPY_CLASSES, COPY)):
        emit_classes(out, table, kind, classes, names)
    out.append("constexpr ClassMethods kClasses[] = {")
    for classes in (HOST_CLASSES, COMPUTE_CLASSES, COPY_CLASSES):
        for _, number in classes:
            out.append(f"    {{0x{number:x}, kMethods{number:04x}}},")
    out.append("};")
    write(path, out)


def read_fields(path):
    table = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            fields = table.setdefault((row["class"], row["qmd_version"]), {})
            stride = int(row["index_stride_bits"]) if row["index_stride_bits"] else 0
            fields[row["field"]] = (int(row["lo"]), int(row["width"]), stride)
    return table


def find_field(fields, name):
    """(low, width, stride) of a field whose name may hold # for its instance."""
    if "#" not in name:
        return fields.get(name)
    first, second = fields.get(name.replace("#", "0")), fields.get(name.replace("#", "1"))
    if first is None or second is None:
        return None
    return first[0], first[1], second[0] - first[0]


def emit_qmd(path, table):
    out = ["// Generated by tools/nvgen/methods.py from open-gpu-doc's QMD headers; do not edit.",
           "// {low bit, bits, low bit of the upper part, its bits, shift, bits between instances}"]
    for klass, version, name, dwords in FORMATS:
        fields = table[klass, version]
        out.append(f"// cl{klass.lower()}qmd.h, {version}")
        out.append(f"constexpr QmdFormat {name}{{{dwords}, {{{{")
        for key, names in KEYS:
            row = "{}"
            for candidate in names:
                lower, _, upper = candidate.partition("+")
                low = find_field(fields, lower)
                if low is None:
                    continue
                high = find_field(fields, upper) if upper else (0, 0, 0)
                shift = SHIFTS.get(key, 0)
                if "SHIFTED" in lower and not lower.endswith("SHIFTED"):
                    shift = int(lower.rsplit("SHIFTED", 1)[1])
                row = f"{{{low[0]}, {low[1]}, {high[0]}, {high[1]}, {shift}, {low[2]}}}"
                break
            out.append(f"    {row},  // {key[1:]}")
        out.append("}}};")
    write(path, out)


def write(path, lines):
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    facts = sys.argv[1]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(root, "drivers", "nv", "methods")
    emit_methods(os.path.join(out, "methods.gen.inc"),
                 read_methods(os.path.join(facts, "nv-methods.csv")))
    emit_qmd(os.path.join(out, "qmd.gen.inc"), read_fields(os.path.join(facts, "nv-qmd-fields.csv")))
    print("\n".join(f"  {key}," for key, _ in KEYS))


if __name__ == "__main__":
    main()
