#include "io/redis/parser.h"

#include <hiredis.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/number.h"

namespace tensorizer {

namespace {

// Of a reply: a thousand of the longest names fit.
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

// What hiredis' callbacks build a reply in. They return null for what a reply may not have, which
// hiredis takes for a lack of memory.
struct RedisParser::Building {
  RedisReply root;
  std::uint64_t budget = kLargestReply;
  bool out_of_memory = false;

  // Adds an element to the list that is open, or begins the reply. Nothing may be thrown through
  // hiredis.
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
      // A list that is open is the last one of its own list, so that its address stays.
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
    // Behind a string of a given length, hiredis skips two bytes, whatever they are.
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

  // hiredis 0.14 counts elements by int, and 1.x by size_t. Of the types of RESP3, which only 1.x
  // knows, none is asked for.
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

// How many of the bytes the reader gets at once: what is missing of a string, or all up to the end
// of a line, which is where a reply may end.
std::size_t RedisParser::next_step(ConstBytes bytes) const {
  const std::string_view seen = pending();
  const std::size_t head = seen.substr(0, kLongestLine).find(kLineEnd);
  if (head != std::string_view::npos) {
    // Only of a string there is a whole line that is not done with.
    const auto size = parse_number(seen.substr(0, head));
    if (!size || *size > building_->budget) throw_nonsense("$" + std::string(seen.substr(0, head)));
    const std::uint64_t whole = head + kLineEnd.size() + *size + kLineEnd.size();
    return std::min<std::uint64_t>(bytes.size(), whole - seen.size());
  }
  const std::string_view text = as_text(bytes);
  const std::size_t end = text.find('\n');
  const std::string_view before = end == 0 ? seen : text.substr(0, end);
  // hiredis would go on and look for the line's end in all of it again.
  if (end != std::string_view::npos && !before.ends_with('\r')) throw_nonsense(before);
  const std::size_t line = std::min(end, text.size() - 1) + 1;
  if (seen.size() + line > kLongestLine) throw_nonsense(seen.empty() ? text : seen);
  return line;
}

// What the reader holds that is of no whole element yet, behind the byte that says its type.
std::string_view RedisParser::pending() const {
  return {reader_->buf + reader_->pos, reader_->len - reader_->pos};
}

// Returns the reply when it is complete.
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
