// Opens sources and sinks on this machine. Regular files and block devices are read and written at
// any offset; FIFOs, sockets and character devices are streams.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/descriptor.h"
#include "io/options.h"
#include "io/place_kind.h"
#include "io/shared_sink.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

extern const PlaceKind local_files;        // plain paths and file://
extern const PlaceKind local_descriptors;  // fd:N

// `uri`: a plain path ("~" is expanded), file:// or fd:N.
std::unique_ptr<Source> open_local_source(const std::string& uri, const SourceOptions& options,
                                          Cancel& cancel);

// Returns the path of the file `name` beside the one that `uri`, a plain path or file://, names
// (sibling_uri() in io/places/open.h).
std::string local_sibling(const std::string& uri, const std::string& name, const OptionList& given);

// Returns the name of the file `uri` in its folder (file_name_of() in io/places/open.h); null for a
// stream, a device or a descriptor.
std::optional<std::string> local_file_name(const std::string& uri);

// Follows the symbolic links at the end of `path`. The result need not exist. Returns an empty
// string for a link in /proc: its target may have no name, or not the one that the link shows.
std::string follow_links(std::string path);

// Removes the file `uri`, if it exists (remove_file() in io/places/open.h).
void remove_local_file(const std::string& uri, const SinkOptions& options, Cancel& cancel);

// Replaces a small file (swap_file() in io/places/open.h).
bool swap_local_file(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
                     const SinkOptions& options, Cancel& cancel);

// Returns the files in the folder `uri` (files_in() in io/places/open.h).
std::optional<std::vector<std::string>> local_files_in(const std::string& uri,
                                                       std::string_view suffix, Cancel& cancel);

// Returns a source over a regular file or a block device.
std::unique_ptr<Source> file_source(Descriptor file, std::uint64_t start, const std::string& name,
                                    FileAccess access);

// Returns a sequential source.
std::unique_ptr<Source> stream_source(Descriptor stream, const std::string& name);

// Returns a sink that replaces `path`, and not what a link leads to, in finish(); null if there is
// a target that cannot be replaced (Replacement::create()).
std::unique_ptr<Sink> replacing_sink(const std::string& path, const SinkOptions& options);

// Does the same for a file that several processes write. `joined`: what share() has returned in
// another one.
std::unique_ptr<SharedSink> shared_file_sink(const std::string& path,
                                             const std::optional<std::string>& joined,
                                             const SinkOptions& options);

// What finish() does with a target that was written in place.
enum class InPlaceEnd : std::uint8_t {
  Cut,           // truncates the file behind the last byte
  MovePosition,  // moves the file position, which all copies of the descriptor share, to the end
  Nothing,
};

// Returns a sink that overwrites the file, from offset `start` on.
std::unique_ptr<Sink> in_place_sink(Descriptor file, std::uint64_t start, InPlaceEnd end,
                                    const std::string& name, const SinkOptions& options);

// Returns a sequential sink. `non_blocking`: the descriptor has O_NONBLOCK set, so that writes to
// it do not block.
std::unique_ptr<Sink> stream_sink(Descriptor stream, bool non_blocking, const std::string& name);

}  // namespace tensorizer
