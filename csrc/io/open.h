// The places that this build knows, by the schemes of their URIs.
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
// Throws InvalidArgument for a URI that is malformed or of an unknown scheme, listing the known
// ones, and for an option that the place must not pass over.
std::unique_ptr<Source> open_source(const std::string& uri, const SourceOptions& options,
                                    Cancel& cancel);

// The same for writing. The parent directories of a file are created where they are missing.
std::unique_ptr<Sink> open_sink(const std::string& uri, const SinkOptions& options, Cancel& cancel);

// The options of all places. Each checks its value as its place does, whichever place is opened,
// and appends its text to `given`, which is kept as a reference.
std::vector<Option> place_options(OptionList& given);

// Every scheme, and the folder of io that serves it: {"https", "http"}. A plain path has none.
std::vector<std::pair<std::string_view, std::string_view>> scheme_folders();

// The folder for `uri`; empty where its scheme is unknown.
std::string_view folder_of(std::string_view uri);

}  // namespace tensorizer
