// Opens sources and sinks by URI, and lists the schemes that this build supports.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "io/option.h"
#include "io/options.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

// Opens what `uri` names: a plain path ("~" is expanded), or a URI of a scheme in the table.
// Throws InvalidArgument for a malformed URI, for an unknown scheme (the message lists the known
// ones), and for an exclusive option of another folder.
std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel);

// Opens `uri` for writing; otherwise like open_source(). Creates missing parent directories of a
// file.
std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options, Cancel& cancel);

// Returns the options of all folders of io. Each one checks its value as its own folder does,
// whichever URI is opened, and appends its name and text to `given`, to which it keeps a reference.
std::vector<Option> place_options(OptionList& given);

// Returns every scheme with the folder of io that serves it, for example {"https", "http"}. The
// scheme of a plain path is empty.
std::vector<std::pair<std::string_view, std::string_view>> scheme_folders();

// Returns the folder of io that serves `uri`; empty if the scheme is unknown.
std::string_view folder_of(std::string_view uri);

}  // namespace tensorizer
