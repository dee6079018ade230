// The layout of a safetensors file refuses what the format cannot hold.
#include "format/safetensors/layout.h"

#include <string>
#include <vector>

#include "memory_file.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST(SafetensorsLayout, RefusesWhatTheFormatCannotHold) {
  const auto refused = [](const TensorSpec& spec, const char* why) {
    SafetensorsLayout layout({});
    const Error error = error_of([&] { layout.add(spec); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(contains(error.what(), why)) << error.what();
  };
  TensorSpec spec = sample("x", 1).spec;
  const auto with = [&](auto TensorSpec::* member, auto value) {
    TensorSpec other = spec;
    other.*member = value;
    return other;
  };
  refused(with(&TensorSpec::name, "__metadata__"), "tensor '__metadata__' cannot be saved");
  refused(with(&TensorSpec::name, "\x1e[0]"), "it is nested");
  refused(with(&TensorSpec::name, "\xff"), "its name is not UTF-8");
  refused(with(&TensorSpec::dtype, DType::Complex128), "no type for complex128");
  refused(with(&TensorSpec::meta, true), "it is on the meta device");
  refused(with(&TensorSpec::shape, std::vector<std::int64_t>(256, 1)), "it has 256 dimensions");
  TensorSpec packed = with(&TensorSpec::dtype, DType::Float4E2M1FNx2);
  packed.shape.clear();
  refused(packed, "without dimensions");

  SafetensorsLayout twice({});
  twice.add(spec);
  twice.add(spec);
  Cancel cancel;
  EXPECT_TRUE(contains(message_of([&] { twice.check_names(cancel); }), "'x' is to be saved twice"));

  SafetensorsLayout huge({{}, false, {{"k", std::string(99'999'999, 'x')}}});
  EXPECT_TRUE(contains(message_of([&] { huge.prefix_size(); }), "the format allows 100000000"));

  SafetensorsLayout full({{{Hash::Sha256}, {}}, false, {{"k", std::string(99'999'600, 'x')}}});
  const std::uint64_t before = full.prefix_size();
  full.add(with(&TensorSpec::name, std::string(40, 'a')));
  const std::uint64_t one = full.prefix_size();
  full.add(with(&TensorSpec::name, std::string(40, 'b')));
  EXPECT_TRUE(contains(message_of([&] { full.check_size(); }), "the format allows 100000000"));
  full.remove_from(1);
  EXPECT_EQ(full.prefix_size(), one);
  EXPECT_EQ(full.prefix(0, one).size(), one);
  full.remove_from(0);
  EXPECT_EQ(full.prefix_size(), before);
  EXPECT_EQ(full.end(), 0U);
}

}  // namespace
}  // namespace tensorizer
