// Environment variables.
#pragma once

#include <initializer_list>
#include <string>

namespace tensorizer {

// Returns an environment variable; empty if it is not set.
std::string environment(const char* name);
// Returns the first of these variables that is set and not empty.
std::string environment(std::initializer_list<const char*> names);

}  // namespace tensorizer
