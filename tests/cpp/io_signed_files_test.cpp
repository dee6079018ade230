// Bundles of files: which one is taken, and what it is good for.
#include <limits>

#include "engine/open/open_file.h"
#include "io/signed/open.h"
#include "signed_files.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST_F(SignedFilesTest, TheBundleOfTheFileComesBeforeThatOfTheModel) {
  write_file(at("m"), text_);
  const auto nothing = error_of([&] { load(at("m")); });
  EXPECT_EQ(nothing.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(nothing.what(), "there is neither 'm.sig' nor 'model.sig' beside it"))
      << nothing.what();

  write_file(at("model.sig"), bundle_of({{"m", text_}}));
  EXPECT_EQ(load(at("m")), text_);
  write_file(at("m.sig"), bundle_of({{"m", other_}}));
  EXPECT_EQ(kind_of([&] { load(at("m")); }), ErrorKind::HashMismatch);
  EXPECT_EQ(load(at("m"), {{"signature", at("model.sig")}}), text_);
  // One that is damaged is not passed over.
  write_file(at("m.sig"), "{}");
  const Error damaged = error_of([&] { load(at("m")); });
  EXPECT_EQ(damaged.kind(), ErrorKind::InvalidFormat);
  EXPECT_TRUE(contains(damaged.what(), at("m.sig"))) << damaged.what();
  write_file(at("m.sig"), bundle_of({{"m", text_}}, new_key()));
  const Error foreign = error_of([&] { load(at("m")); });
  EXPECT_EQ(foreign.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(foreign.what(), at("m.sig"))) << foreign.what();

  const Error missing = error_of([&] { load(at("m"), {{"signature", at("none.sig")}}); });
  EXPECT_EQ(missing.kind(), ErrorKind::NotFound);
  EXPECT_TRUE(contains(missing.what(), at("none.sig"))) << missing.what();
}

TEST_F(SignedFilesTest, NamesCountFromTheFolderOfTheBundle) {
  fs::create_directories(folder_.path() / "a" / "b");
  for (const char* const name : {"m", "a/m", "a/b/m", "a/other", "elsewhere"})
    write_file(at(name), text_);
  const std::string bundle = bundle_of({{"a/b/m", text_}, {"b/m", text_}, {"m", other_}});
  write_file(at("model.sig"), bundle);
  write_file(at("a/model.sig"), bundle);
  EXPECT_EQ(load(at("a/b/m"), {{"signature", at("model.sig")}}), text_);
  EXPECT_EQ(load(at("a/b/m"), {{"signature", at("a/model.sig")}}), text_);
  EXPECT_EQ(load("file://" + at("a/b/m"), {{"signature", at("model.sig")}}), text_);
  EXPECT_EQ(load(at("a/b/m"), {{"signature", "file://" + at("model.sig")}}), text_);
  // The name of another file does not do.
  EXPECT_EQ(kind_of([&] { load(at("m")); }), ErrorKind::HashMismatch);
  const Error not_listed = error_of([&] { load(at("a/m"), {{"signature", at("model.sig")}}); });
  EXPECT_EQ(not_listed.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(not_listed.what(), "has no 'a/m' among its 3 files")) << not_listed.what();
  EXPECT_TRUE(contains(not_listed.what(), at("model.sig"))) << not_listed.what();
  const Error elsewhere =
      error_of([&] { load(at("elsewhere"), {{"signature", at("a/model.sig")}}); });
  EXPECT_EQ(elsewhere.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(elsewhere.what(), "it is in another folder than its bundle"))
      << elsewhere.what();
  // A folder whose name begins as that of the bundle.
  fs::create_directories(folder_.path() / "ab");
  write_file(at("ab/m"), text_);
  EXPECT_EQ(kind_of([&] { load(at("ab/m"), {{"signature", at("a/model.sig")}}); }),
            ErrorKind::Crypto);
}

TEST_F(SignedFilesTest, ABundleOfOneFileMayBeAnywhere) {
  fs::create_directories(folder_.path() / "a");
  fs::create_directories(folder_.path() / "signatures");
  write_file(at("a/m"), text_);
  write_file(at("a/n"), text_);
  write_file(at("signatures/m.sig"), bundle_of({{"m", text_}}));
  EXPECT_EQ(load(at("a/m"), {{"signature", at("signatures/m.sig")}}), text_);
  const Error error = error_of([&] { load(at("a/n"), {{"signature", at("signatures/m.sig")}}); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "has no 'n' among its 1 files")) << error.what();
}

