// The names that other libraries have for options of this one.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

// Returns the option here that does what `name` does in boto3, fsspec, polars and others; empty if
// none is known.
std::string_view our_option(std::string_view name);

}  // namespace tensorizer
