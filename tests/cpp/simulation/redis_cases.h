// Loads, saves and removals of a file in Redis.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "io/places/open.h"
#include "redis.h"
#include "try.h"

namespace tensorizer::simulation {

inline const std::string kRedisPrefix = "model";

// A part of the body.
struct RedisPart {
  std::string name;
  std::uint64_t offset;  // in the body
  std::uint64_t size;
};

struct RedisFile {
  std::string head, body;
  std::vector<RedisPart> parts;

  std::string bytes() const { return head + body; }
  std::map<std::string, std::string> keys() const {
    std::map<std::string, std::string> keys{{kRedisPrefix + ":header:0", head}};
    for (const RedisPart& part : parts) {
      keys[kRedisPrefix + ":" + part.name + ":" + std::to_string(head.size() + part.offset)] =
          body.substr(part.offset, part.size);
    }
    return keys;
  }
};

inline RedisFile some_redis_file(Try& run) {
  constexpr std::array kNames{"a", "b", "layers:0:weight", "header", "inner"};
  RedisFile file{.head = run.some_bytes(300), .body = {}, .parts = {}};
  for (std::uint64_t parts = run.world.below(5); parts > 0; --parts) {
    const std::string bytes = run.some_bytes(run.world.one_in(2) ? 20 : 800);
    file.parts.push_back({kNames[run.world.below(kNames.size())], file.body.size(), bytes.size()});
    file.body += bytes;
  }
  return file;
}

// Returns another file, which often has keys of the same names and sizes.
inline RedisFile other_redis_file(Try& run, const RedisFile& file) {
  if (run.world.one_in(2)) return some_redis_file(run);
  RedisFile other = file;
  for (char& byte : other.head) byte ^= 1;
  for (char& byte : other.body) byte ^= 1;
  return other;
}

inline bool have_same_layout(const RedisFile& one, const RedisFile& other) {
  const auto is_same = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.size() == b.second.size();
  };
  return std::ranges::equal(one.keys(), other.keys(), is_same);
}

// A server with a file, another file whose prefix is longer, and a key of somebody else.
struct RedisPlace {
  explicit RedisPlace(Try& run)
      : settings{.password = run.world.one_in(3) ? "secret" : "",
                 .database = run.world.one_in(3) ? 5 : 0,
                 .is_old = run.world.one_in(4),
                 .can_kill = !run.world.one_in(4)},
        redis(run.world, settings) {
    run.world.serve(redis);
    if (run.world.one_in(2)) run.world.spare(run.world.below(40));
    uri = "redis://" + (settings.password.empty() ? "" : ":" + settings.password + "@") +
          "simulated/" + kRedisPrefix;
    run.options = {
        {"connections", "1"}, {"stall_timeout", "10"}, {"db", std::to_string(settings.database)}};
    others = {{"models:header:0", "of another file"}};
    if (run.world.one_in(2)) {
      others[kRedisPrefix + ":inner:header:0"] = "of a file";
      others[kRedisPrefix + ":inner:weight:9"] = "with a longer prefix";
    }
    redis.replace({}, others);
  }

  static std::vector<std::string> names_of(const std::map<std::string, std::string>& keys) {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : keys) names.push_back(name);
    return names;
  }

  const Redis::Settings settings;
  Redis redis;
  std::string uri;
  std::map<std::string, std::string> others;  // which nobody may touch
};

// A job on this thread, whose waits call a handler now and then, which is not interrupted itself.
class Interrupted {
 public:
  Interrupted() { current_ = this; }
  ~Interrupted() { current_ = nullptr; }
  Interrupted(const Interrupted&) = delete;
  Interrupted& operator=(const Interrupted&) = delete;

  std::function<void()> handler = [] {};
  Cancel cancel{[] {
    if (current_->is_interrupted_) return;
    current_->is_interrupted_ = true;
    try {
      current_->handler();
    } catch (...) {
      current_->is_interrupted_ = false;
      throw;
    }
    current_->is_interrupted_ = false;
  }};

 private:
  static inline Interrupted* current_ = nullptr;
  bool is_interrupted_ = false;
};

