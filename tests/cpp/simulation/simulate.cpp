// Loads, saves, swaps, removals, updates and deltas over simulated wires, and loads of signed
// files: simulate [SEED | FIRST-LAST] [--verbose] [--case NAME]...
//
// Each seed decides on a case (of the named ones), on its sizes and on the faults that befall its
// requests. Prints the seeds whose promises were broken, with the command that replays them.
#include <sodium.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/number.h"
#include "codec/keyed_hash.h"
#include "delta_cases.h"
#include "io/places/open.h"
#include "redis_cases.h"
#include "signed_cases.h"
#include "swap_cases.h"
#include "try.h"
#include "update_cases.h"
#include "web.h"

namespace tensorizer::simulation {

namespace {

// ---- loads

// Reads parts of a file. What is read belongs to one version, which was there during the load.
void load_from(Try& run, Web::Kind kind) {
  const std::string uri = uri_on(kind, run.options);
  SimulatedWorld& world = run.world;
  Files files;
  const std::string old = run.some_bytes(3000);
  const std::string fresh = world.one_in(2) ? run.some_bytes(3000) : [&] {
    std::string other = old;
    other[world.below(other.size())] ^= 1;
    return other;
  }();
  Web web(world, files, kind);
  world.serve(web);
  files.put(old, to_hex(md5_of(as_bytes(old))));
  const bool is_replaced = world.one_in(3);
  if (is_replaced) {
    world.sometime(8, [&files, fresh] { files.put(fresh, to_hex(md5_of(as_bytes(fresh)))); });
  }
  SourceOptions options{.given = run.options, .any_bytes = true};
  if (world.one_in(2)) options.end = 1 + world.below(old.size());
  struct Part {
    std::uint64_t offset;
    std::string bytes;
  };
  std::vector<Part> parts;
  std::uint64_t size = 0;
  const bool loaded = run.succeeds([&] {
    const std::unique_ptr<Source> source = open_source(uri, options, run.cancel);
    size = source->size().value();
    for (int reads = 0; reads < 4; ++reads) {
      Part part{world.below(size), {}};
      part.bytes.resize(1 + world.below(size - part.offset));
      const Bytes out = std::as_writable_bytes(std::span(part.bytes));
      source->read(part.offset, {&out, 1}, run.cancel);
      parts.push_back(std::move(part));
    }
    source->confirm(run.cancel);
  });
  if (!loaded) {
    require(is_replaced || !world.had_only(3, kHarmless), "a load fails because of a few faults");
    return;
  }
  const auto is_of = [&](const std::string& file) {
    return size == file.size() && std::ranges::all_of(parts, [&](const Part& part) {
             return file.compare(part.offset, part.bytes.size(), part.bytes) == 0;
           });
  };
  require(is_of(old) || (is_replaced && is_of(fresh)), "other bytes than those of one file");
}

// ---- saves

// Saves a file over an older one. The server has the old or the new one at any time, and the new
// one after a save that succeeds.
void save_to(Try& run, Web::Kind kind) {
  const std::string uri = uri_on(kind, run.options);
  const bool in_parts = kind != Web::Kind::Plain && run.world.below(4) > 0;
  SimulatedWorld& world = run.world;
  Files files;
  std::string old = run.some_bytes(500);
  const std::string fresh = run.some_bytes(in_parts ? 4000 : 500) + "new";
  if (world.one_in(4)) old.resize(fresh.size());
  Web web(world, files, kind);
  world.serve(web);
  files.put(old, to_hex(md5_of(as_bytes(old))));
  SinkOptions options{.given = run.options};
  options.part_size = 200 + world.below(1000);
  const std::size_t head = world.below(fresh.size());
  const bool is_abandoned = world.one_in(6);
  const bool saved = run.succeeds([&] {
    const std::unique_ptr<Sink> sink = open_sink(uri, options, run.cancel);
    const std::uint64_t body = fresh.size() - head;
    sink->begin(head, in_parts ? std::nullopt : std::optional(body));
    const ConstBytes bytes = as_bytes(fresh);
    if (sink->sequential()) sink->write_head(bytes.first(head), run.cancel);
    for (std::uint64_t at = 0; at < body;) {
      const ConstBytes piece = bytes.subspan(head + at, 1 + world.below(body - at));
      sink->write(at, {&piece, 1}, world.one_in(2) ? KeptUntil::End : KeptUntil::Return,
                  run.cancel);
      at += piece.size();
    }
    if (!sink->sequential()) sink->write_head(bytes.first(head), run.cancel);
    if (is_abandoned) throw Error(ErrorKind::Cancelled, "the save is abandoned");
    sink->finish(body, run.cancel);
  });
  if (is_abandoned) require(files.versions.size() == 1, "an abandoned save appears");
  if (saved)
    require(files.versions.back().bytes == fresh, "a save succeeds, and its file is not there");
  world.end();
  for (const Files::Version& version : files.versions) {
    require(version.bytes == old || version.bytes == fresh, "a part of a file appears");
  }
  if (saved) require(files.versions.back().bytes == fresh, "a saved file goes away again");
  // A plain upload is not repeated.
  const bool may_fail =
      kind == Web::Kind::Plain ? world.faults() > 0 : !world.had_only(3, kHarmless);
  require(saved || is_abandoned || may_fail, "a save fails because of a few faults");
  if (world.faults() == 0) require(!web.has_uploads(), "an upload is left");
}

// ---- removals

// Removes a file, or none, while another client may save one. After a removal that succeeds, no
// file was there at some moment.
void remove_from(Try& run, Web::Kind kind) {
  const std::string uri = uri_on(kind, run.options);
  SimulatedWorld& world = run.world;
  Files files;
  Web web(world, files, kind);
  world.serve(web);
  const auto put = [&files](const std::string& bytes) {
    files.put(bytes, to_hex(md5_of(as_bytes(bytes))));
  };
  const bool is_none = world.one_in(4), has_rival = world.one_in(4);
  if (!is_none) put(run.some_bytes(500));
  if (has_rival) world.sometime(4, [&, fresh = run.some_bytes(500)] { put(fresh); });
  const bool removed = run.succeeds([&] { remove_file(uri, {.given = run.options}, run.cancel); });
  const auto require_it_is_gone = [&] {
    if (!has_rival) require(!files.are_there(), "a removal succeeds, and the file is there");
    require(is_none || std::ranges::any_of(files.versions,
                                           [](const auto& version) { return !version.is_there(); }),
            "a removal succeeds, and removes nothing");
  };
  if (removed) require_it_is_gone();
  world.end();
  if (removed) require_it_is_gone();
  require(removed || !world.had_only(3, kHarmless), "a removal fails because of a few faults");
}

struct Case {
  const char* name;
  void (*run)(Try&);
};

template <auto run, Web::Kind kind>
constexpr void (*of)(Try&) = [](Try& each) { run(each, kind); };

template <auto run>
constexpr void (*of_redis)(Try&) = [](Try& each) { run(each, std::nullopt); };

constexpr Case kCases[] = {
    {"http-load", of<load_from, Web::Kind::Plain>},
    {"http-save", of<save_to, Web::Kind::Plain>},
    {"http-remove", of<remove_from, Web::Kind::Plain>},
    {"http-swap", of<swap_on_web, Web::Kind::Plain>},
    {"http-update", of<update_from_web, Web::Kind::Plain>},
    {"http-delta", of<make_delta_from, Web::Kind::Plain>},
    {"http-apply", of<apply_from, Web::Kind::Plain>},
    {"http-signed", of<load_signed_from_web, Web::Kind::Plain>},
    {"http-whole", of<load_in_one_pass, Web::Kind::Plain>},
    {"s3-load", of<load_from, Web::Kind::S3>},
    {"s3-save", of<save_to, Web::Kind::S3>},
    {"s3-remove", of<remove_from, Web::Kind::S3>},
    {"s3-swap", of<swap_on_web, Web::Kind::S3>},
    {"s3-update", of<update_from_web, Web::Kind::S3>},
    {"s3-delta", of<make_delta_from, Web::Kind::S3>},
    {"s3-apply", of<apply_from, Web::Kind::S3>},
    {"s3-signed", of<load_signed_from_web, Web::Kind::S3>},
    {"s3-whole", of<load_in_one_pass, Web::Kind::S3>},
    {"azure-load", of<load_from, Web::Kind::Azure>},
    {"azure-save", of<save_to, Web::Kind::Azure>},
    {"azure-remove", of<remove_from, Web::Kind::Azure>},
    {"azure-swap", of<swap_on_web, Web::Kind::Azure>},
    {"redis-load", &load_from_redis},
    {"redis-save", &save_to_redis},
    {"redis-remove", &remove_from_redis},
    {"redis-swap", &swap_on_redis},
    {"redis-update", &update_from_redis},
    {"redis-delta", of_redis<make_delta_from>},
    {"redis-apply", of_redis<apply_from>},
    {"redis-signed", &load_signed_from_redis},
};

// libsodium's random numbers, too, are those of the world.
randombytes_implementation simulated_randomness() {
  randombytes_implementation source{};
  source.implementation_name = [] { return "simulated"; };
  source.random = [] { return random_number(); };
  source.buf = [](void* out, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      static_cast<unsigned char*>(out)[i] = static_cast<unsigned char>(random_number());
    }
  };
  return source;
}

std::vector<Case> chosen_cases;
std::uint64_t running = 0;

// Chooses the case of this name, or all without a name. Returns false if there is none.
bool choose(std::string_view name) {
  const std::size_t before = chosen_cases.size();
  for (const Case& one : kCases) {
    if (name.empty() || name == one.name) chosen_cases.push_back(one);
  }
  return chosen_cases.size() > before;
}

const Case& case_of(std::uint64_t seed) { return chosen_cases[seed % chosen_cases.size()]; }

void report(std::uint64_t seed, const std::string& what) {
  const char* const name = case_of(seed).name;
  const auto number = static_cast<unsigned long long>(seed);
  std::printf("seed %llu: %s: %s\n  simulate %llu --case %s --verbose\n", number, name,
              what.c_str(), number, name);
}

void on_alarm(int) {
  report(running, "it does not end");
  std::fflush(stdout);
  std::_Exit(1);
}

struct Outcome {
  std::uint64_t trace = 0;
  std::string broken;  // the promise, or nothing
};

Outcome run_seed(std::uint64_t seed, bool verbose) {
  running = seed;
  alarm(60);
  const Case& chosen = case_of(seed);
  Try run(seed, verbose);
  Outcome outcome;
  try {
    run.world.note(chosen.name);
    chosen.run(run);
  } catch (const std::exception& error) {
    outcome.broken = error.what();
  }
  if (!run.world.broken().empty()) outcome.broken = run.world.broken();
  outcome.trace = run.world.trace();
  return outcome;
}

int simulate(std::uint64_t first, std::uint64_t last, bool verbose) {
  std::uint64_t broken = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    Outcome outcome = run_seed(seed, verbose);
    // The first ones are run twice, to see that a seed decides on everything.
    if (outcome.broken.empty() && seed - first < 100 && !verbose &&
        run_seed(seed, false).trace != outcome.trace) {
      outcome.broken = "a second run goes another way";
    }
    if (outcome.broken.empty()) continue;
    report(seed, outcome.broken);
    if (++broken == 10) break;
  }
  return broken == 0 ? 0 : 1;
}

}  // namespace

}  // namespace tensorizer::simulation

int main(int count, char** words) {
  using namespace tensorizer;
  std::string seeds = "1-20000";
  bool verbose = false;
  bool is_understood = true;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--verbose") {
      verbose = true;
    } else if (word == "--case") {
      is_understood = ++i < count && simulation::choose(words[i]) && is_understood;
    } else {
      seeds = word;
    }
  }
  if (simulation::chosen_cases.empty()) simulation::choose("");
  const std::size_t dash = seeds.find('-');
  const auto first = parse_number(seeds.substr(0, dash));
  const auto last = dash == seeds.npos ? first : parse_number(seeds.substr(dash + 1));
  if (!first || !last || !is_understood) {
    std::fprintf(stderr, "simulate [SEED | FIRST-LAST] [--verbose] [--case NAME]...\n");
    return 2;
  }
  // Nothing of this machine decides on a run.
  clearenv();
  setenv("HOME", "/nonexistent", 1);
  randombytes_implementation randomness = simulation::simulated_randomness();
  randombytes_set_implementation(&randomness);
  if (sodium_init() < 0) return 2;
  static_cast<void>(keyed_hash(""));  // chooses its key, for all runs
  std::signal(SIGALRM, &simulation::on_alarm);
  return simulation::simulate(*first, *last, verbose);
}
