// Stored names: plain keys, paths into nested structures, and which of them exclude each other.
#include <algorithm>
#include <variant>

#include "format/name.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

// A path is a list of steps.
using NameStep = std::variant<std::string, std::uint64_t>;
using NamePath = std::vector<NameStep>;

// Returns the path in the sorted form of a name.
NamePath parse_name(std::string_view name) {
  std::string form;
  append_path(form, name);
  NamePath path;
  for (std::size_t at = 0; at < form.size();) {
    const char kind = form[at++];
    std::string text;
    while (at < form.size() && form[at] != kKeyStep && form[at] != kIndexStep) {
      const bool escaped = form[at] == kStepEscape;
      text += static_cast<char>(escaped ? form[at + 1] - '0' : form[at]);
      at += escaped ? 2 : 1;
    }
    if (kind == kKeyStep) {
      path.emplace_back(text);
    } else {
      path.emplace_back(std::uint64_t{std::stoull(text)});
    }
  }
  return path;
}

NamePath path(std::initializer_list<NameStep> steps) { return steps; }
NameStep index(std::uint64_t value) { return value; }
NameStep key(std::string text) { return text; }

std::string nested(std::string_view json) { return kNestedMark + std::string(json); }

std::string refusal(std::string_view name) {
  const Error error = error_of([&] { parse_name(name); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat) << quote(name);
  EXPECT_EQ(error_of([&] { check_name(name); }).what(), std::string(error.what()));
  return std::string(error.message());
}

TEST(Name, IsAPlainKey) {
  for (const std::string& name : {"weight"s, "a.b.c"s, ".root"s, " "s, "[\"a\"]"s, "é漢😀"s,
                                  "a\nb"s, "a\0b"s, std::string(65535, 'x')}) {
    EXPECT_EQ(parse_name(name), path({key(name)}));
    EXPECT_NO_THROW(check_name(name));
    EXPECT_FALSE(is_nested(name));
  }
}

TEST(Name, OfAPlainKeyIsNotEmptyAndUtf8) {
  EXPECT_EQ(refusal(""), "is empty");
  EXPECT_EQ(refusal("a\xff"), "is not UTF-8");
  EXPECT_EQ(refusal("\xed\xa0\x80"), "is not UTF-8");
}

TEST(Name, IsAPathOfKeysAndIndices) {
  EXPECT_EQ(parse_name(nested(R"(["layers",0,"w"])")), path({key("layers"), index(0), key("w")}));
  EXPECT_EQ(parse_name(nested("[0]")), path({index(0)}));
  EXPECT_EQ(parse_name(nested(R"([""])")), path({key("")}));
  EXPECT_EQ(parse_name(nested(R"(["0",10])")), path({key("0"), index(10)}));
  EXPECT_EQ(parse_name(nested("[9223372036854775807]")), path({index(9223372036854775807U)}));
}

TEST(Name, ReadsEveryEscape) {
  EXPECT_EQ(parse_name(nested(R"(["\"\\\/\b\f\n\r\t"])")), path({key("\"\\/\b\f\n\r\t")}));
  EXPECT_EQ(parse_name(nested(R"(["\u0041\u00e9\u6F22\ud83d\uDE00"])")), path({key("Aé漢😀")}));
  EXPECT_EQ(parse_name(nested(R"(["\u0000\u007f\uffff"])")), path({key("\0\x7f\xef\xbf\xbf"s)}));
  EXPECT_EQ(parse_name(nested(R"(["\ud800\udc00\udbff\udfff"])")),
            path({key("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf")}));
  EXPECT_EQ(parse_name(nested("[\"é\x7f\"]")), path({key("é\x7f")}));
}

TEST(Name, AllowsSpacesButNoLineBreaks) {
  EXPECT_EQ(parse_name(nested(" [ \"a\"\t, 1 ,\"b\" ] \t")), path({key("a"), index(1), key("b")}));
  for (const char* json : {"[\"a\",\n1]", "[\"a\"\r]", "\n[\"a\"]", "[\"a\"]\n", "[\"a\",\v1]",
                           "[\"a\nb\"]", "[\"a\tb\"]"}) {
    refusal(nested(json));
  }
}

