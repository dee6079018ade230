// Loads of signed files, while others replace and damage what a server has.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/sha256.h"
#include "io/signed/one_pass_source.h"
#include "model_files.h"
#include "redis_cases.h"
#include "tensorizer_ops/trust.h"
#include "trust/sign.h"
#include "try.h"
#include "web.h"

namespace tensorizer::simulation {

inline constexpr const char* kTrust = "named:simulation";

// Returns a key that nobody else has.
inline PrivateKey new_signing_key() {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                &EVP_PKEY_free);
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
  PEM_write_bio_PKCS8PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  const std::string_view pem(text, static_cast<std::size_t>(size));
  return PrivateKey::from_pem(SecretBytes(as_bytes(pem)), {}, "a key");
}

// Whoever signs. Everything that depends on the keys has the same size with all of them.
struct Signers {
  Signers() {
    set_trust("simulation", {.keys = {trusted.public_key().pem()},
                             .roots = {},
                             .identities = {},
                             .at = {},
                             .subject = {}});
  }

  PrivateKey trusted = new_signing_key();
  PrivateKey other = new_signing_key();
};

inline const Signers& signers() {
  static const Signers both;
  return both;
}

// A model in one or more files, and its bundle.
struct SignedModel {
  std::map<std::string, std::string> files;
  std::string bundle{};
};

// Returns a bundle of a model: of whole files if the size of shards is 0.
inline std::string bundle_of(const SignedModel& model, const PrivateKey& key, std::uint64_t shard) {
  std::vector<std::vector<Sha256Digest>> digests;
  std::vector<FileToSign> files;
  for (const auto& [name, bytes] : model.files) {
    const std::uint64_t step = shard == 0 ? bytes.size() : shard;
    std::vector<Sha256Digest>& own = digests.emplace_back();
    for (std::uint64_t at = 0; at < bytes.size(); at += step) {
      own.push_back(sha256(as_bytes(std::string_view(bytes).substr(at, step))));
    }
    files.push_back({name, bytes.size(), std::as_bytes(std::span(own))});
  }
  // Signatures are random numbers. Nearly all take 96 characters; the others would be other runs.
  constexpr std::string_view kBegin = "\"sig\":\"";
  for (;;) {
    std::string bundle =
        sign_bundle({.name = "model", .files = files, .shard_size = shard, .ignored = {}}, key);
    const std::size_t begin = bundle.find(kBegin) + kBegin.size();
    if (bundle.find('"', begin) - begin == 96) return bundle;
  }
}

inline SignedModel signed_model(Try& run, std::map<std::string, std::string> files,
                                const PrivateKey& key) {
  SignedModel model{std::move(files)};
  const std::uint64_t shard = run.world.one_in(4) ? 0 : 1 + run.world.below(2000);
  model.bundle = bundle_of(model, key, shard);
  return model;
}

// Returns files of which some are those of another model, and others often have the same size.
inline std::map<std::string, std::string> changed_files(Try& run,
                                                        std::map<std::string, std::string> files) {
  for (auto& [name, bytes] : files) {
    if (run.world.one_in(4)) continue;
    if (run.world.one_in(3)) {
      bytes = run.some_bytes(3000);
    } else {
      bytes[run.world.below(bytes.size())] ^= 1;
    }
  }
  return files;
}

// What a load has read of a file.
struct SignedParts {
  struct Part {
    std::uint64_t offset;
    std::string bytes;
  };

  void read(Try& run, Source& source) {
    size = source.size().value();
    if (size == 0) return;
    Part part{run.world.below(size), {}};
    part.bytes.resize(1 + run.world.below(size - part.offset));
    const Bytes all = std::as_writable_bytes(std::span(part.bytes));
    const std::size_t cut = run.world.below(all.size() + 1);
    const std::array pieces{all.first(cut), all.subspan(cut)};
    source.read(part.offset, pieces, run.cancel);
    parts.push_back(std::move(part));
  }
  bool are_of(const std::string& file) const {
    return size == file.size() && std::ranges::all_of(parts, [&](const Part& part) {
             return file.compare(part.offset, part.bytes.size(), part.bytes) == 0;
           });
  }

  std::uint64_t size = 0;
  std::vector<Part> parts{};
};

