// What a signed statement may say of the files of a model, and that any other is refused.
#include <array>

#include "memory_watch.h"
#include "trust/statement.h"
#include "trust_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

Manifest read(std::string_view text) { return open_payload(copy_of(text), "somebody", {}, "'b'"); }
Manifest read(const StatementText& statement) { return read(statement.text()); }

void expect_refused(std::string_view text, std::string_view why) {
  const MemoryWatch watch;
  const Error error = error_of([&] { read(text); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_TRUE(contains(error.message(), why)) << error.what();
  EXPECT_TRUE(
      error.message().starts_with("'b': what was signed is not a list of a model's files: "))
      << error.what();
  EXPECT_LT(watch.peak(), 20 * text.size() + (64 << 10));
}

void expect_refused(const StatementText& statement, std::string_view why) {
  expect_refused(statement.text(), why);
}

void expect_name_refused(const std::string& name, std::string_view why) {
  expect_refused(StatementText{{{name}}}, why);
  expect_refused(shards_of({{name + ":0:4"}}), why);
}

std::string digest(char c) { return std::string(64, c); }

std::string hex(ConstBytes bytes) { return to_hex(bytes); }

const std::string kGood = StatementText().text();
const std::string kGoodShards = shards_of({{"a:0:4"}, {"a:4:6"}}).text();

TEST(Statement, ListsFiles) {
  const StatementText text{
      {{"z", digest('3')}, {"a/b.txt", digest('1')}, {"a:0:4", digest('2')}},
      R"("method":"files","hash_type":"sha256","allow_symlinks":true,"ignore_paths":[".git","x"])"};
  const Manifest manifest = read(text);
  EXPECT_FALSE(manifest.in_shards());
  EXPECT_TRUE(manifest.allow_symlinks);
  EXPECT_EQ(manifest.ignored, (std::vector<std::string>{".git", "x"}));
  EXPECT_EQ(manifest.model, "m");
  EXPECT_EQ(manifest.signer, "somebody");
  EXPECT_EQ(to_hex(manifest.root), text.root());
  ASSERT_EQ(manifest.files.size(), 3U);
  EXPECT_EQ(manifest.files[0].name, "a/b.txt");
  EXPECT_EQ(hex(manifest.digests_of(manifest.files[0])), digest('1'));
  EXPECT_EQ(manifest.files[1].name, "a:0:4");
  EXPECT_EQ(hex(manifest.digests_of(*manifest.find("a:0:4"))), digest('2'));
  EXPECT_EQ(hex(manifest.digests_of(*manifest.find("z"))), digest('3'));
  EXPECT_EQ(manifest.find("z")->size, 0U);
  for (const char* const missing : {"", "a", "a/b", "a/b.txt/", "zz", "Z"}) {
    EXPECT_EQ(manifest.find(missing), nullptr) << missing;
  }
}

TEST(Statement, ListsShardsInAnyOrder) {
  const Manifest manifest = read(shards_of({{"b:0:3", digest('5')},
                                            {"a:8:9", digest('3')},
                                            {"a:0:4", digest('1')},
                                            {"c:1:4:0:4", digest('6')},
                                            {"a:4:8", digest('2'), "sha256-sharded-4"}}));
  EXPECT_EQ(manifest.shard_size, 4U);
  ASSERT_EQ(manifest.files.size(), 3U);
  EXPECT_EQ(manifest.find("a")->size, 9U);
  EXPECT_EQ(hex(manifest.digests_of(*manifest.find("a"))), digest('1') + digest('2') + digest('3'));
  EXPECT_EQ(manifest.find("b")->size, 3U);
  EXPECT_EQ(hex(manifest.digests_of(*manifest.find("b"))), digest('5'));
  EXPECT_EQ(manifest.find("c:1:4")->size, 4U);
  EXPECT_EQ(manifest.find("c"), nullptr);
}

TEST(Statement, NamesHaveAllOtherCharacters) {
  const Manifest manifest = read(StatementText{{{R"(\u00fc\"\\ \ud83d\ude00\u2028*.bin)"}}});
  EXPECT_NE(manifest.find("\xc3\xbc\"\\ \xf0\x9f\x98\x80\xe2\x80\xa8*.bin"), nullptr);
  EXPECT_NE(read(StatementText{{{".a/..b/c..."}}}).find(".a/..b/c..."), nullptr);
}

TEST(Statement, IgnoresOtherMembersOfResourcesAndSubjects) {
  EXPECT_EQ(read(with(kGood, R"({"name":"config.json")",
                      R"({"annotations":{"a":[1,{"b":null}],"c":-1.5e3,"d":true},"uri":"x","name":)"
                      R"("config.json")"))
                .files.size(),
            2U);
  EXPECT_EQ(read(with(kGood, R"({"name":"m")", R"({"uri":"x","name":"m")")).model, "m");
  EXPECT_EQ(read(with(kGood, R"("digest":{"sha256")", R"("digest":{"sha1":"00","sha256")")).model,
            "m");
}

TEST(Statement, ShardSizesMayHaveAPoint) {
  const auto of_size = [](const std::string& size) { return shards_of({{"a:0:3"}}, size); };
  EXPECT_EQ(read(of_size("1048576.0")).shard_size, 1048576U);
  EXPECT_EQ(read(of_size("1e6")).shard_size, 1000000U);
  EXPECT_EQ(read(of_size("18446744073709551615")).shard_size, 18446744073709551615U);
  for (const char* const bad :
       {"0", "0.0", "-4", "4.5", "1e300", "9007199254740994.0", "\"4\"", "null", "true", "[4]"}) {
    expect_refused(of_size(bad), "'shard_size' is not a whole number of at least 1");
  }
  expect_refused(of_size("18446744073709551616"), "malformed");
  expect_refused(of_size("04"), "malformed");
}

TEST(Statement, RefusesNamesThatAreNoFiles) {
  expect_name_refused("", "it is empty");
  expect_name_refused("/etc/passwd", "it is an absolute path");
  expect_name_refused("a//b", "it has an empty part");
  expect_name_refused("a/", "or ends with '/'");
  expect_name_refused("..", "it has the part '.' or '..'");
  expect_name_refused("a/../b", "it has the part");
  expect_name_refused("../a", "it has the part");
  expect_name_refused("./a", "it has the part");
  expect_name_refused("a/.", "it has the part");
  expect_name_refused(R"(a\u0000b)", "it has a control character");
  expect_name_refused(R"(a\nb)", "it has a control character");
  expect_name_refused(R"(a\u007fb)", "it has a control character");
}

TEST(Statement, RefusesNamesTwice) {
  expect_refused(StatementText{{{"a"}, {"b"}, {R"(\u0061)"}}}, "lists the file 'a' twice");
  expect_refused(shards_of({{"a:0:4"}, {"a:0:4"}}), "from 0 to 4 overlaps the one before");
}

TEST(Statement, RefusesShardsThatDoNotFit) {
  expect_refused(shards_of({{"a:0:4"}, {"a:8:12"}}), "from 8 to 12 leaves a gap");
  expect_refused(shards_of({{"a:4:8"}}), "from 4 to 8 leaves a gap, as the one before ends at 0");
  expect_refused(shards_of({{"a:0:3"}, {"a:4:8"}}), "leaves a gap, as the one before ends at 3");
  expect_refused(shards_of({{"a:0:4"}, {"a:0:3"}}), "overlaps");
  expect_refused(shards_of({{"a:0:4"}, {"a:2:6"}}), "'a:2:6' begins at no multiple");
  expect_refused(shards_of({{"a:0:5"}}), "'a:0:5' is larger than the shard size");
  expect_refused(shards_of({{"a:0:0"}}), "'a:0:0' is empty");
  expect_refused(shards_of({{"a:4:0"}}), "'a:4:0' is empty");
}

TEST(Statement, RefusesRangesThatAreNoNumbers) {
  for (const char* const range :
       {"+0:4", "-0:4", "0:+4", "00:4", "0:04", " 0:4", "0:4 ", "0x0:4", "0:", ":4", "0:4.0",
        "0:9223372036854775808", "18446744073709551616:18446744073709551617", "a:b"}) {
    expect_refused(shards_of({{std::string("a:") + range}}), "is not two numbers below 2^63");
  }
  expect_refused(shards_of({{"a"}}), "does not end with its range");
  expect_refused(shards_of({{"a:4"}}), "does not end with its range");
  expect_refused(shards_of({{":4"}}), "does not end with its range");
  const Manifest largest = read(shards_of({{"a:0:9223372036854775807"}}, "9223372036854775807"));
  EXPECT_EQ(largest.find("a")->size, 9223372036854775807U);
}

TEST(Statement, RefusesDigestsOfAnotherForm) {
  for (const std::string& bad : {digest('A'), digest('g'), digest('1').substr(1), digest('1') + "1",
                                 std::string(), digest('1').substr(1) + " "}) {
    expect_refused(StatementText{{{"a", bad}}}, "is not 64 lower-case hex digits");
  }
  expect_refused(with(kGood, StatementText().root(), digest('A')), "of the subject is not 64");
}

TEST(Statement, RefusesOtherAlgorithms) {
  const StatementText blake2{{{"a", std::string(128, '1'), "blake2b"}},
                             R"("method":"files","hash_type":"blake2b","allow_symlinks":false)"};
  expect_refused(blake2, "its files are hashed with 'blake2b', and only SHA-256 is supported");
  expect_refused(StatementText{{{"a", digest('1'), "blake3"}}},
                 "the resource 'a' is hashed with 'blake3', and only SHA-256 is supported");
  expect_refused(StatementText{{{"a", digest('1'), "SHA256"}}}, "'SHA256', which is not the");
  expect_refused(StatementText{{{"a", digest('1'), "sha256-sharded-4"}}}, "'sha256-sharded-4'");
  for (const char* const bad :
       {"sha256-sharded-5", "sha256-sharded-", "sha256-sharded-04", "sha256-sharded-4.0"}) {
    expect_refused(shards_of({{"a:0:4", digest('1'), bad}}), "is hashed with");
  }
}

TEST(Statement, RefusesARootDigestOfOtherResources) {
  expect_refused(
      with(kGood, StatementText().root(), digest('0')),
      "its root digest is " + digest('0') + ", but its resources make " + StatementText().root());
  // It is that of the order in which they are listed.
  const StatementText other{{{"a", digest('2')}, {"b", digest('1')}}};
  expect_refused(with(other.text(), other.root(),
                      StatementText{{{"b", digest('1')}, {"a", digest('2')}}}.root()),
                 "its root digest is");
}

TEST(Statement, RefusesAnotherSubject) {
  const std::string text = StatementText().text();
  const Sha256Digest wanted = sha256({});
  const Error error = error_of([&] { open_payload(copy_of(text), "", wanted, "'b'"); });
  EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
  EXPECT_EQ(error.message(), "'b': it is about the model 'm' with the root digest " +
                                 StatementText().root() + ", expected is " + to_hex(wanted));
  const Manifest same = read(text);
  EXPECT_EQ(open_payload(copy_of(text), "", same.root, "'b'").root, same.root);
}

TEST(Statement, RefusesMissingMembers) {
  for (const auto& [from, to, why] : std::vector<std::array<const char*, 3>>{
           {R"("_type":"https://in-toto.io/Statement/v1",)", "", "has no '_type'"},
           {R"("predicateType":"https://model_signing/signature/v1.0",)", "", "no 'predicateType'"},
           {R"("name":"m",)", "", "the subject has no 'name'"},
           {R"("name":"m",)", R"("name":"",)", "the subject has no name"},
           {R"("name":"config.json",)", "", "resource 0 has no 'name'"},
           {R"("method":"files",)", "", "'serialization' has no 'method'"},
           {R"("hash_type":"sha256",)", "", "'serialization' has no 'hash_type'"},
           {R"(,"allow_symlinks":false)", "", "'serialization' has no 'allow_symlinks'"},
           {R"("digest":{"sha256":)", R"("digest":{"sha512":)",
            "the digest of the subject has no 'sha256'"},
       }) {
    expect_refused(with(kGood, from, to), why);
  }
  const StatementText one{{{"a"}}};
  expect_refused(
      with(one.text(), R"("name":"a","digest":")" + digest('1') + R"(",)", R"("name":"a",)"),
      "resource 0 has no 'digest'");
  expect_refused(with(one.text(), R"(,"algorithm":"sha256")", ""), "resource 0 has no 'algorithm'");
  expect_refused(with(one.text(), R"("algorithm":"sha256")", R"("algorithm":"")"),
                 "the resource 'a' is hashed with ''");
  expect_refused(StatementText{{}}, "it lists no files");
  expect_refused(with(kGoodShards, R"(,"shard_size":4)", ""), "without a 'shard_size'");
  expect_refused(with(kGood, R"("method":"files")", R"("method":"files","shard_size":4)"),
                 "it has a 'shard_size' without shards");
  const std::string head = R"({"_type":"https://in-toto.io/Statement/v1")";
  const std::string type = R"(,"predicateType":"https://model_signing/signature/v1.0")";
  const std::string subject =
      R"(,"subject":[{"name":"m","digest":{"sha256":")" + digest('1') + R"("}}])";
  expect_refused(head + type + "}", "it has no 'subject'");
  expect_refused(head + type + subject + "}", "it has no 'predicate'");
  expect_refused(head + type + subject + R"(,"predicate":{"resources":[]}})",
                 "the predicate has no 'serialization'");
  expect_refused(
      head + type + subject + R"(,"predicate":{"serialization":{)" + one.serialization + "}}}",
      "the predicate has no 'resources'");
  expect_refused(head + "}", "it has no 'predicateType'");
}

TEST(Statement, RefusesUnknownMembers) {
  expect_refused(with(kGood, R"({"_type")", R"({"x":1,"_type")"), "it has the key 'x'");
  expect_refused(with(kGood, R"({"resources")", R"({"x":1,"resources")"),
                 "the predicate has the key 'x', which the format does not have");
  expect_refused(with(kGood, R"({"method")", R"({"x":1,"method")"),
                 "'serialization' has the key 'x'");
}

TEST(Statement, RefusesMembersTwice) {
  for (const auto& [from, again] : std::vector<std::array<std::string, 2>>{
           {R"("_type":"https://in-toto.io/Statement/v1")", "_type"},
           {R"("name":"m")", "name"},
           {R"("name":"config.json")", "name"},
           {R"("method":"files")", "method"},
           {R"("sha256":")" + StatementText().root() + '"', "sha256"},
       }) {
    expect_refused(with(kGood, from, from + "," + from), "has the key '" + again + "' twice");
    std::string escaped = from;
    escaped.replace(1, 1,
                    from[1] == '_' ? R"(\u005f)" : R"(\u00)" + hex(as_bytes(from.substr(1, 1))));
    expect_refused(with(kGood, from, from + "," + escaped), "has the key '" + again + "' twice");
  }
  // Also where nobody looks.
  expect_refused(with(kGood, R"({"name":"m")", R"({"x":[{"a":1,"\u0061":2}],"name":"m")"),
                 "an object has the key 'a' twice");
}

TEST(Statement, RefusesOtherTypesAndSubjects) {
  expect_refused(with(kGood, "in-toto.io/Statement/v1", "in-toto.io/Statement/v0.1"),
                 "its type is 'https://in-toto.io/Statement/v0.1', expected is");
  expect_refused(with(kGood, "model_signing/signature/v1.0", "slsa.dev/provenance/v1"),
                 "its predicate type is 'https://slsa.dev/provenance/v1', expected is");
  expect_refused(with(kGood, "model_signing/signature/v1.0", "model_signing/Digests/v0.1"),
                 "it was made by model_signing 0.2, so sign the model again");
  const std::string subject =
      R"({"name":"m","digest":{"sha256":")" + StatementText().root() + R"("}})";
  expect_refused(with(kGood, subject, subject + "," + subject), "it has 2 subjects, expected is");
  expect_refused(with(kGood, subject, ""), "it has 0 subjects");
  expect_refused(with(kGood, R"("method":"files")", R"("method":"trees")"),
                 "its method is 'trees', expected is 'files' or 'shards'");
}

TEST(Statement, RefusesValuesOfAnotherType) {
  expect_refused(with(kGood, R"("name":"m")", R"("name":1)"),
                 "name of the subject is not a string");
  expect_refused(with(kGood, R"("allow_symlinks":false)", R"("allow_symlinks":"false")"),
                 "'allow_symlinks' is not true or false");
  expect_refused(with(kGood, R"("allow_symlinks":false)", R"("allow_symlinks":null)"),
                 "'allow_symlinks' is not true or false");
  expect_refused(
      with(kGood, R"("allow_symlinks":false)", R"("allow_symlinks":false,"ignore_paths":"x")"),
      "'ignore_paths' is not an array");
  expect_refused(
      with(kGood, R"("allow_symlinks":false)", R"("allow_symlinks":false,"ignore_paths":[1])"),
      "an ignored path is not a string");
  expect_refused(
      with(kGood, R"("allow_symlinks":false)", R"("allow_symlinks":false,"ignore_paths":["a",""])"),
      "an ignored path is empty");
  expect_refused("[]", "it is not a JSON object");
  expect_refused("1", "it is not a JSON object");
  expect_refused("", "malformed");
}

TEST(Statement, RefusesWhatIsNotJson) {
  expect_refused(kGood + "x", "more than one JSON value");
  expect_refused(kGood + kGood, "");
  expect_refused("\xef\xbb\xbf" + kGood, "");
  for (const char* const junk : {"tru",
                                 "truex",
                                 "nul",
                                 "nulll",
                                 "01",
                                 "-",
                                 "1.",
                                 "+1",
                                 ".5",
                                 "1e",
                                 "\"\xff\"",
                                 "\"\\ud800\"",
                                 "\"\\x\"",
                                 "\"\t\"",
                                 "{",
                                 "[1,]",
                                 "{\"a\":1,}",
                                 "{\"a\" 1}",
                                 "{a:1}",
                                 "[1 2]",
                                 "\"a\"\"b\"",
                                 "",
                                 "'a'",
                                 "NaN",
                                 "123456789012345678901234567890"}) {
    expect_refused(with(kGood, R"({"name":"m")", R"({"x":)" + std::string(junk) + R"(,"name":"m")"),
                   "");
  }
}

TEST(Statement, RefusesDeepJson) {
  // Inside of the statement, the subjects and one of them.
  for (const std::size_t depth : {29U, 30U, 100000U}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    const std::string text = with(kGood, R"({"name":"m")", R"({"x":)" + deep + R"(,"name":"m")");
    if (depth == 29) {
      EXPECT_EQ(read(text).model, "m");
    } else {
      expect_refused(text, "nested more than 32 levels deep");
    }
  }
}

TEST(Statement, CutsAreRefused) {
  for (const std::string& whole : {kGood, kGoodShards}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      expect_refused(whole.substr(0, size), "");
    }
  }
}

TEST(Statement, ManyShardsTake32BytesEach) {
  std::vector<ResourceText> resources;
  for (std::size_t i = 0; i < 20000; ++i) {
    resources.push_back(
        {"model.safetensors:" + std::to_string(4 * i) + ":" + std::to_string(4 * i + 4)});
  }
  const std::string text = shards_of(std::move(resources)).text();
  const MemoryWatch watch;
  const Manifest manifest = read(text);
  EXPECT_LT(watch.peak(), 9 * text.size());
  EXPECT_EQ(manifest.files.size(), 1U);
  EXPECT_EQ(manifest.find("model.safetensors")->count, 20000U);
  EXPECT_EQ(manifest.digests.capacity(), 20000 * kSha256Size);
}

}  // namespace
}  // namespace tensorizer