TEST_F(SignedFilesTest, PathsMayBeRelative) {
  const fs::path before = fs::current_path();
  write_file(at("m"), text_);
  write_file(at("model.sig"), bundle_of({{"m", text_}, {"n", other_}}));
  fs::current_path(folder_.path());
  EXPECT_EQ(load("m"), text_);
  EXPECT_EQ(load("./m"), text_);
  EXPECT_EQ(load(".//m"), text_);
  for (const char* const bundle : {"model.sig", "./model.sig", ".//./model.sig"}) {
    for (const std::string& file : {std::string("m"), std::string("./m"), at("m"), at(".//m")}) {
      EXPECT_EQ(load(file, {{"signature", bundle}}), text_);
    }
  }
  // The folder may be a link.
  fs::create_directories(at("a/b"));
  fs::create_directory_symlink("a/b", at("link"));
  write_file(at("a/m"), other_);
  write_file(at("a/model.sig"), bundle_of({{"m", other_}, {"n", text_}}));
  EXPECT_EQ(load("link/../m"), other_);
  fs::current_path(before);
}

TEST_F(SignedFilesTest, TheBundleIsReadOnceForAJob) {
  write_file(at("m"), text_);
  write_file(at("n"), other_);
  write_file(at("model.sig"), bundle_of({{"m", text_}, {"n", other_}}));
  const auto access = std::make_shared<SharedAccess>();
  EXPECT_EQ(load(at("m"), {}, access), text_);
  // A newer model, which is signed as well.
  write_file(at("n"), text_);
  write_file(at("model.sig"), bundle_of({{"m", other_}, {"n", text_}}));
  EXPECT_EQ(kind_of([&] { load(at("n"), {}, access); }), ErrorKind::HashMismatch);
  EXPECT_EQ(load(at("n"), {}, std::make_shared<SharedAccess>()), text_);
  EXPECT_EQ(load(at("n")), text_);
  fs::remove(at("model.sig"));
  EXPECT_EQ(load(at("m"), {}, access), text_);
  EXPECT_EQ(kind_of([&] { load(at("m")); }), ErrorKind::Crypto);
}

// A bundle that could not be used is looked for again.
TEST_F(SignedFilesTest, ABundleThatFailedIsReadAgain) {
  write_file(at("m"), text_);
  const auto access = std::make_shared<SharedAccess>();
  EXPECT_EQ(kind_of([&] { load(at("m"), {}, access); }), ErrorKind::Crypto);
  write_file(at("model.sig"), bundle_of({{"m", text_}}, new_key()));
  EXPECT_EQ(kind_of([&] { load(at("m"), {}, access); }), ErrorKind::Crypto);
  write_file(at("m.sig"), bundle_of({{"m", text_}}));
  EXPECT_EQ(load(at("m"), {}, access), text_);
}

TEST_F(SignedFilesTest, ThreadsOfAJobShareItsBundle) {
  constexpr std::size_t kFiles = 6;
  FilesToSign files;
  for (std::size_t i = 0; i < kFiles; ++i) {
    files.emplace_back(std::to_string(i), text_pattern(200 + i, static_cast<std::uint32_t>(i)));
    write_file(at(files.back().first), files.back().second);
  }
  write_file(at("model.sig"), bundle_of(files));
  const auto access = std::make_shared<SharedAccess>();
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kFiles; ++i) {
    threads.emplace_back([&, i] {
      Cancel cancel;
      SourceOptions options;
      options.given = {{"trust", "named:tests"}};
      options.access = access;
      const auto source = open_source(at(files[i].first), options, cancel);
      std::string out(files[i].second.size(), '\0');
      const Bytes piece = std::as_writable_bytes(std::span(out));
      source->read(0, {&piece, 1}, cancel);
      EXPECT_EQ(out, files[i].second);
    });
  }
}

TEST_F(SignedFilesTest, ThePartThatWillBeReadDoesNotLimitTheBundle) {
  write_file(at("m"), text_);
  write_file(at("model.sig"), bundle_of({{"m", text_}}));
  SourceOptions options{.given = {{"trust", "named:tests"}}, .any_bytes = true};
  options.begin = 70;
  options.end = 80;
  EXPECT_EQ(read(*open_source(at("m"), options, cancel_), 70, 10), text_.substr(70, 10));
}

