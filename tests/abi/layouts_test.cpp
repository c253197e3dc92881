// Layouts of the nvidia kernel interface against layouts.csv, release by release.
//
// layouts.csv was written by a C compiler from NVIDIA's headers (tools/abigen/from_headers.py, tags
// of open-gpu-kernel-modules); its rows of 610.43.03 by hand from published tables. What the GSP is
// asked stands there for its firmware alone (570.144), compiled from the kernel module's own
// headers. The product's tables come from another extraction.

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drivers/nv/abi/abi.h"

namespace bm::nv::abi {
namespace {

struct Truth {
  std::string structure;
  std::vector<std::string> releases;
  uint32_t size = 0;
  std::map<std::string, std::pair<uint32_t, uint32_t>> fields;  ///< offset, bytes; 0 bytes: absent
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::vector<Truth> read_truth() {
  std::ifstream file("tests/abi/layouts.csv");
  std::vector<Truth> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = split(line, ',');
    Truth row{.structure = cells.at(0),
              .releases = split(cells.at(1), ' '),
              .size = static_cast<uint32_t>(std::stoul(cells.at(2))),
              .fields = {}};
    for (const std::string& cell : split(cells.at(3), ' ')) {
      const std::vector<std::string> parts = split(cell, ':');
      if (parts.at(1) == "-")
        row.fields[parts[0]] = {0, 0};
      else
        row.fields[parts[0]] = {std::stoul(parts.at(1)), std::stoul(parts.at(2))};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Which structure of ours is which of NVIDIA's, with its fields in our order.
struct Used {
  StructId id;
  std::string vendor;
  std::vector<std::string> fields;
};

std::vector<Used> read_used() {
  std::ifstream file("tools/abigen/structs.txt");
  std::vector<Used> used;
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() != 3) continue;
    std::istringstream vendor(cells[1]), fields(cells[2]);
    Used row{.id = static_cast<StructId>(used.size()), .vendor = {}, .fields = {}};
    vendor >> row.vendor;
    for (std::string field; fields >> field;) row.fields.push_back(field);
    used.push_back(std::move(row));
  }
  return used;
}

/// What the compiler says sizeof(field) is, as our place of it would have it.
bool covers(const FieldPlace& place, uint32_t bytes) {
  return place.bytes == bytes || place.bytes * place.count == bytes;
}

TEST(Layouts, AgreeWithTheHeadersInEveryRelease) {
  const std::vector<Used> used = read_used();
  ASSERT_EQ(used.size(), kStructCount);
  std::map<std::string, const Used*> by_vendor;
  for (const Used& row : used) by_vendor[row.vendor] = &row;
  size_t compared = 0;
  std::map<std::string, size_t> structures_of;
  for (const Truth& truth : read_truth()) {
    ASSERT_TRUE(by_vendor.contains(truth.structure)) << truth.structure;
    const Used& mine = *by_vendor[truth.structure];
    for (const std::string& release : truth.releases) {
      SCOPED_TRACE(truth.structure + " in " + release);
      const Result<Version> version = parse_version(release);
      ASSERT_TRUE(version) << version.error().message;
      const Result<Abi> abi = Abi::create(*version);
      ASSERT_TRUE(abi) << abi.error().message;
      const Layout& layout = abi->layout(mine.id);
      EXPECT_EQ(layout.size, truth.size);
      ASSERT_EQ(layout.fields.size(), mine.fields.size());
      for (size_t i = 0; i < mine.fields.size(); ++i) {
        const auto found = truth.fields.find(mine.fields[i]);
        if (found == truth.fields.end()) continue;
        const auto [offset, bytes] = found->second;
        const FieldPlace& place = layout.fields[i];
        if (bytes == 0) {
          EXPECT_EQ(place.bytes, 0) << mine.fields[i];
          continue;
        }
        EXPECT_EQ(place.offset, offset) << mine.fields[i];
        EXPECT_TRUE(covers(place, bytes)) << mine.fields[i] << " has " << bytes << " bytes";
        ++compared;
      }
      ++structures_of[release];
    }
  }
  EXPECT_GE(structures_of.size(), 18u);
  const std::string firmware = "570.144";
  EXPECT_EQ(structures_of[firmware], kStructCount);
  const auto gsp_only = static_cast<size_t>(StructId::kRpcRmAlloc);
  for (const auto& [release, count] : structures_of)
    EXPECT_TRUE(release == "610.43.03" || release == firmware || count == gsp_only) << release;
  EXPECT_GT(compared, 3000u);
}

TEST(Layouts, FieldsLieApartAndInside) {
  for (const Layout& layout : layouts()) {
    std::vector<int> owner(layout.size, -1);
    for (size_t i = 0; i < layout.fields.size(); ++i) {
      const FieldPlace& place = layout.fields[i];
      for (uint32_t k = 0; k < place.count; ++k)
        for (uint32_t b = 0; b < place.bytes; ++b) {
          const size_t at = place.offset + k * place.stride + b;
          ASSERT_LT(at, layout.size) << "structure " << int(layout.id) << " field " << i;
          ASSERT_EQ(owner[at], -1) << "structure " << int(layout.id) << " fields " << owner[at]
                                   << " and " << i << " at " << at;
          owner[at] = static_cast<int>(i);
        }
    }
  }
}

TEST(Layouts, ReleasesAreInOrderAndStartAtTheOldest) {
  const Layout* before = nullptr;
  std::vector<bool> seen(kStructCount);
  for (const Layout& layout : layouts()) {
    if (before != nullptr && before->id == layout.id)
      EXPECT_LT(before->since, layout.since);
    else
      EXPECT_EQ(layout.since, kOldestKnown) << int(layout.id);
    seen[static_cast<size_t>(layout.id)] = true;
    before = &layout;
  }
  for (size_t i = 0; i < kStructCount; ++i) EXPECT_TRUE(seen[i]) << i;
}

}  // namespace
}  // namespace bm::nv::abi
