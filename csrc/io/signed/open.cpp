#include "io/signed/open.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "codec/hmac.h"
#include "io/missing.h"
#include "io/secret.h"
#include "io/signed/policy_name.h"
#include "io/signed/signed_source.h"
#include "io/uri.h"
#include "trust/bundle.h"

namespace tensorizer {

namespace {

constexpr std::string_view kBundleSuffix = ".sig";
constexpr const char* kModelBundle = "model.sig";
// A file that was signed in larger parts, or in whole, is read once before anything of it is given
// out, for digests of small ones: parts that a read takes a little of must fit into memory.
constexpr std::uint64_t kLargestShard = 64 << 20;
constexpr std::uint64_t kOwnShard = 1 << 20;

std::string last_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The bundle of a job, which is read once.
class JobBundle {
 public:
  const Manifest& manifest(const std::string& uri, const SignedOptions& options,
                           const Neighbours& neighbours, Cancel& cancel) {
    const std::lock_guard lock(mutex_);
    if (!manifest_) read(uri, options, neighbours, cancel);
    return *manifest_;
  }

  // Returns what the bundle says of the file with this path. Throws Crypto if that is nothing.
  const ManifestFile* find(std::string name, const std::string& label) const {
    const std::string folder = path_.substr(0, path_.rfind('/') + 1);
    if (name.starts_with(folder)) {
      name.erase(0, folder.size());
    } else if (manifest_->files.size() == 1) {
      name = last_of(name);
    } else {
      throw Error(ErrorKind::Crypto, label + ": it is in another folder than its bundle, " +
                                         label_ +
                                         ", which lists several files by their names from there");
    }
    if (const ManifestFile* const file = manifest_->find(name)) return file;
    throw Error(ErrorKind::Crypto, label + ": it is not signed: " + label_ + ", signed by " +
                                       manifest_->signer + ", has no " + quote(name, 4096) +
                                       " among its " + std::to_string(manifest_->files.size()) +
                                       " files");
  }

 private:
  void read(const std::string& uri, const SignedOptions& options, const Neighbours& neighbours,
            Cancel& cancel) {
    Policy policy = *resolve_policy(options.trust);
    if (options.subject) {
      if (policy.subject && policy.subject != options.subject) {
        throw Error(ErrorKind::InvalidArgument,
                    "option 'subject' is another root digest than that of the policy");
      }
      policy.subject = options.subject;
    }
    const std::unique_ptr<Source> file = open(uri, options, neighbours);
    label_ = file->label();
    manifest_ = std::make_unique<const Manifest>(read_bundle(*file, policy, cancel));
  }

  std::unique_ptr<Source> open(const std::string& uri, const SignedOptions& options,
                               const Neighbours& neighbours) {
    const auto open = [&](const std::string& bundle) {
      path_ = neighbours.path(bundle);
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
                    quote(own, 4096) + " nor " + quote(kModelBundle) +
                    " beside it, and no option 'signature' names a bundle elsewhere");
  }

