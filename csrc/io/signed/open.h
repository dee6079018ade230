// Files whose bytes must be signed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "codec/sha256.h"
#include "io/option.h"
#include "io/options.h"
#include "io/source.h"
#include "trust/manifest.h"
#include "trust/policy.h"

namespace tensorizer {

struct SignedOptions {
  std::string trust;      // the name of a policy; empty if nothing must be signed
  std::string signature;  // the URI of the bundle; empty to look for it beside the file
  // The folder from which names in the bundle count; empty if that is the folder of the bundle.
  std::string signed_folder{};
  std::optional<Sha256Digest> subject{};  // the root digest that the bundle must have
  // Whether files that were signed in whole, or in large parts, are hashed before they are used.
  bool hash_first = false;
};

// Returns options that set the members of `options`. They keep a reference to it.
std::vector<Option> signed_options(SignedOptions& options);

// Returns these options of a load. Throws InvalidArgument for some that mean nothing without
// `trust`.
SignedOptions signed_options_in(const OptionList& given);

// Returns the policy that the options name, which trusts the model only that they pin.
Policy policy_in(const SignedOptions& options);

// Other files than the one that is opened.
struct Neighbours {
  // Opens a file, which need not be signed.
  std::function<std::unique_ptr<Source>(const std::string& uri)> open;
  // Returns the URI of the file of this name beside the one that is opened; null if there are none
  // beside it.
  std::function<std::optional<std::string>(const std::string& name)> sibling;
  // Returns a URI without its parameters and escapes, and the same for all ways to write the URI of
  // a file, so that the last part of it is the name of the file.
  std::function<std::string(const std::string& uri)> path;
};

// Reads a bundle, and checks that somebody whom the policy trusts has signed it. Throws what
// open_bundle() throws; messages quote nothing that was sent to the server of the file.
Manifest read_bundle(Source& file, const Policy& policy, Cancel& cancel);

// Returns the bytes of a bundle for a verifier of Sigstore, which nobody has verified. Throws what
// check_sigstore_bundle() throws, as read_bundle().
std::vector<std::byte> read_sigstore_bundle(Source& file, Cancel& cancel);

// Returns a source that gives only bytes of `file` which somebody has signed whom the options
// trust. The bundle is that of the option `signature`, else `uri` + ".sig", else "model.sig" beside
// the file, and is read once for all files with the same `access`. Throws Crypto if there is none,
// if nobody trusted has signed it, or if it does not list the file; HashMismatch for a file of
// another size, and InvalidArgument if the source can be read only once. A source of a file that
// was signed in whole, or in large parts, checks_at_end(), unless it is small or `hash_first` is
// set.
std::unique_ptr<Source> signed_source(std::shared_ptr<Source> file, const std::string& uri,
                                      const SignedOptions& options,
                                      const std::shared_ptr<SharedAccess>& access,
                                      const Neighbours& neighbours, Cancel& cancel);

// Returns the names of all files in the bundle that signed_source() has read with this `access`.
std::vector<std::string> signed_names(SharedAccess& access);

}  // namespace tensorizer
