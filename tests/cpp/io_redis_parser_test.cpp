// Replies of Redis servers, and input that resembles them.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "io/redis/parser.h"

namespace tensorizer {
namespace {

using Kind = RedisReply::Kind;

// Returns a reply as one line of text, for comparison.
std::string show(const RedisReply& reply) {
  switch (reply.kind) {
    case Kind::Status:
      return "+" + reply.text;
    case Kind::Error:
      return "-" + reply.text;
    case Kind::Number:
      return std::to_string(reply.number);
    case Kind::Text:
      return "'" + reply.text + "'";
    case Kind::Nothing:
      return "nothing";
    case Kind::List:
      break;
  }
  std::string list = "[";
  for (const RedisReply& element : reply.list) list += show(element) + ",";
  return list + "]";
}

// Returns every reply in `text`, which arrives in parts of `step` bytes.
std::string parse(std::string_view text, std::size_t step) {
  RedisParser parser("'x'");
  std::string replies;
  for (; !text.empty(); text.remove_prefix(std::min(step, text.size()))) {
    ConstBytes bytes = as_bytes(text.substr(0, step));
    while (!bytes.empty()) {
      if (const auto reply = parser.take(bytes)) replies += show(*reply) + " ";
    }
  }
  return replies;
}

TEST(RedisParser, ReadsEveryKindOfReply) {
  const std::string_view text =
      "+OK\r\n-ERR no\r\n:-7\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
      "*3\r\n*2\r\n:1\r\n$1\r\n\n\r\n$-1\r\n*1\r\n*0\r\n:9223372036854775807\r\n";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    EXPECT_EQ(parse(text, step),
              "+OK -ERR no -7 'a\r\nbc' '' nothing nothing [] [[1,'\n',],nothing,[[],],] "
              "9223372036854775807 ");
  }
}

TEST(RedisParser, LeavesWhatFollowsAReply) {
  const std::string_view text = "*2\r\n$3\r\na\nb\r\n:1\r\n$4\r\nmore\r\n";
  RedisParser parser("'x'");
  ConstBytes bytes = as_bytes(text);
  EXPECT_EQ(show(*parser.take(bytes)), "['a\nb',1,]");
  EXPECT_EQ(as_text(bytes), "$4\r\nmore\r\n");
}

TEST(RedisParser, ReadsTheHeadOfAString) {
  for (std::size_t step = 1; step < 9; ++step) {
    RedisParser parser("'x'");
    std::string_view text = "$123\r\nbytes";
    for (;;) {
      const ConstBytes given = as_bytes(text.substr(0, step));
      ConstBytes bytes = given;
      const auto head = parser.take_head(bytes);
      text.remove_prefix(given.size() - bytes.size());
      if (!head) continue;
      EXPECT_EQ(head->kind, Kind::Text);
      EXPECT_EQ(head->number, 123);
      break;
    }
    EXPECT_EQ(text, "bytes");
  }
  RedisParser parser("'x'");
  for (const auto& [text, kind] : {std::pair<std::string_view, Kind>{"$-1\r\n", Kind::Nothing},
                                   {"-ERR no\r\n", Kind::Error},
                                   {"*0\r\n", Kind::List},
                                   {"$0\r\n", Kind::Text}}) {
    ConstBytes bytes = as_bytes(text);
    EXPECT_EQ(parser.take_head(bytes)->kind, kind) << text;
  }
}

ErrorKind kind_of(std::string_view text, bool head = false) {
  RedisParser parser("'x'");
  try {
    ConstBytes bytes = as_bytes(text);
    while (!bytes.empty()) {
      if (head) {
        parser.take_head(bytes);
      } else {
        parser.take(bytes);
      }
    }
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 1000U);
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown for " << quote(text);
  return ErrorKind::Internal;
}

TEST(RedisParser, RefusesWhatIsNoReply) {
  for (const std::string_view text :
       {"\r\n", "x\r\n", "HTTP/1.1 400 Bad Request\r\n", ":\r\n", ":1x\r\n", ": 1\r\n",
        ":9223372036854775808\r\n", "+a\nb\r\n", "\n", "$x\r\n", "$-2\r\n",
        "$99999999999999999999\r\n", "*-2\r\n", "*x\r\n", "*2147483648\r\n", "$2\r\nabcd\r\n",
        "$2\r\nab\n\r", "*1\r\n$1\r\nabc"}) {
    EXPECT_EQ(kind_of(text), ErrorKind::Unavailable) << text;
  }
  for (const std::string_view text : {":5\r\n", "$-2\r\n", "$5x\r\n", "$9223372036854775808\r\n"}) {
    EXPECT_EQ(kind_of(text, true), ErrorKind::Unavailable) << text;
  }
}

TEST(RedisParser, RefusesTypesOfRESP3) {
  for (const std::string_view text :
       {"%1\r\n+a\r\n:1\r\n", "~1\r\n:1\r\n", ">1\r\n+a\r\n", "|1\r\n+a\r\n:1\r\n:1\r\n", "_\r\n",
        ",1.5\r\n", "#t\r\n", "(12345678901234567890\r\n", "=5\r\ntxt:a\r\n", "!3\r\nERR\r\n"}) {
    EXPECT_EQ(kind_of(text), ErrorKind::Unavailable) << text;
    EXPECT_EQ(kind_of("*2\r\n:1\r\n" + std::string(text)), ErrorKind::Unavailable) << text;
    EXPECT_EQ(kind_of(text, true), ErrorKind::Unavailable) << text;
  }
}

TEST(RedisParser, BoundsNesting) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "*1\r\n";
    return text;
  };
  EXPECT_EQ(parse(nested(8) + ":1\r\n", 1000), "[[[[[[[[1,],],],],],],],] ");
  EXPECT_EQ(kind_of(nested(9) + ":1\r\n"), ErrorKind::Unavailable);
  EXPECT_EQ(kind_of(nested(1'000'000)), ErrorKind::Unavailable);
}

