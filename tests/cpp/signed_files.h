// Files that are stored where others can change them, and what was signed of them.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "codec/hmac.h"
#include "io/signed/signed_source.h"
#include "io_support.h"
#include "tensorizer_ops/trust.h"
#include "trust/sign.h"
#include "trust_support.h"

namespace tensorizer::testing_support {

constexpr std::uint64_t kShard = 64;

inline std::vector<Sha256Digest> digests_of(const std::string& text, std::uint64_t shard) {
  std::vector<Sha256Digest> digests;
  for (std::size_t at = 0; at < text.size(); at += std::min<std::uint64_t>(shard, text.size())) {
    digests.push_back(sha256(as_bytes(std::string_view(text).substr(at, shard))));
  }
  return digests;
}

// A file that anybody may have changed, and that knows what was read of it.
class Stored final : public Source {
 public:
  explicit Stored(std::string bytes) : text(std::move(bytes)) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t size = total_size(pieces);
    {
      const std::lock_guard lock(mutex_);
      reads_.emplace_back(offset, size);
    }
    if (before) before(offset, size, cancel);
    ASSERT_LE(offset + size, text.size());
    for (const Bytes piece : pieces) {
      std::memcpy(piece.data(), text.data() + offset, piece.size());
      offset += piece.size();
    }
  }
  std::size_t read_up_to(std::uint64_t, Bytes, Cancel&) override {
    throw std::logic_error("only whole shards are read");
  }
  bool read_anew(std::uint64_t offset, Bytes out, Cancel&) override {
    if (anew.empty()) return false;
    ++times_anew;
    std::memcpy(out.data(), anew.data() + offset, out.size());
    return true;
  }
  std::optional<std::uint64_t> size() const override {
    return known_size ? std::optional(text.size()) : std::nullopt;
  }
  bool sequential() const override { return is_sequential; }
  std::uint64_t start() const override { return starts_at; }
  std::shared_ptr<Mapping> map() override { throw std::logic_error("mapped bytes can change"); }
  bool map_into(Mapping&, std::uint64_t) override {
    throw std::logic_error("mapped bytes can change");
  }
  const std::string& label() const override { return label_; }

  // Returns how many reads had the byte at an offset.
  int fetches(std::uint64_t at) const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::ranges::count_if(reads_, [at](const auto& read) {
      return at >= read.first && at - read.first < read.second;
    }));
  }
  std::size_t times_read() const {
    const std::lock_guard lock(mutex_);
    return reads_.size();
  }

  std::string text;
  std::string anew;  // what its server has
  std::atomic<int> times_anew = 0;
  bool known_size = true, is_sequential = false;
  std::uint64_t starts_at = 0;
  std::function<void(std::uint64_t offset, std::uint64_t size, Cancel& cancel)> before;

 private:
  const std::string label_ = "'stored'";
  mutable std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reads_;
};

class SignedSourceTest : public IoTest {
 protected:
  std::unique_ptr<SignedSource> signed_as(const std::string& text, std::uint64_t shard = kShard) {
    const auto digests = std::make_shared<std::vector<Sha256Digest>>(digests_of(text, shard));
    return std::make_unique<SignedSource>(
        file_, SignedShards{text.size(), shard, std::as_bytes(std::span(*digests)), digests,
                            "the signer"});
  }

  const std::string text_ = text_pattern(3 * kShard + kShard / 2);
  const std::shared_ptr<Stored> file_ = std::make_shared<Stored>(text_);
};

class SignedFilesTest : public IoTest {
 protected:
  SignedFilesTest() {
    set_trust("tests",
              {.keys = {public_pem(key_)}, .roots = {}, .identities = {}, .at = {}, .subject = {}});
  }
  ~SignedFilesTest() override { forget_trust("tests"); }

  using FilesToSign = std::vector<std::pair<std::string, std::string>>;  // names, bytes

  // Returns a bundle; of whole files without a size of the shards.
  static std::string bundle_of(const FilesToSign& files, const SharedKey& key,
                               std::uint64_t shard = kShard) {
    std::vector<std::vector<Sha256Digest>> digests;
    for (const auto& [name, bytes] : files) {
      digests.push_back(shard > 0 ? digests_of(bytes, shard)
                                  : std::vector{sha256(as_bytes(bytes))});
    }
    std::vector<FileToSign> listed;
    for (std::size_t i = 0; i < files.size(); ++i) {
      listed.push_back(
          {files[i].first, files[i].second.size(), std::as_bytes(std::span(digests[i]))});
    }
    return sign_bundle({.name = "model", .files = listed, .shard_size = shard, .ignored = {}},
                       signing_key(key));
  }
  std::string bundle_of(const FilesToSign& files, std::uint64_t shard = kShard) const {
    return bundle_of(files, key_, shard);
  }

  std::unique_ptr<Source> open(const std::string& uri, OptionList more = {},
                               std::shared_ptr<SharedAccess> access = nullptr) {
    SourceOptions options;
    options.given = std::move(more);
    options.given.emplace_back("trust", "named:tests");
    options.access = std::move(access);
    return open_source(uri, options, cancel_);
  }
  std::string whole(Source& source) { return read(source, 0, source.size().value()); }
  std::string load(const std::string& uri, OptionList more = {},
                   std::shared_ptr<SharedAccess> access = nullptr) {
    return whole(*open(uri, std::move(more), std::move(access)));
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  const SharedKey key_ = new_key();
  const std::string text_ = text_pattern(3 * kShard + 5);
  const std::string other_ = text_pattern(2 * kShard, 9);
};

}  // namespace tensorizer::testing_support
