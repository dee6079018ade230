// Sharded safetensors models: an index and its files become one source and one catalogue, and
// whatever does not fit together is refused.
#include <fcntl.h>

#include "base/text.h"
#include "engine/open/open_model.h"
#include "engine/open/sharded_source.h"
#include "format/safetensors/layout.h"
#include "io/descriptor.h"
#include "io_support.h"
#include "memory_watch.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

std::vector<std::byte> shard_bytes(std::span<const Sample> samples, FileKind kind) {
  SafetensorsLayout layout(std::move(kind));
  for (const Sample& each : samples) layout.add(each.spec);
  MemorySink sink(false);
  save(samples, sink, layout, {}, false);
  return std::move(sink.bytes);
}

class Shards : public testing::Test {
 protected:
  // Writes the samples as shards of `per_shard` tensors, and returns the path of the index.
  std::string write(std::span<const Sample> samples, std::size_t per_shard,
                    const FileKind& kind = {}) {
    std::string map;
    for (std::size_t first = 0; first < samples.size(); first += per_shard) {
      const auto part = samples.subspan(first, std::min(per_shard, samples.size() - first));
      const std::string name = "part " + std::to_string(100 + first) + ".safetensors";
      write_file(folder_ / name, as_text(shard_bytes(part, kind)));
      for (const Sample& each : part) {
        map += (map.empty() ? "\"" : ",\"") + each.spec.name + "\":\"" + name + "\"";
      }
    }
    return index("{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}");
  }

  std::string index(std::string_view text) {
    write_file(folder_ / "m.safetensors.index.json", text);
    return folder_ / "m.safetensors.index.json";
  }

  // Writes an index in which each tensor is in the shard of that name.
  std::string mapping(std::string_view pairs) {
    return index("{\"weight_map\":{" + std::string(pairs) + "}}");
  }

  void put(const std::string& name, std::initializer_list<const char*> tensors) {
    std::vector<Sample> samples;
    for (const char* tensor : tensors) samples.push_back(sample(tensor, 10));
    write_file(folder_ / name, as_text(shard_bytes(samples, {})));
  }

  // An error in a worker cancels the job, so each has a Cancel of its own.
  std::unique_ptr<Source> open(const std::string& uri) {
    Cancel cancel;
    return open_model(uri, {}, cancel);
  }

  std::unique_ptr<Catalogue> read(const std::string& uri) {
    Cancel cancel;
    return read_catalogue(*open(uri), nullptr, cancel);
  }

