// Crypt info: what is accepted, what is refused, and what is written.
#include "format/tensors/crypt_info.h"

#include "raw_crypt.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::uint64_t kSize = 3 * 1024 - 5;  // three chunks of 1 KiB
const Nonce kNonce = nonce_of(3);
const std::string kMacs(as_text(pattern(3 * kMacSize, 4)));

std::string fault_of(std::string_view section, std::uint64_t data_size = kSize) {
  std::string fault;
  parse_crypt_info(as_bytes(section), data_size, fault);
  return fault;
}

CryptInfo parsed(std::string_view section, std::uint64_t data_size = kSize) {
  std::string fault;
  const CryptInfo info = parse_crypt_info(as_bytes(section), data_size, fault);
  EXPECT_EQ(fault, "");
  return info;
}

std::string chunked(std::uint64_t chunk_size, std::uint64_t count, std::string_view macs = kMacs) {
  return crypt_entry(2, chunked_body(chunk_size, kNonce, count, macs));
}
std::string derived(const KeyDerivation& derivation = derivation_of(5)) {
  return crypt_entry(1, derivation_body(derivation));
}
std::string sequential() {
  return crypt_entry(3, sequential_body(kNonce, kMacs.substr(0, kMacSize)));
}

// ---- what is accepted

TEST(CryptInfo, OfChunksIsRead) {
  const std::string section = crypt_section({chunked(1024, 3)});
  const CryptInfo info = parsed(section);
  EXPECT_FALSE(info.derivation);
  EXPECT_EQ(info.chunk_size, 1024U);
  EXPECT_EQ(info.nonce, kNonce);
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(as_text(info.mac(chunk)), kMacs.substr(chunk * kMacSize, kMacSize));
  }
}

TEST(CryptInfo, OfADerivedKeyIsReadInAnyOrder) {
  const KeyDerivation derivation = derivation_of(5, {7, 1 << 20});
  for (const std::string& section : {crypt_section({derived(derivation), chunked(1024, 3)}),
                                     crypt_section({chunked(1024, 3), derived(derivation)})}) {
    const CryptInfo info = parsed(section);
    EXPECT_EQ(info.derivation, derivation);
    EXPECT_EQ(info.chunk_size, 1024U);
  }
}

TEST(CryptInfo, OfOneMacIsOneChunk) {
  const std::string one = crypt_section({sequential()});
  const CryptInfo info = parsed(one);
  EXPECT_EQ(info.chunk_size, kSize);
  EXPECT_EQ(info.nonce, kNonce);
  EXPECT_EQ(as_text(info.macs), kMacs.substr(0, kMacSize));
  const std::string whole = crypt_section({chunked(4096, 1, kMacs.substr(0, kMacSize))});
  EXPECT_EQ(chunks_of(kSize, parsed(whole).chunk_size), 1U);
  EXPECT_TRUE(same(parsed(whole).macs, info.macs));
}

TEST(CryptInfo, OfATensorWithoutDataIsEmptyOrFits) {
  EXPECT_EQ(parsed(crypt_section({}), 0).chunk_size, 0U);
  EXPECT_EQ(parsed(crypt_section({derived()}), 0).derivation, derivation_of(5));
  parsed(crypt_section({chunked(1024, 0, "")}), 0);
  parsed(crypt_section({sequential()}), 0);
  EXPECT_TRUE(contains(fault_of(crypt_section({chunked(1024, 1)}), 0), "1 MACs for 0 chunks"));
}

TEST(CryptInfo, MayHoldMoreBehindTheFieldsOfAnEntry) {
  const std::string more = "and more";
  const std::string section =
      crypt_section({crypt_entry(1, derivation_body(derivation_of(5)) + more),
                     crypt_entry(2, chunked_body(1024, kNonce, 3, kMacs + more))});
  const CryptInfo info = parsed(section);
  EXPECT_EQ(info.derivation, derivation_of(5));
  EXPECT_EQ(as_text(info.macs), kMacs);
  EXPECT_EQ(parsed(crypt_section({crypt_entry(3, sequential_body(kNonce, kMacs))})).macs.size(),
            kMacSize);
  // There may also be more bytes behind the last entry.
  parsed(crypt_section({chunked(1024, 3)}) + more);
}

TEST(CryptInfo, TakesEveryChunkSizeThatIsAllowed) {
  for (const std::uint64_t size : {std::uint64_t{1024}, std::uint64_t{1088}, std::uint64_t{4160},
                                   std::uint64_t{3} << 20, std::uint64_t{1} << 40}) {
    const std::uint64_t count = chunks_of(kSize, size);
    const std::string section =
        crypt_section({chunked(size, count, kMacs.substr(0, count * kMacSize))});
    EXPECT_EQ(parsed(section).chunk_size, size);
  }
}

