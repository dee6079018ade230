#include "io/signed/open.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/gate.h"
#include "codec/hmac.h"
#include "io/missing.h"
#include "io/secret.h"
#include "io/signed/one_pass_source.h"
#include "io/signed/policy_name.h"
#include "io/signed/signed_source.h"
#include "io/uri.h"
#include "trust/bundle.h"

namespace tensorizer {

namespace {

constexpr std::string_view kBundleSuffix = ".sig";
constexpr const char* kModelBundle = "model.sig";
// A shard that a read takes a little of is read in whole, and must fit into memory. Larger ones are
// hashed in one pass over the file.
constexpr std::uint64_t kLargestShard = 64 << 20;
// A file of up to this size may be one shard, which stays in memory: a model may have many files.
constexpr std::uint64_t kLargestFile = 16 << 20;

std::string last_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Only for those who redact quotes of what a server has sent.
std::vector<std::byte> bundle_bytes(Source& file, Cancel& cancel) {
  constexpr std::size_t kMost = kMostBundleBytes + 1;  // what is larger is refused by its size
  std::vector<std::byte> bytes;
  // One read, and no copy, of a file whose size is known.
  std::uint64_t step = std::max<std::uint64_t>(file.size().value_or(0) + 1, 1 << 20);
  for (; bytes.size() < kMost; step *= 2) {
    const std::size_t have = bytes.size();
    bytes.resize(std::min<std::uint64_t>(have + step, kMost));
    const std::size_t got = file.read_up_to(have, Bytes(bytes).subspan(have), cancel);
    const bool is_end = have + got < bytes.size();
    bytes.resize(have + got);
    if (is_end) break;
  }
  check_bundle_size(bytes.size(), file.label());
  return bytes;
}

// The bundle of a job, which is read once.
class JobBundle {
 public:
  const Manifest& manifest(const std::string& uri, const SignedOptions& options,
                           const Neighbours& neighbours, Cancel& cancel) {
    const Gate::Entry one_reads(gate_, std::this_thread::get_id(), cancel);
    if (!manifest_) read(uri, options, neighbours, cancel);
    return *manifest_;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const ManifestFile& file : manifest_->files) names.push_back(file.name);
    return names;
  }

  // Returns what the bundle says of the file with this path. Throws Crypto if that is nothing.
  const ManifestFile* find(std::string name, const std::string& label) const {
    if (name.starts_with(folder_)) {
      name.erase(0, folder_.size());
    } else if (is_given_) {
      throw Error(ErrorKind::Crypto,
                  label + ": it is not in the folder that was signed, " + shown_folder_);
    } else if (manifest_->files.size() == 1) {
      name = last_of(name);
    } else {
      throw Error(ErrorKind::Crypto,
                  label + ": it is in another folder than its bundle, " + label_ +
                      ", which lists several files by their names from there: the option "
                      "'signed_folder' names the folder that was signed");
    }
    if (const ManifestFile* const file = manifest_->find(name)) return file;
    throw Error(ErrorKind::Crypto, label + ": it is not signed: " + label_ + ", signed by " +
                                       manifest_->signer + ", has no " +
                                       quote(key_without_secrets(name), 4096) + " among its " +
                                       std::to_string(manifest_->files.size()) + " files");
  }

 private:
  void read(const std::string& uri, const SignedOptions& options, const Neighbours& neighbours,
            Cancel& cancel) {
    const Policy policy = policy_in(options);
    const std::unique_ptr<Source> file = open(uri, options, neighbours);
    label_ = file->label();
    manifest_ = std::make_unique<const Manifest>(read_bundle(*file, policy, cancel));
  }

  std::unique_ptr<Source> open(const std::string& uri, const SignedOptions& options,
                               const Neighbours& neighbours) {
    is_given_ = !options.signed_folder.empty();
    shown_folder_ = quote(without_secrets(options.signed_folder), 4096);
    const auto open = [&](const std::string& bundle) {
      folder_ = neighbours.path(is_given_ ? options.signed_folder : bundle);
      folder_.erase((is_given_ ? folder_.find_last_not_of('/') : folder_.rfind('/')) + 1);
      if (is_given_) folder_ += '/';
      return neighbours.open(bundle);
    };
    if (!options.signature.empty()) return open(options.signature);
    const std::string own = last_of(neighbours.path(uri)) + std::string(kBundleSuffix);
    for (const std::string& name : {own, std::string(kModelBundle)}) {
      const std::optional<std::string> bundle = neighbours.sibling(name);
      if (!bundle) break;
      try {
        return open(*bundle);
      } catch (const Error& error) {
        if (!may_not_exist(error)) throw;
      }
    }
    throw Error(ErrorKind::Crypto,
                quote(without_secrets(uri), 4096) + ": it is not signed: there is neither " +
                    quote(key_without_secrets(own), 4096) + " nor " + quote(kModelBundle) +
                    " beside it, and no option 'signature' names a bundle elsewhere");
  }