// Opens files, and reads parts of them in turn.
inline std::map<std::string, SignedParts> read_signed(
    Try& run, const std::map<std::string, std::string>& uris, const OptionList& more) {
  SourceOptions options{.given = run.options, .any_bytes = run.world.one_in(2)};
  options.given.insert(options.given.end(), more.begin(), more.end());
  options.given.emplace_back("trust", kTrust);
  options.access = std::make_shared<SharedAccess>();
  if (run.world.one_in(2)) options.end = 1 + run.world.below(1000);
  std::map<std::string, SignedParts> found;
  std::map<std::string, std::unique_ptr<Source>> sources;
  for (const auto& [name, uri] : uris) {
    sources[name] = open_source(uri, options, run.cancel);
    found[name].read(run, *sources[name]);
  }
  for (std::uint64_t reads = run.world.below(5); reads > 0; --reads) {
    for (const auto& [name, source] : sources) found[name].read(run, *source);
  }
  for (const auto& [name, source] : sources) source->confirm(run.cancel);
  return found;
}

inline bool are_of(const std::map<std::string, SignedParts>& found, const SignedModel& model) {
  return std::ranges::all_of(
      found, [&](const auto& file) { return file.second.are_of(model.files.at(file.first)); });
}

// Loads two files of a model. What is read belongs to one model that the trusted key has signed.
inline void load_signed_from_web(Try& run, Web::Kind kind) {
  constexpr std::string_view kBundle = "model.sig";
  SimulatedWorld& world = run.world;
  const Signers& keys = signers();
  std::string folder = uri_on(kind, run.options);
  folder.resize(folder.rfind('/') + 1);
  const std::map<std::string, std::string> base{{"a", run.some_bytes(3000)},
                                                {"b", run.some_bytes(3000)}};
  const SignedModel before = signed_model(run, changed_files(run, base), keys.trusted),
                    now = signed_model(run, base, keys.trusted),
                    fresh = signed_model(run, changed_files(run, base), keys.trusted),
                    foreign = signed_model(run, changed_files(run, base), keys.other);
  Files none;
  std::map<std::string, Files> files;
  Web web(world, none, kind);
  if (kind == Web::Kind::Plain && world.one_in(3)) web.hide_versions();
  for (const char* const name : {"a", "b", "model.sig"}) web.serve_as(name, files[name]);
  world.serve(web);
  const auto put_file = [&](const SignedModel& model, const std::string& name) {
    const std::string& bytes = name == kBundle ? model.bundle : model.files.at(name);
    files[name].put(bytes, to_hex(md5_of(as_bytes(bytes))));
  };
  const auto put = [&](const SignedModel& model) {
    for (const auto& [name, stored] : files) put_file(model, name);
  };
  // All files at once, or one after the other.
  const auto put_sometime = [&](const SignedModel& model) {
    if (world.one_in(2)) return world.sometime(14, [&] { put(model); });
    for (const auto& [name, stored] : files) {
      world.sometime(14, [&, name = name] { put_file(model, name); });
    }
  };
  const bool has_older = world.one_in(2);
  if (has_older) put(before);
  put(now);
  const bool is_replaced = world.one_in(3), is_foreign = world.one_in(6),
             is_damaged = world.one_in(4);
  if (is_replaced) put_sometime(fresh);
  if (is_foreign) put_sometime(foreign);
  if (is_damaged) {
    auto damaged = std::next(files.begin(), static_cast<std::ptrdiff_t>(world.below(files.size())));
    // A server does not notice.
    const auto damage = [&world, &file = damaged->second] {
      Files::Version version = file.versions.back();
      version.bytes[world.below(version.bytes.size())] ^= 1;
      file.versions.push_back(std::move(version));
    };
    if (world.one_in(2)) {
      damage();
    } else {
      world.sometime(14, damage);
    }
  }
  OptionList more;
  if (world.one_in(3)) more = {{"signature", folder + std::string(kBundle)}};
  world.set_drip(10000);
  std::map<std::string, SignedParts> found;
  const bool loaded = run.succeeds(
      [&] { found = read_signed(run, {{"a", folder + "a"}, {"b", folder + "b"}}, more); });
  if (!loaded) {
    require(is_replaced || is_foreign || is_damaged || !world.had_only(3, kHarmless),
            "a load of signed files fails because of a few faults");
    return;
  }
  require(are_of(found, now) || (has_older && are_of(found, before)) ||
              (is_replaced && are_of(found, fresh)),
          "other bytes than those of one signed model");
}

