// Names that the wrappers of a module change.
#pragma once

#include <string>
#include <vector>

namespace tensorizer {

// Returns a line that names the wrapper if a name of `missing`, which the file lacks, and one of
// `unexpected`, which only the file has, differ by it alone: DistributedDataParallel and
// DataParallel put "module." before all names, and torch.compile "_orig_mod.". Returns an empty
// string if there are no such names.
std::string wrapper_hint(const std::vector<std::string>& missing,
                         const std::vector<std::string>& unexpected);

}  // namespace tensorizer
