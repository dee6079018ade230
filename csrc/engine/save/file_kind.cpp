#include "engine/save/file_kind.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "engine/save/new_layout.h"
#include "io/key.h"

namespace tensorizer {

namespace {

// Returns the size of the chunks whose digests a file is to list; 0 if it lists none.
std::uint64_t listed_chunk(HashKinds hashes, const SaveOptions& options) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::InvalidArgument, why); };
  const bool encrypts = !options.key.empty();
  for (const auto& [name, is_given] : {std::pair("kdf", options.kdf.has_value()),
                                       std::pair("plain_digests", options.plain_digests)}) {
    if (!is_given || encrypts) continue;
    refuse("option '" + std::string(name) + "' is for encrypted files, and no key is given");
  }
  const char* const given = options.plain_digests ? "plain_digests" : "digest_chunk";
  if ((options.digest_chunk || options.plain_digests) && !hashes.chunked) {
    refuse("the option '" + std::string(given) +
           "' is given, and hashes asks for no digests of chunks: use 'chunked' or 'all+chunked'");
  }
  if (options.digest_chunk && encrypts && !options.plain_digests) {
    refuse(
        "the option 'digest_chunk' is given, and an encrypted file has the MACs of its chunks: "
        "leave it out, or see the option 'plain_digests'");
  }
  if (!hashes.chunked || (encrypts && !options.plain_digests)) return 0;
  return options.digest_chunk.value_or(kUsualChunk);
}

FileKind asked_kind(HashKinds hashes, std::optional<Metadata> metadata, const SaveOptions& options,
                    Cancel& cancel) {
  FileKind kind;
  kind.empty_metadata = metadata.has_value();
  kind.metadata = std::move(metadata).value_or(Metadata());
  kind.header.hashes = hashes;
  kind.data_digests = options.digests;
  kind.share = options.share.value_or(false);
  kind.chunk_size = listed_chunk(hashes, options);
  kind.chunk_hash = hashes.chunk_hash;
  if (options.key.empty()) return kind;
  if (hashes.crc32 && !hashes.sha256 && !hashes.chunked) {
    throw Error(ErrorKind::InvalidArgument,
                "hashes is 'crc32', but an encrypted file stores no CRC32, which would reveal "
                "something about the data: use 'sha256' or 'all', which store SHA-256, or "
                "'chunked', which relies on the MAC of each chunk");
  }
  kind.header.hashes.set(Hash::Crc32, false);
  const KeySource source = resolve_key(options.key);
  Encryption& encryption = kind.header.encryption.emplace();
  encryption.key = source.secret;
  if (source.derivation) encryption.derivation = *source.derivation;
  if (source.passphrase) {
    KeyDerivation& derivation = encryption.derivation.emplace();
    derivation.cost = options.kdf.value_or(*named_cost("moderate"));
    fill_random(derivation.salt);
    encryption.key = derive_key(source.secret->bytes(), derivation, cancel);
  }
  return kind;
}

}  // namespace

FileKind file_kind(Format format, HashKinds hashes, std::optional<Metadata> metadata,
                   const SaveOptions& options, Cancel& cancel) {
  return kind_in(format, asked_kind(hashes, std::move(metadata), options, cancel), cancel);
}

}  // namespace tensorizer
