// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define KVC_SHA256_X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace kvcast {
namespace sha256 {

alignas(64) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

inline uint32_t RotateRight(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

inline uint32_t LoadBigEndian32(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

// The lanes are the innermost loop, so that the compiler can keep independent
// work next to each other (and use vector registers for it).
template <size_t L>
void RunPortable(uint32_t (&h)[8][L], const uint8_t* const* messages, size_t blocks) {
  for (size_t block = 0; block < blocks; ++block) {
    uint32_t w[16][L];
    for (size_t i = 0; i < 16; ++i) {
      for (size_t l = 0; l < L; ++l) {
        w[i][l] = LoadBigEndian32(messages[l] + block * kSha256BlockBytes + 4 * i);
      }
    }
    uint32_t s[8][L];
    std::memcpy(s, h, sizeof s);
    for (size_t i = 0; i < 64; ++i) {
      uint32_t(&word)[L] = w[i % 16];
      if (i >= 16) {
        for (size_t l = 0; l < L; ++l) {
          const uint32_t a = w[(i + 1) % 16][l];
          const uint32_t b = w[(i + 14) % 16][l];
          word[l] += (RotateRight(a, 7) ^ RotateRight(a, 18) ^ (a >> 3)) + w[(i + 9) % 16][l] +
                     (RotateRight(b, 17) ^ RotateRight(b, 19) ^ (b >> 10));
        }
      }
      for (size_t l = 0; l < L; ++l) {
        const uint32_t a = s[0][l];
        const uint32_t e = s[4][l];
        const uint32_t t1 = s[7][l] +
                            (RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25)) +
                            ((e & s[5][l]) ^ (~e & s[6][l])) + kRounds[i] + word[l];
        const uint32_t t2 = (RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22)) +
                            ((a & s[1][l]) ^ (a & s[2][l]) ^ (s[1][l] & s[2][l]));
        s[7][l] = s[6][l];
        s[6][l] = s[5][l];
        s[5][l] = e;
        s[4][l] = s[3][l] + t1;
        s[3][l] = s[2][l];
        s[2][l] = s[1][l];
        s[1][l] = a;
        s[0][l] = t1 + t2;
      }
    }
    for (size_t i = 0; i < 8; ++i) {
      for (size_t l = 0; l < L; ++l) h[i][l] += s[i][l];
    }
  }
}

void CompressPortable(uint32_t state[8], const uint8_t* message, size_t blocks) {
  uint32_t h[8][1];
  for (size_t i = 0; i < 8; ++i) h[i][0] = state[i];
  RunPortable<1>(h, &message, blocks);
  for (size_t i = 0; i < 8; ++i) state[i] = h[i][0];
}

void StoreBigEndian32(uint8_t* p, uint32_t value) {
  p[0] = static_cast<uint8_t>(value >> 24);
  p[1] = static_cast<uint8_t>(value >> 16);
  p[2] = static_cast<uint8_t>(value >> 8);
  p[3] = static_cast<uint8_t>(value);
}

template <size_t L>
void HashPortable(const uint8_t* const* messages, size_t blocks, uint8_t* const* outs) {
  uint32_t h[8][L];
  for (size_t i = 0; i < 8; ++i) {
    for (size_t l = 0; l < L; ++l) h[i][l] = kInitial[i];
  }
  RunPortable<L>(h, messages, blocks);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t l = 0; l < L; ++l) StoreBigEndian32(outs[l] + 4 * i, h[i][l]);
  }
}

constexpr Sha256Kernels kPortableKernels = {"portable", CompressPortable, HashPortable<1>,
                                            HashPortable<2>, HashPortable<4>};

#if defined(KVC_SHA256_X86)

// The flags come from here and not from the command line: the rest of the
// library must run on processors without these instructions.
#define KVC_SHA256_TARGET __attribute__((target("sha,sse4.1")))

// One statement per lane, each with constant indices: the arrays below become
// registers at every optimisation level, and independent lanes stand next to
// each other. `i` is the group of four rounds.
#define KVC_SHA256_EACH(step, i) \
  do {                           \
    step(i, 0);                  \
    if constexpr (L > 1) {       \
      step(i, 1);                \
    }                            \
    if constexpr (L > 2) {       \
      step(i, 2);                \
      step(i, 3);                \
    }                            \
  } while (false)

