// Opens files in Redis. The bytes of a file are in keys `PREFIX:NAME:OFFSET`; see docs/format.md.
#pragma once

#include <memory>
#include <string>

#include "base/cancel.h"
#include "io/options.h"
#include "io/place_kind.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

extern const PlaceKind redis_files;  // redis://, rediss:// and unix://

// How long Sink::abort() tries to remove what was written: normally, and after a cancel, when the
// caller waits for it. Tests change them.
struct RedisAbortSeconds {
  double usual;
  double hurried;
};
extern RedisAbortSeconds redis_abort_seconds;

// `uri`: redis://[user:password@]host[:port]/prefix, the same with rediss://, or
// unix://[user:password@]/path/to/socket?prefix=PREFIX; see docs/remote.md.
std::unique_ptr<Source> open_redis_source(const std::string& uri, const SourceOptions& options,
                                          Cancel& cancel);
std::unique_ptr<Sink> open_redis_sink(const std::string& uri, const SinkOptions& options,
                                      Cancel& cancel);

}  // namespace tensorizer