TEST(Name, IsNoOtherJson) {
  for (const char* json : {"",
                           "[",
                           "[]",
                           "[ ]",
                           "[,]",
                           "[\"a\",]",
                           "[,\"a\"]",
                           "[\"a\"",
                           "[\"a",
                           "[\"a\"]]",
                           "[[\"a\"]]",
                           "{\"a\":1}",
                           "\"a\"",
                           "1",
                           "[-1]",
                           "[-0]",
                           "[+1]",
                           "[01]",
                           "[00]",
                           "[1.0]",
                           "[1e3]",
                           "[0x1]",
                           "[true]",
                           "[null]",
                           "['a']",
                           "[\"a\" 1]",
                           "[1 2]",
                           "[\"\\x41\"]",
                           "[\"\\\"",
                           "[\"\\u\"]",
                           "[\"\\u12\"]",
                           "[\"\\u12g4\"]",
                           "[\"\\U0041\"]",
                           "[\"a\"]x"}) {
    refusal(nested(json));
  }
  EXPECT_EQ(refusal(nested("[1]]")), "has text after its JSON array");
  EXPECT_EQ(refusal(nested("[9223372036854775808]")), "has an index past 2^63");
  EXPECT_EQ(refusal(nested("[99999999999999999999999999999]")), "has an index past 2^63");
}

TEST(Name, HasNoHalvesOfSurrogatePairs) {
  for (const char* json : {R"(["\ud83d"])", R"(["\ud83dx"])", R"(["\ude00"])", R"(["\ud83d\n"])",
                           R"(["\ud83d\u0041"])", R"(["\ud83d\ud83d"])", R"(["\ude00\ud83d"])"}) {
    EXPECT_EQ(refusal(nested(json)), "has half a surrogate pair") << json;
  }
}

TEST(Name, IsNoDeeperThanAnybodyNests) {
  const auto deep = [](std::size_t steps) {
    std::string json = "[0";
    for (std::size_t i = 1; i < steps; ++i) json += ",0";
    return nested(json + "]");
  };
  EXPECT_EQ(parse_name(deep(1000)).size(), 1000U);
  EXPECT_EQ(refusal(deep(1001)), "is nested more than 1000 levels deep");
  EXPECT_EQ(refusal(deep(32000)), "is nested more than 1000 levels deep");
}

TEST(Name, CutAnywhereIsRefused) {
  const std::string whole = nested(R"([ "lay\"e\ud83d\ude00rs" , 120, "w" ])");
  EXPECT_NO_THROW(parse_name(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) refusal(whole.substr(0, size));
}

TEST(Name, NeverBreaksTheParser) {
  Dice dice(3);
  const std::string alphabet = "[]\"\\,0129 \tuda8Deb\x1e\xc3\xa9\xff\n";
  int parsed = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string name = nested(dice.one_in(2) ? "[" : "");
    for (std::uint64_t left = dice.below(12); left > 0; --left) {
      name += alphabet[dice.below(alphabet.size())];
    }
    if (dice.one_in(2)) name += ']';
    try {
      EXPECT_FALSE(parse_name(name).empty());
      ++parsed;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    }
  }
  EXPECT_GT(parsed, 10);
}

// ---- names that exclude each other

NameConflict conflict_of(const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  Cancel cancel;
  return find_conflict(views, cancel);
}

void expect_conflict(const std::vector<std::string>& names, std::size_t first, std::size_t second,
                     std::string_view reason) {
  const NameConflict conflict = conflict_of(names);
  EXPECT_EQ(conflict.first, first);
  EXPECT_EQ(conflict.second, second);
  EXPECT_EQ(conflict.reason, reason);
}

void expect_none(const std::vector<std::string>& names) {
  const NameConflict conflict = conflict_of(names);
  EXPECT_EQ(conflict.first, conflict.second) << conflict.reason;
}

