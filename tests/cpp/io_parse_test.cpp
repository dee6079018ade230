// Parsers of small languages from outside: settings, JSON, XML, timestamps, command lines. They
// accept what is well-formed with its intended meaning, refuse everything else, and never crash.
#include <gtest/gtest.h>

#include "base/timestamp.h"
#include "io/aws/command.h"
#include "io/aws/ini.h"
#include "io/aws/json.h"
#include "io/xml.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using Words = std::vector<std::string>;

TEST(Ini, IsAsAwsAndS3cmdWriteIt) {
  const IniFile file = parse_ini(
      "\xef\xbb\xbf# made by hand\r\n"
      "[default]\r\n"
      "aws_access_key_id=A=B # c\r\n"
      "  ; indented, and no setting\n"
      "\n"
      "REGION \t=\t eu-west-1  \n"
      "empty =\n"
      "colon: here = there\n"
      "[ profile  a b ] # c\n"
      "    s3 =\n"
      "        addressing_style = path\n"
      "\n"
      "        # in between\n"
      "      Endpoint_URL = http://x/?a=b\n"
      "\toutput = json\n"  // indented less than the block
      "      and more\n"
      "[default]\n"
      "region = us-east-1\n"
      "last =",
      "'f'");
  const IniSection& defaults = file.at("default");
  EXPECT_EQ(defaults.at("aws_access_key_id"), "A=B # c");
  EXPECT_EQ(defaults.at("region"), "us-east-1");
  EXPECT_EQ(defaults.at("empty"), "");
  EXPECT_EQ(defaults.at("colon"), "here = there");
  EXPECT_EQ(defaults.at("last"), "");
  EXPECT_EQ(defaults.size(), 5U);
  const IniSection& profile = file.at("profile  a b");
  EXPECT_EQ(profile.at("s3.addressing_style"), "path");
  EXPECT_EQ(profile.at("s3.endpoint_url"), "http://x/?a=b");
  EXPECT_EQ(profile.at("output"), "json\nand more");
  EXPECT_EQ(file.size(), 2U);
}

TEST(Ini, IsTakenWhateverItsSize) {
  EXPECT_TRUE(parse_ini("", "'f'").empty());
  EXPECT_TRUE(parse_ini("\xef\xbb\xbf", "'f'").empty());
  const std::string huge(1 << 20, 'x');
  const IniFile file = parse_ini("[a]\nb = " + huge + "\n#" + huge + "\n[c]", "'f'");
  EXPECT_EQ(file.at("a").at("b"), huge);
  EXPECT_TRUE(file.at("c").empty());
}

