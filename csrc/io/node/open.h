// What is fetched from servers, shared among the processes of a machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "io/option.h"
#include "io/source.h"

namespace tensorizer {

struct NodeOptions {
  std::string folder;  // empty if nothing is shared
};

// Returns options that set the members of `options`. They keep a reference to it.
std::vector<Option> node_options(NodeOptions& options);

// Returns a source that fetches from `file`, which is on a server, the blocks that no process with
// the same folder, name and version of the file has fetched. Throws InvalidArgument if the server
// does not tell the version.
std::unique_ptr<Source> node_source(std::shared_ptr<Source> file, const std::string& folder,
                                    const std::string& name, Cancel& cancel);

}  // namespace tensorizer
