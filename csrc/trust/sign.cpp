#include "trust/sign.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_string.h"
#include "base/utf8.h"
#include "codec/hmac.h"
#include "trust/bundle.h"
#include "trust/manifest.h"
#include "trust/statement.h"

namespace tensorizer {

namespace {

[[noreturn]] void cannot_sign(const std::string& why) {
  throw Error(ErrorKind::InvalidArgument, "cannot sign: " + why);
}

std::uint64_t digests_of_size(std::uint64_t size, std::uint64_t shard_size) {
  if (shard_size == 0) return 1;
  return size / shard_size + (size % shard_size > 0 ? 1 : 0);
}

Manifest manifest_to_sign(const ModelToSign& model) {
  Manifest manifest;
  if (model.name.empty() || !is_utf8(model.name)) {
    cannot_sign("the name " + quote(model.name) + " of the model is empty, or not UTF-8");
  }
  manifest.model = model.name;
  manifest.shard_size = model.shard_size;
  manifest.allow_symlinks = model.allow_symlinks;
  for (const std::string& path : model.ignored) {
    if (path.empty() || !is_utf8(path)) {
      cannot_sign("the ignored path " + quote(path) + " is empty, or not UTF-8");
    }
    manifest.ignored.push_back(path);
  }
  for (const FileToSign& file : model.files) {
    if (const char* const fault = fault_of_file_name(file.name)) {
      cannot_sign("the name " + quote(file.name) + " cannot be that of a file: " + fault);
    }
    const std::uint64_t count = digests_of_size(file.size, model.shard_size);
    if (file.size > INT64_MAX || file.digests.size() != count * kSha256Size) {
      cannot_sign("the file " + quote(file.name) + " of " + std::to_string(file.size) +
                  " bytes has " + std::to_string(file.digests.size()) + " bytes of digests");
    }
    if (count == 0) continue;
    manifest.files.push_back({std::string(file.name), file.size,
                              manifest.digests.size() / kSha256Size,
                              static_cast<std::size_t>(count)});
    manifest.digests.insert(manifest.digests.end(), file.digests.begin(), file.digests.end());
  }
  if (manifest.files.empty())
    cannot_sign("the model " + quote(model.name) + " has no files with data");
  std::ranges::sort(manifest.files, {}, &ManifestFile::name);
  const auto twice = std::ranges::adjacent_find(manifest.files, {}, &ManifestFile::name);
  if (twice != manifest.files.end()) {
    cannot_sign("the model has the file " + quote(twice->name) + " twice");
  }
  return manifest;
}

std::string material_of(const PrivateKey& key, std::span<const Certificate> chain) {
  if (chain.empty()) return R"({"publicKey":{"hint":")" + key.public_key().hint() + R"("}})";
  const Certificate& leaf = chain.front();
  if (!(leaf.key("cannot sign") == key.public_key())) {
    cannot_sign("the certificate of " + leaf.describe() + " is of another key");
  }
  if (const char* const fault = leaf.unusable()) {
    cannot_sign("the certificate of " + leaf.describe() + " must not sign models: " + fault);
  }
  std::string list;
  for (const Certificate& one : chain) {
    list +=
        (list.empty() ? R"({"rawBytes":")" : R"(,{"rawBytes":")") + to_base64(one.der()) + R"("})";
  }
  return R"({"x509CertificateChain":{"certificates":[)" + list + "]}}";
}

}  // namespace

std::string sign_bundle(const ModelToSign& model, const PrivateKey& key,
                        std::span<const Certificate> chain) {
  const std::string material = material_of(key, chain);
  const std::string payload = write_statement(manifest_to_sign(model));
  const std::vector<std::byte> signature =
      key.sign(as_bytes(signed_prefix(payload.size()) + payload));
  std::string bundle =
      R"({"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":)" +
      material + R"(,"dsseEnvelope":{"payload":")" + to_base64(as_bytes(payload)) +
      R"(","payloadType":")" + std::string(kPayloadType) + R"(","signatures":[{"sig":")" +
      to_base64(signature) + R"(","keyid":""}]}})";
  if (bundle.size() > kMostBundleBytes) {
    cannot_sign("the bundle has more than 256 MiB; choose larger shards");
  }
  return bundle;
}

}  // namespace tensorizer