// The instructions want the state as (A B E F) and (C D G H).
#define KVC_SHA256_READ(source, l)                                                                \
  do {                                                                                            \
    const __m128i cdab =                                                                          \
        _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)), 0xB1);       \
    const __m128i efgh =                                                                          \
        _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>((source) + 4)), 0x1B); \
    abef[l] = _mm_alignr_epi8(cdab, efgh, 8);                                                     \
    cdgh[l] = _mm_blend_epi16(efgh, cdab, 0xF0);                                                  \
  } while (false)

#define KVC_SHA256_SAVE(i, l) \
  do {                        \
    abef_before[l] = abef[l]; \
    cdgh_before[l] = cdgh[l]; \
  } while (false)

#define KVC_SHA256_ADD(i, l)                          \
  do {                                                \
    abef[l] = _mm_add_epi32(abef[l], abef_before[l]); \
    cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]); \
  } while (false)

#define KVC_SHA256_ROUNDS(i, l)                                                            \
  do {                                                                                     \
    const __m128i wk = _mm_add_epi32(                                                      \
        m[(i)&3][l], _mm_load_si128(reinterpret_cast<const __m128i*>(&kRounds[4 * (i)]))); \
    cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], wk);                                 \
    abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32(wk, 0x0E));        \
  } while (false)

// Rounds 0 to 15 take the message as it is ...
#define KVC_SHA256_FIRST(i, l)                                                                  \
  do {                                                                                          \
    const uint8_t* const words = messages[l] + block * kSha256BlockBytes + 16 * (i);            \
    m[i][l] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)), swap); \
    KVC_SHA256_ROUNDS(i, l);                                                                    \
  } while (false)

// ... the others the words derived from it.
#define KVC_SHA256_NEXT(i, l)                                                        \
  do {                                                                               \
    m[(i)&3][l] = _mm_sha256msg2_epu32(                                              \
        _mm_add_epi32(_mm_sha256msg1_epu32(m[(i)&3][l], m[((i) + 1) & 3][l]),        \
                      _mm_alignr_epi8(m[((i) + 3) & 3][l], m[((i) + 2) & 3][l], 4)), \
        m[((i) + 3) & 3][l]);                                                        \
    KVC_SHA256_ROUNDS(i, l);                                                         \
  } while (false)

#define KVC_SHA256_BLOCKS(blocks)                     \
  for (size_t block = 0; block < (blocks); ++block) { \
    __m128i abef_before[L];                           \
    __m128i cdgh_before[L];                           \
    __m128i m[4][L];                                  \
    KVC_SHA256_EACH(KVC_SHA256_SAVE, 0);              \
    KVC_SHA256_EACH(KVC_SHA256_FIRST, 0);             \
    KVC_SHA256_EACH(KVC_SHA256_FIRST, 1);             \
    KVC_SHA256_EACH(KVC_SHA256_FIRST, 2);             \
    KVC_SHA256_EACH(KVC_SHA256_FIRST, 3);             \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 4);              \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 5);              \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 6);              \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 7);              \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 8);              \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 9);              \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 10);             \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 11);             \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 12);             \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 13);             \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 14);             \
    KVC_SHA256_EACH(KVC_SHA256_NEXT, 15);             \
    KVC_SHA256_EACH(KVC_SHA256_ADD, 0);               \
  }

// (A B E F) and (C D G H) back to (A B C D) and (E F G H), first word lowest.
#define KVC_SHA256_UNPACK(l)                              \
  const __m128i feba = _mm_shuffle_epi32(abef[l], 0x1B);  \
  const __m128i dchg = _mm_shuffle_epi32(cdgh[l], 0xB1);  \
  const __m128i abcd = _mm_blend_epi16(feba, dchg, 0xF0); \
  const __m128i efgh = _mm_alignr_epi8(dchg, feba, 8)

KVC_SHA256_TARGET void CompressShaNi(uint32_t state[8], const uint8_t* message, size_t blocks) {
  constexpr int L = 1;
  const uint8_t* const messages[1] = {message};
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[L];
  __m128i cdgh[L];
  KVC_SHA256_READ(state, 0);
  KVC_SHA256_BLOCKS(blocks)
  KVC_SHA256_UNPACK(0);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), abcd);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), efgh);
}

// Writes the digest with two wide stores: the next block of the chain loads it
// at once, and narrow ones could not be forwarded to wide loads.
#define KVC_SHA256_DIGEST(i, l)                              \
  do {                                                       \
    KVC_SHA256_UNPACK(l);                                    \
    auto* const out = reinterpret_cast<__m128i*>(outs[l]);   \
    _mm_storeu_si128(out, _mm_shuffle_epi8(abcd, swap));     \
    _mm_storeu_si128(out + 1, _mm_shuffle_epi8(efgh, swap)); \
  } while (false)