// ---- what is refused

TEST(CryptInfo, RefusesOtherChunkSizes) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{64},
        std::uint64_t{960}, std::uint64_t{1023}, std::uint64_t{1025}, std::uint64_t{1056},
        (std::uint64_t{1} << 40) + 64, std::uint64_t{1} << 63, ~std::uint64_t{0},
        ~std::uint64_t{63}}) {
    EXPECT_TRUE(contains(fault_of(crypt_section({chunked(size, 3)})),
                         "in chunks of " + std::to_string(size) + " bytes"))
        << size;
  }
}

TEST(CryptInfo, RefusesAnotherCountThanThatOfTheChunks) {
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{1} << 60,
        (std::uint64_t{1} << 60) + 3, ~std::uint64_t{0}}) {
    EXPECT_TRUE(contains(fault_of(crypt_section({chunked(1024, count)})),
                         "has " + std::to_string(count) + " MACs for 3 chunks"))
        << count;
  }
  // The right count, but fewer bytes.
  EXPECT_TRUE(contains(fault_of(crypt_section({chunked(1024, 3, kMacs.substr(1))})),
                       "list of MACs that is cut short"));
  const std::uint64_t most = ~std::uint64_t{0} >> 1;
  EXPECT_TRUE(contains(fault_of(crypt_section({chunked(1024, chunks_of(most, 1024))}), most),
                       "list of MACs that is cut short"));
}

TEST(CryptInfo, RefusesASectionThatIsCutAnywhere) {
  for (const std::string& section :
       {crypt_section({derived(), chunked(1024, 3)}), crypt_section({derived(), sequential()})}) {
    EXPECT_EQ(fault_of(section), "");
    for (std::size_t size = 0; size < section.size(); ++size) {
      EXPECT_TRUE(
          contains(fault_of(section.substr(0, size)), "crypt-info section that is cut short"))
          << size;
    }
  }
}

TEST(CryptInfo, RefusesAnEntryThatIsCutAnywhere) {
  const auto each_cut = [](std::uint16_t kind, const std::string& body, const std::string& other) {
    EXPECT_EQ(fault_of(crypt_section({crypt_entry(kind, body), other})), "");
    for (std::size_t size = 0; size < body.size(); ++size) {
      const std::string section = crypt_section({crypt_entry(kind, body.substr(0, size)), other});
      EXPECT_TRUE(contains(fault_of(section), "cut short")) << kind << " " << size;
    }
  };
  each_cut(1, derivation_body(derivation_of(5)), chunked(1024, 3));
  each_cut(2, chunked_body(1024, kNonce, 3, kMacs), derived());
  each_cut(3, sequential_body(kNonce, kMacs.substr(0, kMacSize)), derived());
  // An entry without a kind, and one with an impossible length.
  const std::string no_kind = RawFields().put(std::uint64_t{1}).put(std::uint8_t{2});
  EXPECT_NE(fault_of(crypt_section({no_kind, chunked(1024, 3)})), "");
  const std::string long_one = RawFields().put(~std::uint64_t{0}).put(std::uint16_t{2});
  EXPECT_TRUE(contains(fault_of(crypt_section({long_one})), "section that is cut short"));
}

TEST(CryptInfo, RefusesUnknownKinds) {
  for (const std::uint16_t kind : {0, 4, 0x0102, 0xffff}) {
    EXPECT_TRUE(contains(fault_of(crypt_section({chunked(1024, 3), crypt_entry(kind, "?")})),
                         "unknown kind " + std::to_string(kind)));
  }
}

TEST(CryptInfo, RefusesToHearAnythingTwice) {
  EXPECT_TRUE(contains(fault_of(crypt_section({derived(), derived(), chunked(1024, 3)})),
                       "derives its key twice"));
  for (const std::string& first : {chunked(1024, 3), sequential()}) {
    for (const std::string& second : {chunked(1024, 3), sequential()}) {
      EXPECT_TRUE(contains(fault_of(crypt_section({first, second})), "is encrypted twice"));
    }
  }
}

TEST(CryptInfo, RefusesDataThatIsNotEncrypted) {
  for (const std::string& section : {crypt_section({}), crypt_section({derived()})}) {
    for (const std::uint64_t size : {std::uint64_t{1}, kSize, ~std::uint64_t{0} >> 1}) {
      EXPECT_TRUE(contains(fault_of(section, size), "not encrypted, in an encrypted file"));
    }
  }
}

