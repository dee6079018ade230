// Advice for the error about a path that names no file.
#pragma once

#include <string>

namespace tensorizer {

// Returns the names beside it that were probably meant, as did_you_mean() does; or else where a
// relative path was looked for, or that it may be the name of a model on the Hugging Face Hub.
std::string advice_on_missing(const std::string& path);

}  // namespace tensorizer