  Gate gate_{"the bundle is being read on this thread"};
  std::string folder_;  // from which names count, with '/' behind it
  bool is_given_ = false;
  std::string shown_folder_;  // for messages, if it is given
  std::string label_;
  std::unique_ptr<const Manifest> manifest_;
};

std::shared_ptr<JobBundle> make_bundle() { return std::make_shared<JobBundle>(); }

}  // namespace

std::vector<Option> signed_options(SignedOptions& options) {
  Option trust{"trust", kPolicyNames, [&options](const std::string&, const std::string& text) {
                 if (!names_policy(text)) return false;
                 options.trust = text;
                 return true;
               }};
  trust.use = OptionUse::Load;
  trust.secret = true;  // somebody may give the text of a key
  trust.names_secret = [](std::string_view value) { return names_policy(value); };
  Option signature = text_option("signature", "the URI of a bundle", options.signature);
  signature.use = OptionUse::Load;
  Option folder = text_option("signed_folder", "the folder that was signed", options.signed_folder);
  folder.use = OptionUse::Load;
  Option subject{"subject", "a root digest: 64 hexadecimal digits",
                 [&options](const std::string&, const std::string& text) {
                   Sha256Digest digest;
                   if (!from_hex(text, digest)) return false;
                   options.subject = digest;
                   return true;
                 }};
  subject.use = OptionUse::Load;
  Option hash_first = bool_option("hash_first", options.hash_first);
  hash_first.use = OptionUse::Load;
  return {trust, signature, folder, subject, hash_first};
}

SignedOptions signed_options_in(const OptionList& given) {
  SignedOptions options = options_from(given, &signed_options);
  if (options.trust.empty() && (!options.signature.empty() || !options.signed_folder.empty() ||
                                options.subject || options.hash_first)) {
    throw Error(ErrorKind::InvalidArgument,
                "options 'signature', 'signed_folder', 'subject' and 'hash_first' are for loads "
                "with the option 'trust'");
  }
  return options;
}

Policy policy_in(const SignedOptions& options) {
  Policy policy = *resolve_policy(options.trust);
  if (!options.subject) return policy;
  if (policy.subject && policy.subject != options.subject) {
    throw Error(ErrorKind::InvalidArgument,
                "option 'subject' is another root digest than that of the policy");
  }
  policy.subject = options.subject;
  return policy;
}

Manifest read_bundle(Source& file, const Policy& policy, Cancel& cancel) {
  const RedactedQuotes quotes(file);
  return open_bundle(bundle_bytes(file, cancel), policy, file.label());
}

std::vector<std::byte> read_sigstore_bundle(Source& file, Cancel& cancel) {
  const RedactedQuotes quotes(file);
  std::vector<std::byte> bytes = bundle_bytes(file, cancel);
  check_sigstore_bundle(bytes, file.label());
  return bytes;
}

std::unique_ptr<Source> signed_source(std::shared_ptr<Source> file, const std::string& uri,
                                      const SignedOptions& options,
                                      const std::shared_ptr<SharedAccess>& access,
                                      const Neighbours& neighbours, Cancel& cancel) {
  const std::optional<std::uint64_t> size = file->size();
  if (!size || file->sequential() || file->start() != 0) {
    throw Error(ErrorKind::Crypto,
                file->label() +
                    ": option 'trust' needs a file whose size is known and that can be "
                    "read at any offset");
  }
  const std::shared_ptr<JobBundle> bundle =
      access ? access->get<JobBundle>(&make_bundle) : make_bundle();
  const Manifest& manifest = bundle->manifest(uri, options, neighbours, cancel);
  const ManifestFile& listed = *bundle->find(neighbours.path(uri), file->label());
  const bool in_shards = manifest.in_shards();
  Sha256 content;  // because the root digest is not that of the names
  content.update(manifest.digests_of(listed));
  const std::uint64_t shard_size = in_shards ? manifest.shard_size : *size;
  SignedShards shards{in_shards ? listed.size : *size,
                      shard_size,
                      manifest.digests_of(listed),
                      bundle,
                      manifest.signer,
                      to_hex(manifest.root) + '\n' + listed.name + ' ' + to_hex(content.finish())};
  if (*size <= kLargestFile || (in_shards && shard_size <= kLargestShard)) {
    return std::make_unique<SignedSource>(std::move(file), std::move(shards));
  }
  auto source = std::make_unique<OnePassSource>(std::move(file), std::move(shards));
  if (options.hash_first) source->confirm(cancel);
  return source;
}

std::vector<std::string> signed_names(SharedAccess& access) {
  return access.get<JobBundle>(&make_bundle)->names();
}

}  // namespace tensorizer