// Reads parts of a file while its digest is computed, and compares that in the end.
inline void load_in_one_pass(Try& run, Web::Kind kind) {
  SimulatedWorld& world = run.world;
  SourceOptions options;
  const std::string uri = uri_on(kind, options.given);
  options.given.insert(options.given.end(), run.options.begin(), run.options.end());
  const std::string now = run.some_bytes(3000);
  const std::uint64_t shard = 1 + world.below(3000);
  const SignedModel model{{{"file", now}}};
  Files files;
  Web web(world, files, kind);
  if (kind == Web::Kind::Plain && world.one_in(3)) web.hide_versions();
  world.serve(web);
  const auto put = [&](const std::string& bytes) {
    files.put(bytes, to_hex(md5_of(as_bytes(bytes))));
  };
  put(now);
  const bool is_replaced = world.one_in(3), is_damaged = world.one_in(2);
  if (is_replaced) world.sometime(20, [&] { put(changed_files(run, model.files)["file"]); });
  if (world.one_in(2)) options.end = 1 + world.below(100);
  world.set_drip(10000);
  std::map<std::string, SignedParts> found;
  const auto read = [&](Source& source) {
    if (is_damaged && world.one_in(4)) {
      // A server does not notice.
      Files::Version version = files.versions.back();
      version.bytes[world.below(version.bytes.size())] ^= 1;
      files.versions.push_back(std::move(version));
    }
    found["file"].read(run, source);
  };
  const bool loaded = run.succeeds([&] {
    std::vector<Sha256Digest> digests;
    for (std::uint64_t at = 0; at < now.size(); at += shard) {
      digests.push_back(sha256(as_bytes(std::string_view(now).substr(at, shard))));
    }
    OnePassSource source(open_source(uri, options, run.cancel),
                         {now.size(), shard, std::as_bytes(std::span(digests)), nullptr, "a key"});
    for (std::uint64_t reads = world.below(8); reads > 0; --reads) read(source);
    source.confirm(run.cancel);
    for (std::uint64_t reads = world.below(4); reads > 0; --reads) read(source);
    found["file"].size = now.size();
  });
  if (loaded) return require(are_of(found, model), "other bytes than those that were signed");
  require(is_replaced || is_damaged || !world.had_only(3, kHarmless),
          "a load of a signed file fails because of a few faults");
}

// Loads a file whose bundle lies on this machine.
inline void load_signed_from_redis(Try& run) {
  SimulatedWorld& world = run.world;
  const Signers& keys = signers();
  RedisPlace place(run);
  const RedisFile now = some_redis_file(run), fresh = other_redis_file(run, now);
  const auto as_model = [&](const RedisFile& file, const PrivateKey& key) {
    return signed_model(run, {{kRedisPrefix, file.bytes()}}, key);
  };
  const bool is_foreign = world.one_in(6), is_of_fresh = world.one_in(4);
  const SignedModel listed =
      as_model(is_of_fresh ? fresh : now, is_foreign ? keys.other : keys.trusted);
  const Folder folder;
  std::ofstream(folder.file("bundle"), std::ios::binary) << listed.bundle;
  place.redis.replace({}, now.keys());
  const bool is_replaced = world.one_in(3), is_damaged = world.one_in(4);
  if (is_replaced) {
    const auto replace = [&] {
      place.redis.replace(RedisPlace::names_of(now.keys()), fresh.keys());
    };
    if (world.one_in(2)) {
      world.sometime(40, replace);
    } else {
      place.redis.after_transaction(1 + world.below(8), replace);
    }
  }
  if (is_damaged) {
    world.sometime(20, [&] {
      const RedisFile& there =
          place.redis.keys().contains(now.keys().rbegin()->first) ? now : fresh;
      std::map<std::string, std::string> damaged = there.keys();
      auto key =
          std::next(damaged.begin(), static_cast<std::ptrdiff_t>(world.below(damaged.size())));
      key->second[world.below(key->second.size())] ^= 1;
      place.redis.replace(RedisPlace::names_of(there.keys()), damaged);
    });
  }
  std::map<std::string, SignedParts> found;
  const bool loaded = run.succeeds([&] {
    found = read_signed(run, {{kRedisPrefix, place.uri}}, {{"signature", folder.file("bundle")}});
  });
  if (!loaded) {
    require(is_foreign || is_of_fresh || is_replaced || is_damaged || world.faults() > 3,
            "a load of a signed file fails because of a few faults");
    return;
  }
  require(!is_foreign, "a load takes what another key has signed");
  require(are_of(found, listed), "other bytes than those of the signed model");
}

}  // namespace tensorizer::simulation