  void expect_refused(const std::string& uri, std::string_view why,
                      ErrorKind kind = ErrorKind::InvalidFormat) {
    Cancel cancel;
    const Error error =
        error_of([&] { read_catalogue(*open_model(uri, {}, cancel), nullptr, cancel); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(contains(error.what(), why)) << error.what();
  }

  Folder folder_{testing::TempDir()};
  Cancel cancel_;
};

std::vector<Sample> plain_samples(Dice& dice) {
  std::vector<Sample> samples = samples_of_all_sizes(dice);
  std::erase_if(samples, [](const Sample& each) {
    return each.spec.meta || each.spec.dtype == DType::Complex128;
  });
  return samples;
}

TEST_F(Shards, LoadAsOneFile) {
  Dice dice(301);
  const std::vector<Sample> samples = plain_samples(dice);
  for (const std::size_t per_shard : {1, 7, 1000}) {
    const std::string path = write(samples, per_shard, {{{Hash::Sha256}, {}}, false, {}});
    const auto source = open(path);
    const auto catalogue = read_catalogue(*source, nullptr, cancel_);
    ASSERT_EQ(catalogue->entries().size(), samples.size());
    EXPECT_EQ(catalogue->end(), source->size());
    EXPECT_EQ(catalogue->info().tensor_count, samples.size());
    EXPECT_EQ(catalogue->data_digests().size(), samples.size() * kSha256Size);
    for (const int threads : {1, 3}) {
      LoadSettings settings;
      settings.threads = threads;
      settings.verify = Verify::All;
      expect_loaded(*source, *catalogue, samples, all_of(samples), Into::Mixed, settings);
    }
    for (const auto& file : fs::directory_iterator(folder_.path())) fs::remove(file);
  }
}

TEST_F(Shards, ReadAcrossGaps) {
  put("a", {"x"});
  put("b", {"y"});
  const auto source = open(mapping(R"("x":"a","y":"b")"));
  const std::string first = read_file(folder_ / "a");
  const std::string second = read_file(folder_ / "b");
  auto& sharded = dynamic_cast<ShardedSource&>(*source);
  const std::uint64_t begin = sharded.begin_of(1);
  EXPECT_EQ(begin % kMappingUnit, 0U);
  EXPECT_GE(begin, first.size() + (4 << 20));
  ASSERT_EQ(source->size(), begin + second.size());
  const std::string whole = first + std::string(begin - first.size(), '\0') + second;
  std::vector<std::byte> all(whole.size() + 10);
  EXPECT_EQ(source->read_up_to(0, all, cancel_), whole.size());
  EXPECT_EQ(as_text(all).substr(0, whole.size()), whole);
  for (const std::uint64_t from : {std::uint64_t{3}, begin - 5, begin, begin + 4}) {
    std::vector<std::byte> one(9);
    std::vector<std::byte> two(whole.size() - from - 9);
    const std::array<Bytes, 2> pieces{one, two};
    source->read(from, pieces, cancel_);
    EXPECT_EQ(std::string(as_text(one)) + std::string(as_text(two)), whole.substr(from));
  }
  std::vector<std::byte> more(2);
  const Bytes piece(more);
  EXPECT_EQ(kind_of([&] { source->read(whole.size() - 1, {&piece, 1}, cancel_); }),
            ErrorKind::InvalidFormat);
  EXPECT_EQ(source->read_up_to(whole.size() + 5, more, cancel_), 0U);
}

TEST_F(Shards, AreMappedSideBySide) {
  Dice dice(302);
  const std::vector<Sample> samples = plain_samples(dice);
  const auto source = open(write(samples, 5));
  const auto catalogue = read_catalogue(*source, nullptr, cancel_);
  const std::shared_ptr<Mapping> mapping = source->map();
  ASSERT_TRUE(mapping);
  ASSERT_EQ(mapping->bytes().size(), source->size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Entry& entry = catalogue->entries()[i];
    ASSERT_EQ(entry.name, samples[i].spec.name);
    const Bytes data = mapping->bytes().subspan(entry.data_offset, entry.data_size);
    EXPECT_TRUE(same(data, samples[i].data));
    std::ranges::fill(data, std::byte{1});  // private
  }
  const std::shared_ptr<Mapping> again = source->map();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Entry& entry = catalogue->entries()[i];
    EXPECT_TRUE(same(again->bytes().subspan(entry.data_offset, entry.data_size), samples[i].data));
  }
  EXPECT_TRUE(source->identity());
  EXPECT_TRUE(source->reads(*open(folder_ / "part 105.safetensors")->identity()));
  EXPECT_FALSE(
      source->reads(*open_source(folder_ / "m.safetensors.index.json", {}, cancel_)->identity()));
}

TEST_F(Shards, MergeWhatIsEqual) {
  const std::vector<Sample> one{sample("x", 3)};
  const std::vector<Sample> two{sample("y", 3)};
  write_file(folder_ / "a", as_text(shard_bytes(
                                one, {{}, false, {{"same", "1"}, {"other", "a"}, {"only", "2"}}})));
  write_file(
      folder_ / "b",
      as_text(shard_bytes(two, {{{Hash::Sha256}, {}}, false, {{"other", "b"}, {"same", "1"}}})));
  const auto catalogue = read(mapping(R"("x":"a","y":"b")"));
  ASSERT_EQ(catalogue->metadata().size(), 2U);
  EXPECT_EQ(catalogue->metadata()[0], MetadataPair("same", "1"));
  EXPECT_EQ(catalogue->metadata()[1], MetadataPair("only", "2"));
  EXPECT_TRUE(catalogue->data_digests().empty()) << "only one shard has digests";
  write_file(folder_ / "a", as_text(shard_bytes(one, {})));
  write_file(folder_ / "b", as_text(shard_bytes(two, {})));
  EXPECT_FALSE(read(mapping(R"("x":"a","y":"b")"))->has_metadata());
  write_file(folder_ / "b", as_text(shard_bytes(two, {{}, false, {}, true})));
  EXPECT_TRUE(read(mapping(R"("x":"a","y":"b")"))->has_metadata());
}

TEST_F(Shards, AreFoundInAFolder) {
  put("a.safetensors", {"x"});
  const std::string folder = folder_.path();
  EXPECT_EQ(read(folder)->entries()[0].name, "x");
  put("b.safetensors", {"y"});
  expect_refused(folder, "has several safetensors files and no *.safetensors.index.json",
                 ErrorKind::InvalidArgument);
  mapping(R"("y":"b.safetensors","x":"a.safetensors")");
  for (const std::string& uri : {folder, folder + "/", "file://" + folder}) {
    EXPECT_EQ(read(uri)->entries()[1].name, "y") << uri;
  }
  put("m.safetensors", {"newer"});
  expect_refused(folder, "has a model in one file,", ErrorKind::InvalidArgument);
  fs::remove(folder_ / "m.safetensors");
  write_file(folder_ / "n.safetensors.index.json", "{}");
  expect_refused(folder, "has several indexes of sharded models", ErrorKind::InvalidArgument);
  const Folder empty(testing::TempDir());
  Cancel cancel;
  const Error error = error_of([&] { open_model(empty.path(), {}, cancel); });
  EXPECT_EQ(error.system_errno(), EISDIR);
}

TEST_F(Shards, MustFitTheIndex) {
  put("a", {"x", "y"});
  put("b", {"z"});
  EXPECT_EQ(read(mapping(R"("z":"b","y":"a","x":"a")"))->entries()[0].name, "x");
  expect_refused(mapping(R"("x":"a","z":"b")"),
                 "'a' has tensor 'y', which the index does not list");
  expect_refused(mapping(R"("x":"a","y":"a","z":"b","w":"b")"),
                 "tensor 'w' is to be in the shard 'b', but no shard has it");
  expect_refused(mapping(R"("x":"a","y":"b","z":"b")"),
                 "tensor 'y' is to be in the shard 'b', but it is in 'a'");
  put("c", {"z"});
  expect_refused(mapping(R"("x":"a","y":"a","z":"b","v":"c")"),
                 "'c' has tensor 'z', and so has the shard 'b'");
  expect_refused(mapping(R"("x":"a","y":"a","z":"missing")"), "the index", ErrorKind::NotFound);
  std::string message = message_of([&] { open(folder_ / "m.safetensors.index.json"); });
  EXPECT_TRUE(contains(message, "missing")) << message;
  write_file(folder_ / "d", "not tensors");
  expect_refused(mapping(R"("x":"a","y":"a","z":"d")"), "d': this is not a .tensors");
  fs::create_directory(folder_ / "e");
  EXPECT_EQ(error_of([&] { open(mapping(R"("x":"e")")); }).system_errno(), EISDIR);
  ASSERT_EQ(mkfifo((folder_ / "f").c_str(), 0600), 0);
  expect_refused(mapping(R"("x":"f")"), "only in order", ErrorKind::Unavailable);
}

TEST_F(Shards, HaveNamesOfFilesOnly) {
  put("a", {"x"});
  for (const char* name :
       {"", ".", "..", "../a", "/etc/passwd", "./a", "b/a", "b\\\\a", "a\\u0000", "a\\n", "a/"}) {
    expect_refused(mapping("\"x\":\"" + std::string(name) + "\""), "is to be in the shard");
  }
  std::string many;
  for (int i = 0; i <= 4096; ++i) {
    many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":\"" + std::to_string(i) + "\"";
  }
  expect_refused(mapping(many), "more than 4096 shards");
}

TEST_F(Shards, NeedAWellFormedIndex) {
  put("a", {"x"});
  for (const char* good :
       {R"({"weight_map":{"x":"a"}})", " \n{\"a\":[{}],\"weight_map\":{\"x\":\"a\"},\"b\":1}\n",
        R"({"weight_map":{"\u0078":"\u0061"}})"}) {
    EXPECT_EQ(read(index(good))->entries().size(), 1U) << good;
  }
  const std::pair<const char*, const char*> bad[] = {
      {R"({"weight_map":{"x":"a"})", "malformed"},
      {R"({"weight_map":{"x":"a"}}})", "more than one JSON value"},
      {R"({"weight_map":{"x":"a"}} {})", "more than one JSON value"},
      {R"({"weight_map":{"x":"a"},"weight_map":{"x":"a"}})", "'weight_map' twice"},
      {R"({"weight_map":{"x":"a","x":"a"}})", "'x' twice"},
      {R"({"weight_map":{"x":"a","\u0078":"a"}})", "'x' twice"},
      {R"({"weight_map":{"x":1}})", "the shard of tensor 'x' is not a string"},
      {R"({"weight_map":{"x":["a"]}})", "the shard of tensor 'x' is not a string"},
      {R"({"weight_map":["x"]})", "not a JSON object"},
      {R"({"weight_map":{}})", "is empty"},
      {"{}", "without a 'weight_map'"},
      {R"({"tensors":{"x":"a"}})", "without a 'weight_map'"},
      {"{\"weight_map\":{\"\xff\":\"a\"}}", "malformed"},
  };
  for (const auto& [text, why] : bad) expect_refused(index(text), why);
  std::string deep = R"({"weight_map":)";
  for (int i = 0; i < 100000; ++i) deep += "{\"x\":";
  expect_refused(index(deep), "malformed");
  fs::resize_file(folder_ / "m.safetensors.index.json", 0);
  expect_refused(folder_ / "m.safetensors.index.json", "the file is empty");
}

TEST_F(Shards, TakeNoHugeIndex) {
  const std::string path = mapping(R"("x":"a")");
  fs::resize_file(path, kMostShardIndex + 1);
  const MemoryWatch watch;
  expect_refused(path, "at most 100000000 bytes");
  EXPECT_LT(watch.peak(), 1U << 20);
}

TEST_F(Shards, AreLoadedOnlyWhereTheyCanBeFound) {
  put("a", {"x"});
  const std::string path = mapping(R"("x":"a")");
  const std::string text = read_file(path);
  const auto memory = memory_source(as_bytes(text), nullptr);
  const Error error = error_of([&] { read_catalogue(*memory, nullptr, cancel_); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_TRUE(contains(error.what(), "index of a sharded safetensors model")) << error.what();
  const Descriptor file = open_descriptor(AT_FDCWD, path, O_RDONLY);
  expect_refused("fd:" + std::to_string(file.get()), "index of a sharded safetensors model");
}

TEST_F(Shards, HaveAVersionTogether) {
  put("a", {"x"});
  put("b", {"y"});
  const std::string path = mapping(R"("x":"a","y":"b")");
  const auto before = open(path)->version();
  ASSERT_TRUE(before);
  EXPECT_EQ(open(path)->version(), before);
  put("b", {"y", "z"});
  EXPECT_NE(open(path)->version(), before);
}

TEST_F(Shards, AreNotOpenedWhileTheIndexChanges) {
  put("0", {"x"});
  std::string map = R"("0":"0")";
  for (int i = 1; i < 200; ++i) {
    const std::string name = std::to_string(i);
    fs::create_hard_link(folder_ / "0", folder_ / name);
    map += ",\"" + name + "\":\"" + name + "\"";
  }
  const std::string path = mapping(map);
  const std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      fs::copy_file(path, folder_ / "new");
      fs::rename(folder_ / "new", path);
    }
  });
  std::optional<ErrorKind> kind;
  for (int i = 0; i < 1000 && !kind; ++i) {
    try {
      open(path);
    } catch (const Error& error) {
      kind = error.kind();
    }
  }
  EXPECT_EQ(kind, ErrorKind::Unavailable);
}