TEST(CryptInfo, RefusesUnknownDerivations) {
  const auto fault = [](const std::string& body) {
    return fault_of(crypt_section({crypt_entry(1, body), chunked(1024, 3)}));
  };
  const std::vector<std::byte> salt = pattern(32);
  const ConstBytes right = ConstBytes(salt).first(16);
  EXPECT_EQ(fault(derivation_body({1, 8192}, right)), "");
  for (const std::size_t size : {0, 15, 17, 32}) {
    EXPECT_TRUE(contains(fault(derivation_body({1, 8192}, ConstBytes(salt).first(size))),
                         "a salt of " + std::to_string(size) + " bytes"));
  }
  for (const std::uint16_t method : {0, 2, 0xffff}) {
    EXPECT_TRUE(contains(fault(derivation_body({1, 8192}, right, method)),
                         "by method " + std::to_string(method) + ", algorithm 2"));
  }
  for (const std::int32_t algorithm : {-2, 0, 1, 3}) {
    EXPECT_TRUE(contains(fault(derivation_body({1, 8192}, right, 1, algorithm)),
                         "algorithm " + std::to_string(algorithm) + ", which is unknown"));
  }
  // The parser allows any cost. The code that derives the key limits it.
  EXPECT_EQ(fault(derivation_body({~std::uint64_t{0}, 0}, right)), "");
}

TEST(CryptInfo, RefusesNoncesThatComeAroundAgain) {
  const auto fault = [](std::uint8_t lowest) {
    Nonce nonce;
    nonce.fill(std::byte{0xff});
    nonce[0] = std::byte{lowest};
    return fault_of(crypt_section({crypt_entry(2, chunked_body(1024, nonce, 3, kMacs))}));
  };
  EXPECT_EQ(fault(0xfc), "");
  EXPECT_TRUE(contains(fault(0xfe), "would repeat"));
  EXPECT_TRUE(contains(fault(0xff), "would repeat"));
}

TEST(CryptInfo, NeverBreaksTheParser) {
  const std::string good = crypt_section({derived(), chunked(1024, 3)});
  Dice dice(61);
  for (int round = 0; round < 20000; ++round) {
    std::string section = good;
    for (std::uint64_t changes = 1 + dice.below(3); changes > 0; --changes) {
      section[dice.below(section.size())] = static_cast<char>(dice.below(256));
    }
    section.resize(section.size() - (dice.one_in(4) ? dice.below(section.size()) : 0));
    std::string fault;
    const CryptInfo info = parse_crypt_info(as_bytes(section), kSize, fault);
    if (!fault.empty()) continue;
    EXPECT_EQ(info.macs.size(), kMacSize * chunks_of(kSize, info.chunk_size));
  }
}

// ---- what is written

TEST(CryptInfo, WrittenIsThatOfTheFormat) {
  const SharedSecret key = std::make_shared<SecretBytes>(kKeySize);
  for (const bool derives : {false, true}) {
    Encryption encryption{key, {}};
    if (derives) encryption.derivation = derivation_of(5);
    for (const std::uint64_t size : {std::uint64_t{1}, kCryptChunk, kCryptChunk + 1,
                                     3 * kCryptChunk, std::uint64_t{100} << 20}) {
      std::vector<std::byte> bytes = pattern(7);
      const CryptInfoLocation location = put_crypt_info(bytes, encryption, size);
      const std::uint64_t count = (size + kCryptChunk - 1) / kCryptChunk;
      std::vector<std::string> entries;
      if (derives) entries.push_back(derived());
      entries.push_back(crypt_entry(2, chunked_body(kCryptChunk, location.nonce, count,
                                                    std::string(count * kMacSize, '\0'))));
      const std::string expected = crypt_section(entries);
      EXPECT_EQ(crypt_info_size(encryption, size), 8 + expected.size());
      EXPECT_EQ(as_text(ConstBytes(bytes).subspan(7)),
                std::string(RawFields().put(std::uint64_t{expected.size()}).put(expected)));
      EXPECT_EQ(location.macs_at, bytes.size() - count * kMacSize);
      EXPECT_EQ(fault_of(expected, size), "");
    }
    std::vector<std::byte> empty;
    put_crypt_info(empty, encryption, 0);
    EXPECT_EQ(as_text(empty), std::string(RawFields().put(std::uint64_t{2}).put(std::uint16_t{0})));
    EXPECT_EQ(crypt_info_size(encryption, 0), empty.size());
  }
}

TEST(CryptInfo, HasAFreshNonceEachTime) {
  const Encryption encryption{std::make_shared<SecretBytes>(kKeySize), {}};
  std::vector<std::byte> bytes;
  const Nonce first = put_crypt_info(bytes, encryption, 5).nonce;
  EXPECT_NE(first, put_crypt_info(bytes, encryption, 5).nonce);
}

}  // namespace
}  // namespace tensorizer
