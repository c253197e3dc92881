#pragma once
// Names of several devices in one text, for models that are divided among them.

#include <string>
#include <string_view>
#include <vector>

namespace bm::runtime {

/// Names separated by ',' or ';': "AMD:0,AMD:1". A comma that no name of a device or interface
/// follows belongs to one name ("PCI:0,1+AMD"). Nothing is opened; one name at least, "" of "".
std::vector<std::string> device_list(std::string_view text);

}  // namespace bm::runtime
