// What a caller may say about where bytes come from and go to.
#pragma once

namespace tensorizer {

struct SourceOptions {};

struct SinkOptions {
  // Wait until the bytes, and the name, are on stable storage.
  bool fsync = false;
};

}  // namespace tensorizer
