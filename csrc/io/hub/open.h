// Opens files of the Hugging Face Hub; see docs/remote.md.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "io/http/endpoint.h"
#include "io/hub/options.h"
#include "io/place_kind.h"

namespace tensorizer {

extern const PlaceKind hub_files;  // hf://org/model@revision/file

struct HubName {
  std::string repository;  // "org/model", or "datasets/org/name"
  std::string revision;    // a branch, a tag or a commit
  std::string file;
};

// The commits of revisions that are in use. All files of a model are read from the commit of the
// first. Thread-safe.
class HubCommits {
 public:
  // Returns the commit of a revision if it is known, and otherwise the revision.
  std::string of(const HubName& name);
  // Keeps the first commit that is learned of a revision.
  void learn(const HubName& name, const std::string& commit);

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> commits_;
};

// Returns the endpoint of a file. It sends a token to the Hub, and none to the servers that the Hub
// redirects to.
std::unique_ptr<HttpEndpoint> hub_endpoint(const HubName& name, const HubOptions& options,
                                           const HttpOptions& http,
                                           std::shared_ptr<HubCommits> commits);

}  // namespace tensorizer