template <int L>
KVC_SHA256_TARGET void HashShaNi(const uint8_t* const* messages, size_t blocks,
                                 uint8_t* const* outs) {
  static_assert(L == 1 || L == 2 || L == 4);
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[L];
  __m128i cdgh[L];
  KVC_SHA256_EACH(KVC_SHA256_READ, kInitial);
  KVC_SHA256_BLOCKS(blocks)
  KVC_SHA256_EACH(KVC_SHA256_DIGEST, 0);
}

#undef KVC_SHA256_ADD
#undef KVC_SHA256_BLOCKS
#undef KVC_SHA256_DIGEST
#undef KVC_SHA256_EACH
#undef KVC_SHA256_FIRST
#undef KVC_SHA256_NEXT
#undef KVC_SHA256_READ
#undef KVC_SHA256_ROUNDS
#undef KVC_SHA256_SAVE
#undef KVC_SHA256_TARGET
#undef KVC_SHA256_UNPACK

constexpr Sha256Kernels kShaNiKernels = {"sha-ni", CompressShaNi, HashShaNi<1>, HashShaNi<2>,
                                         HashShaNi<4>};

// By cpuid itself: older compilers' __builtin_cpu_supports does not know "sha".
bool HasShaNi() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kSsse3 = 1u << 9;
  constexpr unsigned kSse41 = 1u << 19;
  if ((c & kSsse3) == 0 || (c & kSse41) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kSha = 1u << 29;
  return (b & kSha) != 0;
}

#endif  // KVC_SHA256_X86

}  // namespace sha256

const Sha256Kernels& Sha256Portable() { return sha256::kPortableKernels; }

const Sha256Kernels* Sha256ShaNi() {
#if defined(KVC_SHA256_X86)
  static const bool available = sha256::HasShaNi();
  return available ? &sha256::kShaNiKernels : nullptr;
#else
  return nullptr;
#endif
}

const Sha256Kernels& Sha256Best() {
  const Sha256Kernels* fast = Sha256ShaNi();
  return fast != nullptr ? *fast : Sha256Portable();
}

void Sha256Pad(uint8_t* buffer, size_t size) {
  const size_t padded = Sha256PaddedBytes(size);
  buffer[size] = 0x80;
  std::memset(buffer + size + 1, 0, padded - 8 - (size + 1));
  const uint64_t bits = uint64_t{size} * 8;
  for (size_t i = 0; i < 8; ++i) {
    buffer[padded - 8 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  }
}

Sha256::Sha256(const Sha256Kernels& kernels) : kernels_(kernels) {
  std::memcpy(state_, sha256::kInitial, sizeof state_);
}

void Sha256::Update(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  size_t used = static_cast<size_t>(size_ % kSha256BlockBytes);
  size_ += size;
  if (used != 0) {
    const size_t take = std::min(size, kSha256BlockBytes - used);
    if (take != 0) std::memcpy(buffer_ + used, bytes, take);
    bytes += take;
    size -= take;
    used += take;
    if (used < kSha256BlockBytes) return;
    kernels_.compress(state_, buffer_, 1);
  }
  const size_t whole = size / kSha256BlockBytes;
  if (whole != 0) kernels_.compress(state_, bytes, whole);
  const size_t rest = size % kSha256BlockBytes;
  if (rest != 0) std::memcpy(buffer_, bytes + whole * kSha256BlockBytes, rest);
}

void Sha256::Final(uint8_t out[kSha256Bytes]) {
  // At most two blocks: the rest of the message, the mark and the length.
  uint8_t tail[2 * kSha256BlockBytes];
  const size_t used = static_cast<size_t>(size_ % kSha256BlockBytes);
  const size_t padded = Sha256PaddedBytes(used);
  if (used != 0) std::memcpy(tail, buffer_, used);
  tail[used] = 0x80;
  std::memset(tail + used + 1, 0, padded - 8 - (used + 1));
  const uint64_t bits = size_ * 8;
  for (size_t i = 0; i < 8; ++i) {
    tail[padded - 8 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  }
  kernels_.compress(state_, tail, padded / kSha256BlockBytes);
  for (size_t i = 0; i < 8; ++i) sha256::StoreBigEndian32(out + 4 * i, state_[i]);
}

}  // namespace kvcast

#if defined(KVC_SHA256_X86)
#undef KVC_SHA256_X86
#endif
