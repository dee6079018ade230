// What a misspelt name was meant to be.
#include <ctime>
#include <string>
#include <vector>

#include "base/suggest.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace std::string_view_literals;
using Names = std::vector<std::string_view>;

TEST(DidYouMean, FindsTheNearestName) {
  const Names known{"threads", "memory_ceiling", "staging", "key"};
  EXPECT_EQ(did_you_mean("thread", known), ": did you mean 'threads'?");
  EXPECT_EQ(did_you_mean("memory_celing", known), ": did you mean 'memory_ceiling'?");
  EXPECT_EQ(did_you_mean("stagign", known), ": did you mean 'staging'?") << "two letters swapped";
  EXPECT_EQ(did_you_mean("kez", known), ": did you mean 'key'?");
  EXPECT_EQ(did_you_mean("tthreads", known), ": did you mean 'threads'?");
}

TEST(DidYouMean, DoesNotDependOnCase) {
  EXPECT_EQ(did_you_mean("ALL", Names{"none", "all"}), ": did you mean 'all'?");
  EXPECT_EQ(did_you_mean("a", Names{"A", "B"}), ": did you mean 'A'?");
}

TEST(DidYouMean, IsSilentAboutNamesThatAreFar) {
  EXPECT_EQ(did_you_mean("weight", Names{"bias", "running_mean"}), "");
  EXPECT_EQ(did_you_mean("ab", Names{"ax"}), "") << "one letter of two is too much";
  EXPECT_EQ(did_you_mean("abcdef", Names{"xycdzf"}), "") << "three letters of six";
  EXPECT_EQ(did_you_mean("abcdefghijklmnop", Names{"ABCDwxyzijklmnop"}), "") << "four letters";
  EXPECT_EQ(did_you_mean("", Names{"a", ""}), ": did you mean ''?");
  EXPECT_EQ(did_you_mean("x", Names{}), "");
}

TEST(DidYouMean, KnowsPrefixesOfModules) {
  EXPECT_EQ(did_you_mean("module.fc.weight", Names{"fc.bias", "fc.weight"}),
            ": did you mean 'fc.weight'?");
  EXPECT_EQ(did_you_mean("fc.weight", Names{"model.fc.weight"}),
            ": did you mean 'model.fc.weight'?");
  EXPECT_EQ(did_you_mean("c.weight", Names{"encoder.abc.weight"}), "");
}

TEST(DidYouMean, KnowsTheStartsOfNames) {
  const Names known{"max_shard_size", "metadata", "layers.0.weight"};
  EXPECT_EQ(did_you_mean("max_shard", known), ": did you mean 'max_shard_size'?");
  EXPECT_EQ(did_you_mean("meta", known), ": did you mean 'metadata'?");
  EXPECT_EQ(did_you_mean("max", known), "") << "short ones begin many names";
  EXPECT_EQ(did_you_mean("layers", known), "") << "a module is no tensor";
}

TEST(DidYouMean, NamesThreeAtMostAndOnlyTheNearest) {
  EXPECT_EQ(did_you_mean("layer", Names{"layer1", "layers", "layerx", "layerz"}),
            ": did you mean 'layer1', 'layers' or 'layerx'?");
  EXPECT_EQ(did_you_mean("layers.x", Names{"layers.10", "layers.1", "layers.2"}),
            ": did you mean 'layers.1' or 'layers.2'?");
}

TEST(DidYouMean, QuotesNames) {
  EXPECT_EQ(did_you_mean("weight", Names{"weight\n"}), ": did you mean 'weight\\x0a'?");
}

TEST(DidYouMean, ReadsNamesOfADescription) {
  EXPECT_EQ(did_you_mean("treu", "'true' or 'false'"sv), ": did you mean 'true'?");
  EXPECT_EQ(did_you_mean("moderat", "'min', 'moderate', or PASSES,BYTES"sv),
            ": did you mean 'moderate'?");
  EXPECT_EQ(did_you_mean("number", "a number of bytes"sv), "");
  EXPECT_EQ(did_you_mean("open", "'open"sv), "");
}

TEST(DidYouMean, TakesLittleTimeForHostileNames) {
  const std::string longest(128, 'a');
  const std::string longer(1 << 20, 'a');
  EXPECT_EQ(did_you_mean(longer, Names{longer}), "");
  EXPECT_EQ(did_you_mean(longest, Names{longer}), "");
  std::vector<std::string> other;
  for (int i = 0; i < 128; ++i) {
    other.push_back(longest);
    other.back()[static_cast<std::size_t>(i)] = 'b';
  }
  Names many;
  for (std::size_t i = 0; i < 1'000'000; ++i) many.push_back(other[i % other.size()]);
  // Of the processor, because other processes may use it as well.
  const std::clock_t begin = std::clock();
  EXPECT_NE(did_you_mean(longest, many), "");
  // A third of a second without sanitizers, and sixty times that if every name is compared.
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 10);
}

}  // namespace
}  // namespace tensorizer
