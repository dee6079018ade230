#include "io/redis/parser.h"

#include <hiredis.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/number.h"

namespace tensorizer {

namespace {

// The memory of a reply: a thousand of the longest names fit.
constexpr std::uint64_t kLargestReply = 128 << 20;
constexpr std::size_t kLongestLine = 64 << 10;
constexpr int kDeepestReply = 8;

constexpr std::string_view kLineEnd = "\r\n";

int depth_of(const redisReadTask* task) {
  int depth = 1;
  for (; task->parent != nullptr && depth <= kDeepestReply; task = task->parent) ++depth;
  return depth;
}

}  // namespace

// Builds a reply from hiredis's callbacks. They return null for anything that a reply must not
// have, which hiredis reports as out of memory.
struct RedisParser::Building {
  RedisReply root;
  std::uint64_t budget = kLargestReply;
  bool out_of_memory = false;

  // Adds an element to the open list, or begins the reply. Does not throw, because exceptions must
  // not pass through hiredis.
  template <typename Fill>
  static void* add(const redisReadTask* task, std::uint64_t size, Fill&& fill) noexcept {
    auto& self = *static_cast<Building*>(task->privdata);
    const std::uint64_t taken = size + sizeof(RedisReply);
    if (taken > self.budget) return nullptr;
    self.budget -= taken;
    try {
      RedisReply reply;
      fill(reply);
      if (task->parent == nullptr) return &(self.root = std::move(reply));
      // An open list is always the last element of its parent, so adding to it does not move it.
      auto& list = static_cast<RedisReply*>(task->parent->obj)->list;
      return &list.emplace_back(std::move(reply));
    } catch (const std::bad_alloc&) {
      self.out_of_memory = true;
      return nullptr;
    }
  }

  static void* add_string(const redisReadTask* task, char* text, std::size_t size) {
    RedisReply::Kind kind;
    if (task->type == REDIS_REPLY_STRING) {
      kind = RedisReply::Kind::Text;
    } else if (task->type == REDIS_REPLY_STATUS) {
      kind = RedisReply::Kind::Status;
    } else if (task->type == REDIS_REPLY_ERROR) {
      kind = RedisReply::Kind::Error;
    } else {
      return nullptr;
    }
    // Behind a string with a length, hiredis skips two bytes without checking them.
    if (std::string_view(text + size, kLineEnd.size()) != kLineEnd) return nullptr;
    return add(task, size, [&](RedisReply& reply) {
      reply.kind = kind;
      reply.text.assign(text, size);
    });
  }

  static void* add_number(const redisReadTask* task, long long number) {
    return add(task, 0, [&](RedisReply& reply) {
      reply.kind = RedisReply::Kind::Number;
      reply.number = number;
    });
  }

  static void* add_list(const redisReadTask* task, std::uint64_t count) {
    const auto& self = *static_cast<Building*>(task->privdata);
    if (task->type != REDIS_REPLY_ARRAY || depth_of(task) > kDeepestReply) return nullptr;
    if (count > self.budget / sizeof(RedisReply)) return nullptr;
    return add(task, 0, [](RedisReply& reply) { reply.kind = RedisReply::Kind::List; });
  }

  static void* add_nothing(const redisReadTask* task) {
    if (task->type != REDIS_REPLY_STRING && task->type != REDIS_REPLY_ARRAY) return nullptr;
    return add(task, 0, [](RedisReply& reply) { reply.kind = RedisReply::Kind::Nothing; });
  }