// Reads parts of a file. What is read belongs to one version, which was there during the load.
inline void load_from_redis(Try& run) {
  SimulatedWorld& world = run.world;
  RedisPlace place(run);
  const RedisFile old = some_redis_file(run);
  const RedisFile fresh = other_redis_file(run, old);
  place.redis.replace({}, old.keys());
  const bool is_replaced = world.one_in(2);
  if (is_replaced) {
    const auto replace = [&place, old, fresh] {
      place.redis.replace(RedisPlace::names_of(old.keys()), fresh.keys());
    };
    if (world.one_in(2)) {
      world.sometime(40, replace);
    } else {
      place.redis.after_transaction(1 + world.below(8), replace);
    }
  }
  struct Read {
    std::uint64_t offset;
    std::string bytes;
  };
  std::vector<Read> reads;
  std::uint64_t size = 0;
  std::unique_ptr<Source> source;
  Interrupted cancel;
  const auto read_some = [&] {
    Read read{world.below(size), {}};
    read.bytes.resize(1 + world.below(size - read.offset));
    const Bytes out = std::as_writable_bytes(std::span(read.bytes));
    source->read(read.offset, {&out, 1}, cancel.cancel);
    reads.push_back(std::move(read));
  };
  // A signal handler that reads as well, while this thread waits for its own read.
  if (world.one_in(3)) {
    world.set_latency(100ms);
    cancel.handler = [&] {
      if (size > 0 && world.one_in(3)) read_some();
    };
  }
  const bool loaded = run.succeeds([&] {
    const SourceOptions options{.given = run.options, .any_bytes = world.one_in(2)};
    source = open_source(place.uri, options, cancel.cancel);
    size = source->size().value();
    for (std::uint64_t left = 1 + world.below(5); left > 0; --left) read_some();
    source->confirm(cancel.cancel);
  });
  if (!loaded) {
    // Whatever befalls a connection, the next one may do.
    require(is_replaced || world.faults() > 3, "a load fails because of a few faults");
    return;
  }
  const auto is_of = [&](const std::string& file) {
    return size == file.size() && std::ranges::all_of(reads, [&](const Read& read) {
             return file.compare(read.offset, read.bytes.size(), read.bytes) == 0;
           });
  };
  // If no connection is left that watched, only the names and sizes of the keys can be compared.
  const bool has_stood_still = !world.had_only(world.faults(), kAllFaults);
  const bool may_notice = place.redis.has_witness() && !has_stood_still;
  if (world.faults() > 0 && is_replaced && !may_notice && have_same_layout(old, fresh)) return;
  require(is_of(old.bytes()) || (is_replaced && is_of(fresh.bytes())),
          "other bytes than those of one file");
}

// Watches what a reader of the keys sees.
class RedisWatcher {
 public:
  RedisWatcher(SimulatedWorld& world, RedisPlace& place) : world_(world), place_(place) {
    place.redis.on_change = [this] { look(); };
  }

  // Names a state that may appear.
  void allow(const std::string& name, const std::map<std::string, std::string>& keys) {
    states_[name] = keys;
    states_[name].insert(place_.others.begin(), place_.others.end());
    look();
  }

  // Forgets what was there before now.
  void forget() {
    seen_.clear();
    look();
  }
  // What was there, one after another.
  const std::vector<std::string>& seen() const { return seen_; }
  bool has_seen(const std::string& name) const { return std::ranges::count(seen_, name) > 0; }

  bool has_private_keys() const {
    return std::ranges::any_of(place_.redis.keys(),
                               [](const auto& key) { return is_private(key.first); });
  }
  // Returns whether all keys of the file expire, or none does, as `wanted`.
  bool all_expire(bool wanted) const {
    return std::ranges::all_of(place_.redis.keys(), [&](const auto& key) {
      return place_.others.contains(key.first) || is_private(key.first) ||
             key.second.expires.has_value() == wanted;
    });
  }

 private:
  static bool is_private(const std::string& key) {
    return key.starts_with(kRedisPrefix + ".saving-");
  }