TEST(RedisParser, BoundsLines) {
  const std::string fits(65'000, 'x');
  EXPECT_EQ(parse("+" + fits + "\r\n", 1000), "+" + fits + " ");
  EXPECT_EQ(kind_of("+" + std::string(70'000, 'x') + "\r\n"), ErrorKind::Unavailable);
  EXPECT_EQ(kind_of("+" + std::string(70'000, '\n')), ErrorKind::Unavailable);
  EXPECT_EQ(kind_of("+" + std::string(70'000, '\r')), ErrorKind::Unavailable);
  EXPECT_EQ(kind_of(":" + std::string(70'000, '1')), ErrorKind::Unavailable);
  EXPECT_EQ(kind_of("$" + std::string(70'000, '1'), true), ErrorKind::Unavailable);
}

// Refuses a length before any of its bytes have arrived.
TEST(RedisParser, BoundsLengthsBeforeTheirBytesCome) {
  for (const std::string_view text :
       {"$134217729\r\nx", "$9000000000000000000\r\nx", "$9223372036854775807\r\nx",
        "*1000000000\r\n", "*2147483647\r\n", "*2\r\n:1\r\n*100000000\r\n"}) {
    EXPECT_EQ(kind_of(text), ErrorKind::Unavailable) << text;
  }
}

// Each of many replies may be this large, but a single reply of many such parts is refused.
TEST(RedisParser, CountsWhatAReplyTakesTogether) {
  const std::string large = "$1000000\r\n" + std::string(1'000'000, 'x') + "\r\n";
  RedisParser parser("'x'");
  for (int i = 0; i < 200; ++i) {
    ConstBytes bytes = as_bytes(large);
    EXPECT_TRUE(parser.take(bytes));
  }
  EXPECT_THROW(
      {
        ConstBytes begin = as_bytes("*200\r\n");
        parser.take(begin);
        for (int i = 0; i < 200; ++i) {
          ConstBytes bytes = as_bytes(large);
          parser.take(bytes);
        }
      },
      Error);
}

}  // namespace
}  // namespace tensorizer
