#include "base/environment.h"

#include <cstdlib>

namespace tensorizer {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

std::string environment(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (std::string value = environment(name); !value.empty()) return value;
  }
  return {};
}

}  // namespace tensorizer