TEST_F(SignedFilesTest, SmallFilesThatWereSignedInWhole) {
  const std::string text = text_pattern((5 << 20) + 7);
  write_file(at("m"), text);
  write_file(at("empty"), "");
  write_file(at("model.sig"), bundle_of({{"m", text}, {"empty", ""}}, 0));
  EXPECT_EQ(load(at("empty")), "");
  const auto source = open(at("m"));
  EXPECT_FALSE(source->checks_at_end());
  EXPECT_EQ(read(*source, (4 << 20) - 3, 9), text.substr((4 << 20) - 3, 9));
  EXPECT_TRUE(whole(*source) == text);
  for (const std::size_t changed : {std::size_t{0}, std::size_t{4 << 20}, text.size() - 1}) {
    std::string damaged = text;
    damaged[changed] ^= 1;
    write_file(at("m"), damaged);
    const Error error = error_of([&] { read(*open(at("m")), 7, 1); });
    EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
    EXPECT_TRUE(contains(error.what(), to_hex(sha256(as_bytes(text))))) << error.what();
  }
  write_file(at("m"), text.substr(0, text.size() - 1));
  EXPECT_EQ(kind_of([&] { load(at("m")); }), ErrorKind::HashMismatch);
  write_file(at("m"), text + '\0');
  EXPECT_EQ(kind_of([&] { load(at("m")); }), ErrorKind::HashMismatch);
  write_file(at("m"), "");
  EXPECT_EQ(kind_of([&] { open(at("m")); }), ErrorKind::HashMismatch);
  write_file(at("empty"), "x");
  EXPECT_EQ(kind_of([&] { load(at("empty")); }), ErrorKind::HashMismatch);
}

// Files whose shards are too large to keep are hashed while they are read, or before.
TEST_F(SignedFilesTest, ShardsOfAnySize) {
  const std::string small = text_pattern(100);
  const std::string text = text_pattern((17 << 20) + 5);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t shard :
       {std::uint64_t{0}, std::uint64_t{100} << 20, kMost / 2 + 1, kMost}) {
    write_file(at("model.sig"), bundle_of({{"m", text}, {"small", small}}, shard));
    write_file(at("m"), text);
    write_file(at("small"), small);
    EXPECT_FALSE(open(at("small"))->checks_at_end());
    EXPECT_EQ(load(at("small")), small);
    const auto source = open(at("m"));
    EXPECT_TRUE(source->checks_at_end());
    EXPECT_TRUE(whole(*source) == text) << shard;
    source->confirm(cancel_);
    EXPECT_FALSE(source->checks_at_end());
    const OptionList first{{"hash_first", "true"}};
    EXPECT_FALSE(open(at("m"), first)->checks_at_end());
    EXPECT_EQ(read(*open(at("m"), first), 16 << 20, 9), text.substr(16 << 20, 9));
    for (const std::size_t changed : {std::size_t{0}, std::size_t{1 << 20}, text.size() - 1}) {
      std::string damaged = text;
      damaged[changed] ^= 1;
      write_file(at("m"), damaged);
      EXPECT_EQ(kind_of([&] { open(at("m"), first); }), ErrorKind::HashMismatch);
      EXPECT_EQ(kind_of([&] { open(at("m"))->confirm(cancel_); }), ErrorKind::HashMismatch);
    }
    write_file(at("m"), text + "more");
    EXPECT_EQ(kind_of([&] { open(at("m"))->confirm(cancel_); }), ErrorKind::HashMismatch);
  }
}

// A part of a file that cannot be checked by itself.
TEST_F(SignedFilesTest, PartsAreRefusedBeforeTheyAreParsed) {
  const std::string text = text_pattern(17 << 20);
  write_file(at("m"), text);
  write_file(at("m.sig"), bundle_of({{"m", text}}, 0));
  const auto parse = [&](Wants wants) {
    OpenFile(open(at("m")), {.source = {.given = {{"trust", "named:tests"}}}}, cancel_, wants);
  };
  const Error refused = error_of([&] { parse(Wants::Parts); });
  EXPECT_EQ(refused.kind(), ErrorKind::InvalidArgument);
  EXPECT_TRUE(contains(refused.what(), "it was signed in whole")) << refused.what();
  EXPECT_EQ(kind_of([&] { parse(Wants::All); }), ErrorKind::InvalidFormat);
}

TEST_F(SignedFilesTest, BundlesMayBeLarge) {
  const std::string text = text_pattern(14000);
  const std::string bundle = bundle_of({{"m", text}}, 1);
  EXPECT_GT(bundle.size(), std::size_t{2} << 20);
  write_file(at("m"), text);
  write_file(at("m.sig"), bundle);
  EXPECT_EQ(load(at("m")), text);
}