  std::mutex mutex_;
  std::string path_;
  std::string label_;
  std::unique_ptr<const Manifest> manifest_;
};

// Returns the digests of small parts of a file that was signed in large ones, or in whole, after
// comparing those.
SignedShards read_whole(Source& file, std::uint64_t size, const Manifest& manifest,
                        const ManifestFile& listed, Cancel& cancel) {
  const ConstBytes wanted = manifest.digests_of(listed);
  const std::uint64_t region = manifest.in_shards() ? manifest.shard_size : size;
  const auto digests = std::make_shared<std::vector<Sha256Digest>>();
  std::vector<std::byte> bytes(std::min(kOwnShard, size));
  Sha256 large;
  std::size_t compared = 0;
  const auto compare = [&](std::uint64_t end) {
    const Sha256Digest found = std::exchange(large, Sha256()).finish();
    const ConstBytes expected = wanted.subspan(kSha256Size * compared++, kSha256Size);
    if (std::ranges::equal(found, expected)) return;
    const std::uint64_t begin = end == 0 ? 0 : (end - 1) / region * region;
    throw_other_bytes(file, begin, end, found, expected, manifest.signer);
  };
  for (std::uint64_t at = 0; at < size;) {
    const Bytes piece = Bytes(bytes).first(std::min<std::uint64_t>(bytes.size(), size - at));
    file.read(at, {&piece, 1}, cancel);
    Sha256 small;
    for (Bytes left = piece; !left.empty();) {
      const Bytes part = left.first(std::min<std::uint64_t>(left.size(), region - at % region));
      const Sha256Update updates[] = {{&large, part}, {&small, part}};
      sha256_update(updates);
      left = left.subspan(part.size());
      at += part.size();
      if (at % region == 0 || at == size) compare(at);
    }
    digests->push_back(small.finish());
  }
  if (size == 0) compare(0);  // which is not listed in shards
  return {size,    kOwnShard,       std::as_bytes(std::span(*digests)),
          digests, manifest.signer, to_hex(manifest.root)};
}

}  // namespace

std::vector<Option> signed_options(SignedOptions& options) {
  Option trust{"trust", kPolicyNames, [&options](const std::string&, const std::string& text) {
                 if (!names_policy(text)) return false;
                 options.trust = text;
                 return true;
               }};
  trust.use = OptionUse::Load;
  Option signature = text_option("signature", "the URI of a bundle", options.signature);
  signature.use = OptionUse::Load;
  Option subject{"subject", "a root digest: 64 hexadecimal digits",
                 [&options](const std::string&, const std::string& text) {
                   Sha256Digest digest;
                   if (!from_hex(text, digest)) return false;
                   options.subject = digest;
                   return true;
                 }};
  subject.use = OptionUse::Load;
  return {trust, signature, subject};
}

Manifest read_bundle(Source& file, const Policy& policy, Cancel& cancel) {
  constexpr std::size_t kMost = kMostBundleBytes + 1;  // what is larger is refused by its size
  std::vector<std::byte> bytes;
  for (std::size_t step = 1 << 20; bytes.size() < kMost; step *= 2) {
    const std::size_t have = bytes.size();
    bytes.resize(std::min(have + step, kMost));
    const std::size_t got = file.read_up_to(have, Bytes(bytes).subspan(have), cancel);
    const bool is_end = have + got < bytes.size();
    bytes.resize(have + got);
    if (is_end) break;
  }
  return open_bundle(bytes, policy, file.label());
}

std::unique_ptr<Source> signed_source(std::shared_ptr<Source> file, const std::string& uri,
                                      const SignedOptions& options,
                                      const std::shared_ptr<SharedAccess>& access,
                                      const Neighbours& neighbours, Cancel& cancel) {
  const std::optional<std::uint64_t> size = file->size();
  if (!size || file->sequential() || file->start() != 0) {
    throw Error(ErrorKind::InvalidArgument,
                file->label() +
                    ": option 'trust' needs a file whose size is known and that can be "
                    "read at any offset");
  }
  const auto make = [] { return std::make_shared<JobBundle>(); };
  const std::shared_ptr<JobBundle> bundle = access ? access->get<JobBundle>(make) : make();
  const Manifest& manifest = bundle->manifest(uri, options, neighbours, cancel);
  const ManifestFile& listed = *bundle->find(neighbours.path(uri), file->label());
  if (manifest.in_shards()) check_size(*file, listed.size, manifest.signer);
  const bool is_small = manifest.in_shards() && manifest.shard_size <= kLargestShard;
  SignedShards shards = is_small
                            ? SignedShards{*size,  manifest.shard_size, manifest.digests_of(listed),
                                           bundle, manifest.signer,     to_hex(manifest.root)}
                            : read_whole(*file, *size, manifest, listed, cancel);
  return std::make_unique<SignedSource>(std::move(file), std::move(shards));
}

}  // namespace tensorizer