TEST(SiblingUri, IsBesideTheFile) {
  const auto beside = [](const std::string& uri) { return sibling_uri(uri, "a b%#?.st", {}); };
  // libcurl writes escapes in lower case.
  const auto beside_url = [&](const std::string& uri) { return lower_case(*beside(uri)); };
  EXPECT_EQ(beside("m.json"), "./a b%#?.st");
  EXPECT_EQ(beside("/x y/m.json"), "/x y/a b%#?.st");
  EXPECT_EQ(beside("file:///x%20y/m.json"), "/x y/a b%#?.st");
  EXPECT_EQ(beside("s3://b/deep/m?.json"), "s3://b/deep/a b%#?.st");
  EXPECT_EQ(beside("gs://b/m.json"), "gs://b/a b%#?.st");
  EXPECT_EQ(beside_url("http://h/x%2Fy/m.json"), "http://h/x%2fy/a%20b%25%23%3f.st");
  EXPECT_EQ(beside_url("https://u:p@h:81/m.json?download=true#end"),
            "https://u:p@h:81/a%20b%25%23%3f.st?download=true");
  EXPECT_EQ(beside("fd:3"), std::nullopt);
  EXPECT_EQ(beside("redis://h/m"), std::nullopt);
  for (const char* query : {"X-Amz-Date=1&X-Amz-Signature=secret", "X-Goog-Signature=secret",
                            "Signature=secret&Expires=1", "sv=1&sr=b&sig=secret"}) {
    const Error error = error_of([&] { beside("https://h/m.json?" + std::string(query)); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument) << query;
    EXPECT_TRUE(contains(error.what(), "signature")) << error.what();
    EXPECT_FALSE(contains(error.what(), "secret")) << error.what();
  }
  for (const char* query : {"Policy=x&Signature=s", "sv=1&sr=c&sig=s", "signed=1"}) {
    EXPECT_TRUE(beside("https://h/m.json?" + std::string(query))) << query;
  }
  EXPECT_EQ(kind_of([] { sibling_uri("s3://b/m.json", "a", {{"s3_version_id", "7"}}); }),
            ErrorKind::InvalidArgument);
}

}  // namespace
}  // namespace tensorizer