TEST(NameConflict, IsNoneBetweenDifferentNames) {
  expect_none({});
  expect_none({"a"});
  expect_none({"b", "a", "a.b", "a.", "A"});
  expect_none({"a", nested(R"(["b"])"), nested(R"(["c","a"])"), nested(R"(["c","b",0])"),
               nested(R"(["c","b",1])")});
  expect_none({nested("[0]"), nested("[1,0]"), nested("[1,1]")});
  expect_none({"1", nested(R"(["0"])")});
}

TEST(NameConflict, IsEquality) {
  expect_conflict({"x", "b", "a", "b"}, 1, 3, "has the same name as");
  expect_conflict({nested(R"(["a"])"), "b", "a"}, 0, 2, "has the same name as");
  expect_conflict({nested(R"(["é",1])"), "b", nested(R"([ "\u00e9" , 1 ])")}, 0, 2,
                  "has the same name as");
}

TEST(NameConflict, IsNotLookedForAnyMoreAfterACancel) {
  Cancel cancel;
  cancel.request();
  for (const std::string_view first : {"x", "\x1e[\"x\"]"}) {
    std::vector<std::string> names{std::string(first)};
    for (int i = 0; i < 5000; ++i) names.push_back(std::to_string(i * 7919 % 5000));
    const std::vector<std::string_view> views(names.begin(), names.end());
    EXPECT_EQ(kind_of([&] { find_conflict(views, cancel); }), ErrorKind::Cancelled);
  }
}

TEST(NameConflict, TellsBytesOfNamesFromThoseOfForms) {
  expect_none({"a", "a\0b"s, "a\1b"s, "a\2b"s, "a\0020b"s, nested(R"(["b","\u0000"])"),
               nested(R"(["b","\u0001"])"), nested(R"(["b","\u00020"])"), nested(R"(["c",10])"),
               nested(R"(["c",1])")});
  expect_conflict({nested(R"(["a","\u0000b"])"), "x", nested(R"(["a","\u0000b",1])")}, 0, 2,
                  "is inside, or holds, the tensor");
}

TEST(NameConflict, IsATensorInsideAnother) {
  const std::string_view reason = "is inside, or holds, the tensor";
  expect_conflict({nested(R"(["a","b"])"), "x", nested(R"(["a"])")}, 0, 2, reason);
  expect_conflict({"a", "x", nested(R"(["a",0,1])")}, 0, 2, reason);
}

TEST(NameConflict, IsALayerOfKeysAndIndices) {
  const std::string_view reason = "mixes keys and indices in one layer with";
  expect_conflict({nested("[0]"), "a"}, 0, 1, reason);
  expect_conflict({"x", nested(R"(["a","0","b"])"), nested(R"(["a",0,"b"])")}, 1, 2, reason);
}

// Returns whether two paths conflict, by the definition.
bool exclude_each_other(const NamePath& a, const NamePath& b) {
  const std::size_t both = std::min(a.size(), b.size());
  const auto [at_a, at_b] =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(both), b.begin());
  if (at_a == a.begin() + static_cast<std::ptrdiff_t>(both)) return true;
  return at_a->index() != at_b->index();
}

TEST(NameConflict, IsFoundWhereverThereIsOne) {
  Dice dice(4);
  const std::vector<std::string> steps{"\"a\"", "\"b\"", "\"c\"", "0", "1"};
  int with = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> names;
    for (std::uint64_t count = 1 + dice.below(5); count > 0; --count) {
      std::string json = "[" + dice.pick(steps);
      for (std::uint64_t more = dice.below(3); more > 0; --more) json += "," + dice.pick(steps);
      names.push_back(dice.one_in(6) ? "a" : nested(json + "]"));
    }
    bool expected = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        expected |= exclude_each_other(parse_name(names[i]), parse_name(names[j]));
      }
    }
    const NameConflict found = conflict_of(names);
    ASSERT_EQ(found.first < found.second, expected);
    if (!expected) continue;
    ++with;
    ASSERT_TRUE(
        exclude_each_other(parse_name(names[found.first]), parse_name(names[found.second])));
  }
  EXPECT_GT(with, 500);
  EXPECT_LT(with, 3900);
}

}  // namespace
}  // namespace tensorizer