TEST(Ini, SaysWhichLineIsWrongAndNotWhatIsInIt) {
  for (const std::string_view text : std::vector<std::string_view>{"[default]\nsesame\n",
                                                                   "[default\nsesame = 1",
                                                                   "\nsesame = 1",
                                                                   "[a]\n= sesame",
                                                                   "[a]\nb =\n  c sesame",
                                                                   "[a]\nb =\n\n =sesame",
                                                                   "[a]\nb = \nsesame\x01\xff",
                                                                   {"[a]\nb = sesame\0", 15}}) {
    const Error error = error_of([&] { parse_ini(text, "'some file'"); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat) << text;
    EXPECT_TRUE(contains(error.what(), "line ")) << error.what();
    EXPECT_TRUE(contains(error.what(), "of 'some file'")) << error.what();
    EXPECT_FALSE(contains(error.what(), "sesame")) << error.what();
  }
}

TEST(Json, GivesTheValuesOfAnObject) {
  const auto object = parse_json_object(
      " {\"a\":\"x\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00é\" ,\n"
      "\"n\": "
      "-15,\"z\":0,\"r\":1.5e+3,\"u\":18446744073709551615,\"t\":true,\"f\":false,\"null\":null,"
      "\"\":\"\"}\r\n");
  ASSERT_TRUE(object);
  const JsonObject expected = {{"a", "x\"\\/\b\f\n\r\té😀é"},
                               {"n", "-15"},
                               {"z", "0"},
                               {"u", "18446744073709551615"},
                               {"t", "true"},
                               {"f", "false"},
                               {"", ""}};
  EXPECT_EQ(*object, expected);
  EXPECT_TRUE(parse_json_object("{}")->empty());
  const auto nested = parse_json_object(
      "{\"a\":{}, \"b\" : [ ] ,\"c\":[1,{\"d\":[null]},\"]}\"],\"e\":\"x\", "
      "\"f\":{\"g\":{\"e\":\"y\"}}}");
  ASSERT_TRUE(nested);
  EXPECT_EQ(*nested, (JsonObject{{"e", "x"}}));
}

TEST(Json, RefusesEverythingElse) {
  for (const std::string_view text : {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[]",
                                      "null",
                                      "\"a\"",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{,}",
                                      "{a:1}",
                                      "{'a':1}",
                                      "{\"a\":1}x",
                                      "{\"a\":1 \"b\":2}",
                                      "{\"a\":\"",
                                      "{\"a\":\"\\",
                                      "{\"a\":\"\\x\"}",
                                      "{\"a\":\"\\u12\"}",
                                      "{\"a\":\"\\ud800\"}",
                                      "{\"a\":\"\\ud800\\n\"}",
                                      "{\"a\":\"\\ud800\\ud800\"}",
                                      "{\"a\":\"\\udc00\"}",
                                      "{\"a\":\"\n\"}",
                                      "{\"a\":\"\xff\"}",
                                      "{\"a\":01}",
                                      "{\"a\":-}",
                                      "{\"a\":1.}",
                                      "{\"a\":1e}",
                                      "{\"a\":+1}",
                                      "{\"a\":nul}",
                                      "{\"a\":{}",
                                      "{\"a\":[}",
                                      "{\"a\":{]}",
                                      "{\"a\":[1,]}",
                                      "{\"a\":[1 2]}",
                                      "{\"a\":{\"b\"}}",
                                      "{\"a\":{1:2}}",
                                      "{\"a\":[nul]}",
                                      "{\"a\":1,\"a\":2}",
                                      "{\"a\":null,\"\\u0061\":2}",
                                      "{\"a\":18446744073709551616}",
                                      "{\"a\":[1e999]}",
                                      "\xef\xbb\xbf[1]"}) {
    EXPECT_FALSE(parse_json_object(text)) << text;
  }
  const std::string deep(100000, '{');
  EXPECT_FALSE(parse_json_object(deep));
  const auto nested = [](std::size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(parse_json_object(nested(64)));
  EXPECT_FALSE(parse_json_object(nested(65)));
  EXPECT_FALSE(parse_json_object(nested(1000000)));
}

TEST(Xml, GivesTheTextOfAnElement) {
  constexpr std::string_view kDocument =
      "<?xml version=\"1.0\"?><!-- <Code>no</Code> -->\n"
      "<a:Error xmlns:a='x>y' b=\"'>\"><RequestId/><Code >A&amp;B &lt;&gt;&quot;&apos;</Code>"
      "<Codes>no</Codes><m:Message>&#233;&#xe9;&#x1F600;</m:Message><Empty></Empty>"
      "<Code>second</Code></a:Error>";
  EXPECT_EQ(xml_text(kDocument, "Code"), "A&B <>\"'");
  EXPECT_EQ(xml_text(kDocument, "Message"), "éé😀");
  EXPECT_EQ(xml_text(kDocument, "RequestId"), "");
  EXPECT_EQ(xml_text(kDocument, "Empty"), "");
  EXPECT_FALSE(xml_text(kDocument, "Error")) << "holds more than text";
  EXPECT_FALSE(xml_text(kDocument, "Cod"));
  EXPECT_FALSE(xml_text(kDocument, ""));
}

TEST(Xml, GivesTheNameOfTheRoot) {
  EXPECT_EQ(xml_root("\r\n<?xml version='1.0'?>\t<!-- <no/> -->\n<s:Root a='>'><b/></s:Root>"),
            "Root");
  EXPECT_EQ(xml_root("<Root/>"), "Root");
  for (const std::string_view text : {"", "Root", "x <Root/>", "<", "<Root", "</Root>",
                                      "<!DOCTYPE x>", "<!-- <Root/>", "<?xml <Root/>"}) {
    EXPECT_EQ(xml_root(text), "") << text;
  }
}

TEST(Xml, RefusesEverythingElse) {
  for (const std::string_view text : {"",
                                      "Code",
                                      "<",
                                      "<Code",
                                      "<Code>",
                                      "<Code>x",
                                      "an error: <Code>x</Code>",
                                      "</R><Code>x</Code>",
                                      "<Code>x</",
                                      "<Code>x</Code",
                                      "</Code>",
                                      "<Code>x</Other>",
                                      "<Code><b>x</b></Code>",
                                      "<Code a='>x</Code>",
                                      "<Code>&</Code>",
                                      "<Code>&amp</Code>",
                                      "<Code>&other;</Code>",
                                      "<Code>&#;</Code>",
                                      "<Code>&#x;</Code>",
                                      "<Code>&#0;</Code>",
                                      "<Code>&#xD800;</Code>",
                                      "<Code>&#x110000;</Code>",
                                      "<Code>&#99999999999;</Code>",
                                      "<Code>&#-1;</Code>",
                                      "<Code>&#1a;</Code>",
                                      "<!DOCTYPE a [<!ENTITY b 'c'>]><Code>&b;</Code>",
                                      "<Code><![CDATA[x]]></Code>",
                                      "<!-- <Code>x</Code>",
                                      "<!--><Code>x</Code>",
                                      "<?x <Code>x</Code>"}) {
    EXPECT_FALSE(xml_text(text, "Code")) << text;
  }
  const std::string open(100000, '<');
  EXPECT_FALSE(xml_text(open, "Code"));
}

TEST(Timestamp, IsAMoment) {
  const auto at = [](std::string_view text) {
    const auto moment = parse_timestamp(text);
    return moment ? std::chrono::system_clock::to_time_t(*moment) : -1;
  };
  for (const char* text :
       {"2026-01-31T23:59:58Z", "2026-01-31t23:59:58z", "2026-01-31 23:59:58",
        "2026-01-31T23:59:58.123456Z", "2026-02-01T00:59:58+01:00", "2026-01-31T18:29:58-0530"}) {
    EXPECT_EQ(at(text), 1769903998) << text;
  }
  EXPECT_EQ(at("2024-02-29T00:00:00Z"), 1709164800);
  EXPECT_EQ(at("9999-12-31T23:59:59Z"), at("2200-01-01T00:00:00Z")) << "as far as a clock counts";
}

TEST(Timestamp, IsNothingElse) {
  for (const char* text :
       {"", "soon", "1769903998", "2026-01-31", "2026-01-31T23:59", "2026-1-31T23:59:58Z",
        "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z",
        "2026-01-31T24:00:00Z", "2026-01-31T23:60:00Z", "2026-01-31T23:59:61Z",
        "2026-01-31T23:59:58ZZ", "2026-01-31T23:59:58+25:00", "2026-01-31T23:59:58+1",
        "2026-01-31T23:59:58.Z", "1969-12-31T23:59:59Z", "-026-01-31T23:59:58Z"}) {
    EXPECT_FALSE(parse_timestamp(text)) << text;
  }
}

TEST(Words, AreSplitAsAShellDoes) {
  EXPECT_EQ(split_words(" a  b\tc\n"), (Words{"a", "b", "c"}));
  EXPECT_EQ(split_words("a 'b  \\ \"c' \"d 'e\" f\\ g"), (Words{"a", "b  \\ \"c", "d 'e", "f g"}));
  EXPECT_EQ(split_words("a\"b\"'c'd '' \"\""), (Words{"abcd", "", ""}));
  EXPECT_EQ(split_words(R"("\"\\\n\$")"), (Words{R"("\\n\$)"}));
  EXPECT_EQ(split_words("$HOME `x` ~ ; | > & *"),
            (Words{"$HOME", "`x`", "~", ";", "|", ">", "&", "*"}));
  EXPECT_EQ(split_words("  "), Words{});
  for (const char* open : {"'", "a \"b", "\"a\\\"", "a\\", "'a\"", "\"\\"}) {
    EXPECT_FALSE(split_words(open)) << open;
  }
}

// Parses valid texts with random deletions, changes and insertions.
TEST(Parsers, TakeOrRefuseAnything) {
  const std::vector<std::string> seeds = {
      "[profile 'a b']\ns3 =\n  x = y\n z = \"1\"\n# c\n[default] ; d\nk: v\n",
      "{\"a\": \"\\ud83d\\ude00\\n\", \"b\": -1.5e+3, \"c\": null, \"d\": true}",
      "<?xml?><!-- c --><a:Error x='>'><Code>A&amp;&#x1F600;</Code><Empty/></a:Error>",
      "2026-01-31T23:59:58.123+01:00", "a 'b c' \"d\\\"e\" f\\ g"};
  Dice dice(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text = dice.pick(seeds);
    for (std::uint64_t change = dice.below(6); change > 0 && !text.empty(); --change) {
      const std::size_t at = dice.below(text.size());
      const std::string& other = dice.pick(seeds);
      if (dice.one_in(3)) {
        text.erase(at, dice.below(8));
      } else if (dice.one_in(2)) {
        text[at] = static_cast<char>(dice.below(256));
      } else {
        text.insert(at, other, dice.below(other.size()), dice.below(12));
      }
    }
    try {
      parse_ini(text, "'f'");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    }
    parse_json_object(text);
    xml_text(text, "Code");
    parse_timestamp(text);
    split_words(text);
  }
}

}  // namespace
}  // namespace tensorizer