  // hiredis 0.14 counts elements in an int, and 1.x in a size_t. The types of RESP3, which only 1.x
  // knows, are rejected: we do not ask for RESP3.
  template <typename Functions>
  static Functions callbacks() {
    Functions functions{};
    functions.createString = &add_string;
    functions.createArray = [](const redisReadTask* task, auto count) -> void* {
      return add_list(task, static_cast<std::uint64_t>(count));
    };
    functions.createInteger = &add_number;
    functions.createNil = &add_nothing;
    if constexpr (requires { functions.createDouble; }) {
      functions.createDouble = [](auto...) -> void* { return nullptr; };
      functions.createBool = [](auto...) -> void* { return nullptr; };
    }
    return functions;
  }
};

RedisParser::RedisParser(std::string label)
    : label_(std::move(label)),
      building_(std::make_unique<Building>()),
      reader_(nullptr, &redisReaderFree) {
  static redisReplyObjectFunctions callbacks = Building::callbacks<redisReplyObjectFunctions>();
  reader_.reset(redisReaderCreateWithFunctions(&callbacks));
  if (!reader_) throw std::bad_alloc();
  reader_->privdata = building_.get();
}

RedisParser::~RedisParser() = default;

std::optional<RedisReply> RedisParser::take(ConstBytes& bytes) {
  while (!bytes.empty()) {
    const ConstBytes step = bytes.first(next_step(bytes));
    bytes = bytes.subspan(step.size());
    if (RedisReply* const reply = feed(step)) {
      building_->budget = kLargestReply;
      return std::move(*reply);
    }
  }
  return std::nullopt;
}

std::optional<RedisReply> RedisParser::take_head(ConstBytes& bytes) {
  const bool begins = reader_->ridx < 0;
  if (begins && !bytes.empty()) {
    if (bytes.front() == std::byte{':'}) throw_nonsense(as_text(bytes.first(1)));
    takes_head_ = bytes.front() == std::byte{'$'};
    if (takes_head_) {
      bytes = bytes.subspan(1);
      feed(as_bytes(":"));
    }
  }
  std::optional<RedisReply> reply = take(bytes);
  if (!reply || !takes_head_) return reply;
  if (reply->number < -1) throw_nonsense(std::to_string(reply->number));
  reply->kind = reply->number < 0 ? RedisReply::Kind::Nothing : RedisReply::Kind::Text;
  return reply;
}

// Returns how many of the bytes to pass to the reader at once: the rest of a string, or all up to
// the end of a line, where a reply may end.
std::size_t RedisParser::next_step(ConstBytes bytes) const {
  const std::string_view seen = pending();
  const std::size_t head = seen.substr(0, kLongestLine).find(kLineEnd);
  if (head != std::string_view::npos) {
    // Only the head of a string is a whole line that is still pending.
    const auto size = parse_number(seen.substr(0, head));
    if (!size || *size > building_->budget) throw_nonsense("$" + std::string(seen.substr(0, head)));
    const std::uint64_t whole = head + kLineEnd.size() + *size + kLineEnd.size();
    return std::min<std::uint64_t>(bytes.size(), whole - seen.size());
  }
  const std::string_view text = as_text(bytes);
  const std::size_t end = text.find('\n');
  const std::string_view before = end == 0 ? seen : text.substr(0, end);
  // hiredis would go on to search for "\r\n", from the beginning of the line each time.
  if (end != std::string_view::npos && !before.ends_with('\r')) throw_nonsense(before);
  const std::size_t line = std::min(end, text.size() - 1) + 1;
  if (seen.size() + line > kLongestLine) throw_nonsense(seen.empty() ? text : seen);
  return line;
}

// Returns the bytes in the reader of an element that is not complete, without its type byte.
std::string_view RedisParser::pending() const {
  return {reader_->buf + reader_->pos, reader_->len - reader_->pos};
}

// Passes bytes to the reader. Returns the reply if it is complete, otherwise null.
RedisReply* RedisParser::feed(ConstBytes step) {
  void* reply = nullptr;
  if (redisReaderFeed(reader_.get(), as_text(step).data(), step.size()) == REDIS_OK &&
      redisReaderGetReply(reader_.get(), &reply) == REDIS_OK) {
    return static_cast<RedisReply*>(reply);
  }
  if (building_->out_of_memory) throw std::bad_alloc();
  throw_nonsense(as_text(step));
}

void RedisParser::throw_nonsense(std::string_view seen) const {
  throw Error(ErrorKind::Unavailable,
              "the server of " + label_ + " does not answer as Redis does: " + quote(seen, 80));
}

}  // namespace tensorizer
