#include "tensorizer_ops/version.h"

namespace tensorizer {

std::string_view version() noexcept { return kVersion; }

}  // namespace tensorizer
