// Opens sources and sinks by URI, and lists the schemes that this build supports.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "io/option.h"
#include "io/options.h"
#include "io/shared_sink.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Opens what `uri` names: a plain path ("~" is expanded), or a URI of a scheme in the table.
// Throws InvalidArgument for a malformed URI, for an unknown scheme (the message lists the known
// ones), and for an exclusive option of another folder.
std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel);

// Opens the bundle of a file or folder, which need not be signed itself. The options are for
// `signed_uri`: another server gets no headers with secrets of its server. Throws InvalidArgument
// for a pipe, to which nobody may ever write; otherwise like open_source().
std::unique_ptr<Source> open_bundle_file(const std::string& uri, const std::string& signed_uri,
                                         const SourceOptions& options, Cancel& cancel);

// Returns in which form the names that are signed count from a folder: an absolute path, or a URI
// without parameters and escapes, with the server that is connected to. It is the same for all ways
// to write one, except for ".." in paths, which may follow symbolic links. It is not for messages,
// which show without_secrets() of what was given. Throws InvalidArgument for a malformed URI.
std::string signed_path(const std::string& uri);

// Returns the URI of the file `name` beside the one that `uri` names, which open_source() takes
// with the same options; null if files of that scheme have no others beside them (descriptors,
// Redis). `name` must have no slash. Throws InvalidArgument if `uri` and `given` give access to one
// file only (a signed URL).
std::optional<std::string> sibling_uri(const std::string& uri, const std::string& name,
                                       const OptionList& given);

// Returns whether files of that scheme have others beside them.
bool has_siblings(const std::string& uri);

// Returns the name of the file that `uri` names in its folder or bucket, where others may be saved
// beside it; null for streams, devices and descriptors, and for schemes that cannot do that. The
// file need not exist.
std::optional<std::string> file_name_of(const std::string& uri);

// Returns whether a text is a URI, of a scheme that may be unknown, and no plain path. Throws
// InvalidArgument for what was meant as a URI and is none: without slashes, or with spaces, quotes
// or bytes that are not ASCII in front of the colon.
bool is_uri(std::string_view text);

// Returns whether `uri` names something on this machine.
bool is_local(const std::string& uri);

// Returns false if `uri` leads to another file of this machine than the one that `source` reads, or
// if another user may have made that, or a link on the way to it: he can change it.
bool is_own_file(const std::string& uri, const Source& source);

// Removes one file, if it exists (of a symbolic link, itself). Throws PermissionDenied if that is
// not allowed, SystemError (EISDIR) for a folder of this machine, and InvalidArgument for a stream,
// a device, a descriptor and a file of the Hub.
void remove_file(const std::string& uri, const SinkOptions& options, Cancel& cancel);

// Replaces a small file by `next`, if what is there is `known`, or if nothing is there and `known`
// is null. Returns whether `next` is there now: of several callers that know the same and write
// different bytes, one gets true, as far as the server of the file heeds "If-Match" and
// "If-None-Match". Throws InvalidArgument for more than 16 MiB, and where files cannot be replaced,
// or, on this machine, locked.
bool swap_file(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
               const SinkOptions& options, Cancel& cancel);

// Returns the URIs of all files in the folder `uri` whose names end with `suffix`, sorted; null if
// `uri` is no folder of this machine.
std::optional<std::vector<std::string>> files_in(const std::string& uri, std::string_view suffix,
                                                 Cancel& cancel);

// Opens `uri` for writing; otherwise like open_source(). Creates missing parent directories of a
// file.
std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options, Cancel& cancel);

// Opens `uri` for several processes to write; otherwise like open_sink(). `joined` is what share()
// has returned in another process, and null in the first one. Throws InvalidArgument if that cannot
// be done there.
std::unique_ptr<SharedSink> open_shared_sink(const std::string& uri,
                                             const std::optional<std::string>& joined,
                                             const SinkOptions& options, Cancel& cancel);

// Returns the options of all folders of io. Each one checks its value as its own folder does,
// whichever URI is opened, and appends its name and text to `given`, to which it keeps a reference.
std::vector<Option> place_options(OptionList& given);

// Returns every scheme with the folder of io that serves it, for example {"https", "http"}. The
// scheme of a plain path is empty.
std::vector<std::pair<std::string_view, std::string_view>> scheme_folders();

// Returns the folder of io that serves `uri`; empty if the scheme is unknown.
std::string_view folder_of(std::string_view uri);

}  // namespace tensorizer