  void look() {
    std::map<std::string, std::string> keys;
    for (const auto& [key, value] : place_.redis.keys()) {
      if (!is_private(key)) keys[key] = value.bytes;
    }
    const auto state =
        std::ranges::find_if(states_, [&](const auto& one) { return one.second == keys; });
    if (state == states_.end()) {
      std::string names;
      for (const auto& [key, bytes] : keys) names += " " + key;
      world_.note_broken("no whole file is there, but" + names);
    } else if (seen_.empty() || seen_.back() != state->first) {
      world_.note("there is", state->first);
      seen_.push_back(state->first);
    }
  }

  SimulatedWorld& world_;
  RedisPlace& place_;
  std::map<std::string, std::map<std::string, std::string>> states_;
  std::vector<std::string> seen_;
};

// Gives the bytes of a file to a sink, in any order.
inline void write_to(Sink& sink, Try& run, const RedisFile& file, bool is_abandoned) {
  SimulatedWorld& world = run.world;
  sink.begin(world.one_in(2) ? file.head.size() : world.below(1000), std::nullopt);
  std::vector<NamedRange> parts;
  for (const RedisPart& part : file.parts) parts.push_back({part.name, part.offset, part.size});
  const std::size_t first = world.below(parts.size() + 1);
  sink.announce(std::span(parts).first(first));
  sink.announce(std::span(parts).subspan(first));
  // All bytes of a part are kept equally long.
  std::vector<std::function<void()>> writes;
  const auto write = [&](std::uint64_t begin, std::uint64_t end, KeptUntil kept) {
    writes.emplace_back([&, begin, end, kept] {
      const ConstBytes bytes = as_bytes(file.body).subspan(begin, end - begin);
      const std::uint64_t cut = world.below(bytes.size());
      const std::array pieces{bytes.first(cut), bytes.subspan(cut)};
      sink.write(begin, std::span(pieces).subspan(cut == 0 ? 1 : 0), kept, run.cancel);
    });
  };
  for (std::size_t part = 0; part < file.parts.size();) {
    const std::size_t end = part + 1 + world.below(file.parts.size() - part);
    const KeptUntil kept = world.one_in(2) ? KeptUntil::End : KeptUntil::Return;
    std::uint64_t at = file.parts[part].offset;
    const std::uint64_t last = file.parts[end - 1].offset + file.parts[end - 1].size;
    const bool is_whole = world.one_in(3);
    while (at < last) {
      const std::uint64_t next = is_whole ? last : at + 1 + world.below(last - at);
      write(at, next, kept);
      at = next;
    }
    part = end;
  }
  for (std::size_t left = writes.size(); left > 0; --left) {
    std::swap(writes[left - 1], writes[world.below(left)]);
  }
  for (const auto& one : writes) one();
  sink.write_head(as_bytes(file.head), run.cancel);
  if (is_abandoned) throw Error(ErrorKind::Unavailable, "the save is abandoned");
  sink.finish(file.body.size(), run.cancel);
}

inline const std::string kRival = "the file of another client";

// Has another client save a file at some moment of the first `requests` requests.
inline void add_rival(Try& run, RedisPlace& place, RedisWatcher& watcher, const RedisFile& rival,
                      std::uint64_t requests) {
  watcher.allow(kRival, rival.keys());
  run.world.sometime(requests, [&place, rival] {
    std::vector<std::string> names;
    for (const auto& [key, value] : place.redis.keys()) {
      if (key.starts_with(kRedisPrefix + ":") && !place.others.contains(key)) names.push_back(key);
    }
    place.redis.replace(names, rival.keys());
  });
}

