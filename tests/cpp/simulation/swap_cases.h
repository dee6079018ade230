// Small files that are replaced only if they are the known ones, while another client may do so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/places/open.h"
#include "redis_cases.h"
#include "try.h"
#include "web.h"

namespace tensorizer::simulation {

// A file that two clients want to replace. The other client, too, replaces only the known one.
struct Swap {
  explicit Swap(Try& each)
      : run(each),
        is_none(run.world.one_in(3)),
        is_other(!is_none && run.world.one_in(5)),
        has_rival(run.world.one_in(2)) {}

  std::optional<std::string> first() const {
    if (is_none) return std::nullopt;
    return is_other ? other : known;
  }
  bool rival_may(const std::optional<std::string>& there) const {
    return is_none ? !there : there == known;
  }

  void swap(const std::string& uri) {
    succeeded = run.succeeds([&] {
      const auto content = is_none ? std::nullopt : std::optional(as_bytes(known));
      swapped = swap_file(uri, content, as_bytes(next), {.given = run.options}, run.cancel);
    });
  }

  // `had`: whether the server has had a content.
  void check(const std::function<bool(const std::string&)>& had, bool is_stale) const {
    require(!had(next) || !had(rival), "two clients replace the same file");
    require(!had(next) || !is_other, "a file is replaced that is not the known one");
    if (!succeeded || is_stale) return;
    require(swapped == had(next), swapped ? "a swap succeeds, and its file is not there"
                                          : "a swap is refused, and its file is there");
    require(swapped || is_other || had(rival), "a swap is refused without a reason");
  }

  Try& run;
  const std::string known = run.some_bytes(300), next = run.some_bytes(300) + "next",
                    rival = run.some_bytes(300) + "rival", other = known + "other";
  const bool is_none, is_other, has_rival;
  bool succeeded = false, swapped = false;
};

inline void swap_on_web(Try& run, Web::Kind kind) {
  const std::string uri = uri_on(kind, run.options);
  SimulatedWorld& world = run.world;
  Files files;
  Web web(world, files, kind);
  world.serve(web);
  Swap swap(run);
  const auto put = [&files](const std::string& bytes) {
    files.put(bytes, to_hex(md5_of(as_bytes(bytes))));
  };
  if (const auto first = swap.first()) put(*first);
  if (swap.has_rival) {
    world.sometime(6, [&] {
      const auto there =
          files.are_there() ? std::optional(files.versions.back().bytes) : std::nullopt;
      if (swap.rival_may(there)) put(swap.rival);
    });
  }
  swap.swap(uri);
  const auto check = [&] {
    swap.check(
        [&](const std::string& bytes) {
          return std::ranges::any_of(files.versions,
                                     [&](const auto& version) { return version.bytes == bytes; });
        },
        world.befell(Fault::Stale));
  };
  check();
  world.end();
  check();
  require(swap.succeeded || !world.had_only(3, kHarmless), "a swap fails because of a few faults");
}

inline void swap_on_redis(Try& run) {
  SimulatedWorld& world = run.world;
  RedisPlace place(run);
  const std::string key = kRedisPrefix + ":header:0";
  Swap swap(run);
  std::vector<std::string> seen;
  const auto there = [&]() -> std::optional<std::string> {
    const auto found = place.redis.keys().find(key);
    if (found == place.redis.keys().end()) return std::nullopt;
    return found->second.bytes;
  };
  place.redis.on_change = [&] { seen.push_back(there().value_or("")); };
  if (const auto first = swap.first()) place.redis.replace({}, {{key, *first}});
  if (swap.has_rival) {
    world.sometime(20, [&] {
      if (swap.rival_may(there())) place.redis.replace({key}, {{key, swap.rival}});
    });
  }
  swap.swap(place.uri);
  const auto check = [&] {
    swap.check([&](const std::string& bytes) { return std::ranges::count(seen, bytes) > 0; },
               false);
  };
  check();
  world.end();
  check();
  for (const auto& [name, bytes] : place.others) {
    require(place.redis.keys().at(name).bytes == bytes, "a key of another file is changed");
  }
  require(swap.succeeded || world.faults() > 3, "a swap fails because of a few faults");
}

}  // namespace tensorizer::simulation