TEST_F(SignedFilesTest, EmptyFilesAreNotListedInShards) {
  write_file(at("m"), "");
  write_file(at("model.sig"), bundle_of({{"n", text_}}));
  EXPECT_EQ(kind_of([&] { open(at("m")); }), ErrorKind::Crypto);
}

TEST_F(SignedFilesTest, NeedsFilesThatCanBeReadAtAnyOffset) {
  const Neighbours none{
      [](const std::string&) -> std::unique_ptr<Source> { throw std::logic_error("opened"); },
      [](const std::string&) { return std::nullopt; }, [](const std::string& uri) { return uri; }};
  const auto refused = [&](const auto& change) {
    const auto file = std::make_shared<Stored>(text_);
    change(*file);
    const Error error =
        error_of([&] { signed_source(file, "m", {"named:tests", ""}, nullptr, none, cancel_); });
    EXPECT_EQ(error.kind(), ErrorKind::Crypto);
    EXPECT_TRUE(contains(error.what(), "'stored': option 'trust' needs a file whose size"))
        << error.what();
  };
  refused([](Stored& file) { file.known_size = false; });
  refused([](Stored& file) { file.is_sequential = true; });
  refused([](Stored& file) { file.starts_at = 1; });
  const auto file = std::make_shared<Stored>(text_);
  EXPECT_EQ(kind_of([&] { signed_source(file, "m", {"named:tests", ""}, nullptr, none, cancel_); }),
            ErrorKind::Crypto);
}

TEST_F(SignedFilesTest, NamesCountFromTheFolderThatWasSigned) {
  fs::create_directories(folder_.path() / "model" / "part");
  fs::create_directories(folder_.path() / "model2");
  write_file(at("model/m"), text_);
  write_file(at("model/part/m"), other_);
  for (const char* const name : {"m", "model2/m", "model/part/n", "model/n"}) {
    write_file(at(name), text_);
  }
  write_file(at("model.sig"), bundle_of({{"m", text_}, {"part/m", other_}}));
  write_file(at("one.sig"), bundle_of({{"m", text_}}));
  for (const std::string& folder :
       {at("model"), at("model/"), at("./model//"), "file://" + at("model")}) {
    const OptionList all{{"signature", at("model.sig")}, {"signed_folder", folder}};
    EXPECT_EQ(load(at("model/m"), all), text_) << folder;
    EXPECT_EQ(load("file://" + at("model/part/m"), all), other_) << folder;
    for (const char* const bundle : {"model.sig", "one.sig"}) {
      const OptionList options{{"signature", at(bundle)}, {"signed_folder", folder}};
      for (const char* const name : {"m", "model2/m", "model/../m"}) {
        const Error outside = error_of([&] { load(at(name), options); });
        EXPECT_EQ(outside.kind(), ErrorKind::Crypto);
        EXPECT_TRUE(contains(outside.what(), "folder that was signed") ||
                    contains(outside.what(), "has no '../m' among"))
            << outside.what();
      }
      for (const char* const name : {"model/n", "model/part/n"}) {
        const Error another = error_of([&] { load(at(name), options); });
        EXPECT_TRUE(contains(another.what(), "it is not signed")) << another.what();
      }
    }
  }
  EXPECT_EQ(kind_of([&] { open_source(at("m"), {.given = {{"signed_folder", "/"}}}, cancel_); }),
            ErrorKind::InvalidArgument);
}

TEST_F(SignedFilesTest, PoliciesHaveNames) {
  write_file(at("m"), text_);
  write_file(at("model.sig"), bundle_of({{"m", text_}}));
  write_file(at("release.pub"), public_pem(key_));
  const auto with_trust = [&](const std::string& trust) {
    return whole(*open_source(at("m"), {.given = {{"trust", trust}}}, cancel_));
  };
  EXPECT_EQ(with_trust("file:" + at("release.pub")), text_);
  write_file(at("policy.json"), R"({"keys": ["release.pub"]})");
  EXPECT_EQ(with_trust("file:" + at("policy.json")), text_);
  write_file(at("release.pub"), "The key of releases {1}:\n" + public_pem(key_));
  EXPECT_EQ(with_trust("file:" + at("policy.json")), text_);
  EXPECT_EQ(kind_of([&] { with_trust("named:nobody"); }), ErrorKind::InvalidArgument);
  EXPECT_EQ(kind_of([&] { with_trust("file:" + at("none")); }), ErrorKind::NotFound);
}

}  // namespace
}  // namespace tensorizer
