// Sources and sinks on this machine, and the choice between them: a regular file or a block device
// is read and written at any offset, everything else that gives or takes bytes is a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/descriptor.h"
#include "io/options.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// `uri`: a plain path ("~" is expanded), file:// or fd:N.
std::unique_ptr<Source> open_local_source(const std::string& uri, const SourceOptions& options,
                                          Cancel& cancel);
std::unique_ptr<Sink> open_local_sink(const std::string& uri, const SinkOptions& options,
                                      Cancel& cancel);

// A source over a regular file or a block device.
std::unique_ptr<Source> file_source(Descriptor file, std::uint64_t start, const std::string& name);

// A source that gives its bytes once, in order.
std::unique_ptr<Source> stream_source(Descriptor stream, const std::string& name);

// A sink that replaces the file `path` (no symbolic link itself) when it is finished. Null when the
// folder does not let the process put files in it, but has a file there that can be written.
std::unique_ptr<Sink> replacing_sink(const std::string& path, const SinkOptions& options);

// What is to be done with a target that is written in place once all its bytes are in it.
enum class InPlaceEnd : std::uint8_t {
  Cut,           // the file ends behind the last byte
  MovePosition,  // the position that the descriptor's other holders see stands behind the last byte
  Nothing,
};

std::unique_ptr<Sink> in_place_sink(Descriptor file, std::uint64_t start, InPlaceEnd end,
                                    const std::string& name, const SinkOptions& options);

// A sink that takes its bytes in order. `non_blocking`: the descriptor has O_NONBLOCK set, so that
// no write on it waits.
std::unique_ptr<Sink> stream_sink(Descriptor stream, bool non_blocking, const std::string& name);

}  // namespace tensorizer
