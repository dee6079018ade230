// Bytes as C libraries take them.
#pragma once

#include "base/bytes.h"

namespace tensorizer {

inline const unsigned char* raw(ConstBytes bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
inline unsigned char* raw(Bytes bytes) noexcept {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace tensorizer