// Saves a file over an older one, or none. The server has the old or the new one at any time, and
// the new one after a save that succeeds.
inline void save_to_redis(Try& run) {
  SimulatedWorld& world = run.world;
  RedisPlace place(run);
  RedisWatcher watcher(world, place);
  const bool is_first = world.one_in(3);
  const RedisFile old = is_first ? RedisFile{} : some_redis_file(run);
  const RedisFile fresh = other_redis_file(run, is_first ? some_redis_file(run) : old);
  const std::map<std::string, std::string> old_keys =
      is_first ? std::map<std::string, std::string>{} : old.keys();
  watcher.allow("nothing", {});
  watcher.allow("the old file", old_keys);
  place.redis.replace({}, old_keys);

  const bool expires = world.one_in(4);
  if (expires) run.options.emplace_back("ttl", "3600");
  const bool overwrites = !world.one_in(6);
  if (!overwrites) run.options.emplace_back("overwrite", "false");
  // Another client saves a file, a server loses a key that may expire, and the user gives up.
  const bool has_rival = world.one_in(4), evicts = !expires && world.one_in(6),
             cancels = world.one_in(8), is_abandoned = world.one_in(6);
  if (has_rival) add_rival(run, place, watcher, other_redis_file(run, fresh), 60);
  if (evicts) world.sometime(40, [&place] { place.redis.evict(); });
  if (cancels) world.sometime(60, [&run] { run.cancel.request(); });
  watcher.allow("the new file", fresh.keys());

  bool is_unknown = false;
  std::uint64_t faults_before = 0;  // the sink cleans up
  const bool saved = run.succeeds([&] {
    try {
      const SinkOptions options{.given = run.options};
      const std::unique_ptr<Sink> sink = open_sink(place.uri, options, run.cancel);
      try {
        write_to(*sink, run, fresh, is_abandoned);
      } catch (const Error&) {
        faults_before = world.faults();
        throw;
      }
    } catch (const Error& error) {
      is_unknown = error.kind() == ErrorKind::Cancelled ||
                   std::string_view(error.what()).find("is not known") != std::string_view::npos;
      throw;
    }
  });
  const auto require_it_is_there = [&] {
    require(watcher.has_seen("the new file"), "a save succeeds, and its file was never there");
    const std::string& last = watcher.seen().back();
    require(last == "the new file" || last == kRival, "a saved file goes away again");
    if (last == "the new file") {
      require(watcher.all_expire(expires), "keys expire that must not, or the other way around");
    }
  };
  if (saved) require_it_is_there();
  world.end();
  if (saved) require_it_is_there();
  if (!saved && !is_unknown) {
    require(!watcher.has_seen("the new file"), "a save fails, and its file is there");
  }
  if (!overwrites && watcher.has_seen("the new file")) {
    const auto before = std::ranges::find(watcher.seen(), "the new file") - 1;
    require(*before == "nothing", "a file is replaced against the will of the user");
  }
  if (world.faults() == 0 && !evicts && !cancels && !is_abandoned &&
      (overwrites || (is_first && !has_rival))) {
    require(saved, "a save without faults fails");
  }
  const bool can_clean_up = place.settings.can_kill && !place.redis.has_hidden_id() && !cancels;
  if (world.faults() == 0 || (!saved && world.faults() == faults_before && can_clean_up)) {
    require(!watcher.has_private_keys(), "private keys are left");
  }
}

// Removes a file, or none, while another client may save one. The server has a whole file or none
// at any time, and none at some moment before the removal succeeds.
inline void remove_from_redis(Try& run) {
  SimulatedWorld& world = run.world;
  RedisPlace place(run);
  RedisWatcher watcher(world, place);
  const RedisFile old = some_redis_file(run);
  watcher.allow("nothing", {});
  const bool is_none = world.one_in(4);
  if (!is_none) {
    watcher.allow("the old file", old.keys());
    place.redis.replace({}, old.keys());
  }
  watcher.forget();
  const bool has_rival = world.one_in(2), cancels = world.one_in(8);
  if (has_rival) add_rival(run, place, watcher, other_redis_file(run, old), 20);
  if (cancels) world.sometime(20, [&run] { run.cancel.request(); });
  const bool removed =
      run.succeeds([&] { remove_file(place.uri, {.given = run.options}, run.cancel); });
  if (removed) {
    require(watcher.has_seen("nothing"), "a removal succeeds, and the file was always there");
  }
  if (removed) watcher.forget();
  world.end();
  const bool is_gone = watcher.seen().back() == "nothing";
  if (removed && !has_rival) require(is_gone, "a removed file is there again");
  if (removed) {
    require(!is_gone || !watcher.has_seen(kRival), "a file is removed that was saved later");
  }
  require(removed || cancels || world.faults() > 3, "a removal fails because of a few faults");
}

}  // namespace tensorizer::simulation
