#include "engine/rewrite/sign_files.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/move/workers.h"
#include "io/places/open.h"
#include "io/signed/shards_source.h"
#include "trust/sign.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kSmallestShard = 1 << 20;
// A bundle takes about 210 bytes for each shard: 8 MB for 16 GB in the smallest ones.
constexpr std::uint64_t kMostShards = 16 << 10;
constexpr std::uint64_t kPiece = 4 << 20;  // of a file that is signed in whole

// A file, and its digests.
struct Hashed {
  std::unique_ptr<Source> source;
  std::uint64_t size;
  std::vector<Sha256Digest> digests;
};

// A part of a file that one thread hashes.
struct Part {
  Hashed* file;
  std::uint64_t first;  // digest
  std::uint64_t count;
};

std::uint64_t usual_shard(std::uint64_t size) {
  return std::max(std::bit_ceil((size + kMostShards - 1) / kMostShards), kSmallestShard);
}

Sha256Digest hash_whole(Hashed& file, Progress& progress, Cancel& cancel) {
  Sha256 hash;
  std::vector<std::byte> bytes(std::min(kPiece, file.size));
  for (std::uint64_t at = 0; at < file.size; at += bytes.size()) {
    const Bytes piece = Bytes(bytes).first(std::min<std::uint64_t>(bytes.size(), file.size - at));
    file.source->read(at, {&piece, 1}, cancel);
    hash.update(piece);
    progress.done += piece.size();
  }
  return hash.finish();
}

void hash_part(const Part& part, std::uint64_t shard, Progress& progress, Cancel& cancel) {
  const std::uint64_t begin = part.first * shard;
  std::vector<std::byte> bytes(std::min(part.count * shard, part.file->size - begin));
  const Bytes piece(bytes);
  part.file->source->read(begin, {&piece, 1}, cancel);
  hash_shards({&piece, 1}, shard, std::span(part.file->digests).subspan(part.first, part.count));
  progress.done += bytes.size();
}

}  // namespace

std::string sign_files(const SignRequest& request, const PrivateKey& key,
                       std::span<const Certificate> chain, Progress& progress, Cancel& cancel) {
  std::vector<Hashed> files;
  std::uint64_t total = 0;
  for (const SignRequest::File& file : request.files) {
    std::unique_ptr<Source> source = open_source(file.uri, request.source, cancel);
    const std::optional<std::uint64_t> size = source->size();
    if (!size || source->sequential()) {
      throw Error(ErrorKind::InvalidArgument,
                  source->label() +
                      " cannot be signed: its size is unknown, or it can be read "
                      "only once");
    }
    total += *size;
    files.push_back({std::move(source), *size, {}});
  }
  progress.total = total;
  const std::uint64_t shard = request.shard_size.value_or(usual_shard(total));
  const std::uint64_t together = shard == 0 ? 1 : std::max<std::uint64_t>(kPiece / shard, 1);
  std::vector<Part> parts;
  for (Hashed& file : files) {
    file.digests.resize(shard == 0 ? 1 : align_up(file.size, shard) / shard);
    for (std::uint64_t first = 0; first < file.digests.size(); first += together) {
      parts.push_back(
          {&file, first, std::min<std::uint64_t>(together, file.digests.size() - first)});
    }
  }
  for_each_number(parts.size(), request.threads, cancel, [&](std::size_t i) {
    if (shard > 0) return hash_part(parts[i], shard, progress, cancel);
    parts[i].file->digests[0] = hash_whole(*parts[i].file, progress, cancel);
  });
  std::vector<FileToSign> to_sign;
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].source->confirm(cancel);
    to_sign.push_back(
        {request.files[i].name, files[i].size, std::as_bytes(std::span(files[i].digests))});
  }
  return sign_bundle(
      {.name = request.model, .files = to_sign, .shard_size = shard, .ignored = request.ignored},
      key, chain);
}

}  // namespace tensorizer
