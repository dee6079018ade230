// Which format a save writes, by the name of its target.
#include "engine/save/new_layout.h"

#include "base/error.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST(FormatOf, IsWhatTheNameSays) {
  for (const char* uri : {"m.safetensors", "/a.pt/M.SAFETENSORS", "https://h/m.SafeTensors?x=.pt",
                          "s3://b/a?b.pt/m#1.safetensors", "file:///a?b#c/m.safetensors",
                          "gs://b/a#b/m.safetensors", "unix:///m.safetensors?prefix=a"}) {
    EXPECT_EQ(format_of(uri, std::nullopt), Format::Safetensors) << uri;
  }
  for (const char* uri : {"m.tensors", "m", "", "fd:3", "pt", "a.pt/m", "m.unknown", "m.tensor",
                          "m.safetensors/", "https://h.pt/m?name=.safetensors", "m.", "m.st"}) {
    EXPECT_EQ(format_of(uri, std::nullopt), Format::Tensors) << uri;
  }
}

TEST(FormatOf, RefusesNamesOfOtherFormats) {
  for (const char* uri : {"m.pt", "a/m.PTH", "pytorch_model.bin", "https://h/m.ckpt?x#y", "m.gguf",
                          "m.tensors.gz", "m.safetensor", "m.saftensors", "m.safetensors2",
                          "m.safetensors.index.json", "config.json"}) {
    EXPECT_EQ(kind_of([&] { format_of(uri, std::nullopt); }), ErrorKind::InvalidArgument) << uri;
    EXPECT_EQ(format_of(uri, Format::Tensors), Format::Tensors);
    EXPECT_EQ(format_of(uri, Format::Safetensors), Format::Safetensors);
  }
}

TEST(KindIn, RefusesChunkHashesThatTheFormatDoesNotList) {
  Cancel cancel;
  for (const Format format : {Format::Tensors, Format::Safetensors}) {
    FileKind kind;
    kind.chunk_size = 1 << 20;
    EXPECT_EQ(kind_in(format, kind, cancel).chunk_size, 1 << 20);
    kind.chunk_hash = Hash::Crc32;
    EXPECT_EQ(kind_of([&] { kind_in(format, kind, cancel); }), ErrorKind::InvalidArgument);
    kind.chunk_size = 0;
    EXPECT_EQ(kind_in(format, kind, cancel).chunk_size, 0);
  }
}

}  // namespace
}  // namespace tensorizer
