// Opens block blobs in Azure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "io/azure/options.h"
#include "io/http/client.h"
#include "io/place_kind.h"

namespace tensorizer {

extern const PlaceKind azure_blobs;  // az://account/container/key

struct AzureName {
  std::string account;
  std::string container;
  std::string key;  // not escaped
};

// Returns the endpoint of a blob. It signs requests with the key of the account, or sends a token.
std::unique_ptr<HttpEndpoint> azure_endpoint(const AzureName& name, const AzureOptions& options,
                                             const HttpOptions& http);

inline constexpr const char* kBlockBlob = "x-ms-blob-type: BlockBlob";
inline constexpr const char* kBlobContentType = "x-ms-blob-content-type: application/octet-stream";
// Returns why a response to a PUT is not one of Azure's; empty if it is.
std::string fault_of_azure(const HttpAnswer& answer, std::string_view text);

// Returns a sink that uploads a blob in blocks, or in one request if it is small. `part_size` is
// for uploads whose size is not known in begin().
std::unique_ptr<Sink> azure_sink(HttpAccess access, std::uint64_t part_size);
// Does the same for a blob that several processes write. `joined`: what share() has returned in
// another one.
std::unique_ptr<SharedSink> shared_azure_sink(HttpAccess access,
                                              const std::optional<std::string>& joined);

}  // namespace tensorizer
