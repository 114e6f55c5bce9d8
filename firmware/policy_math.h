/* The arithmetic that generated policies need: no libm, no allocation, no data-dependent branches.
 *
 * Everything is static so that one policy is one object file. With `-ffp-contract=off` the plain C below and the
 * Cortex-M4F assembly give the same bits. Define POLICY_PLAIN_C to do without the assembly.
 */
#ifndef POLICY_MATH_H
#define POLICY_MATH_H

#include <stdint.h>

#if defined(__arm__) && defined(__ARM_FP) && defined(__thumb2__) && !defined(POLICY_PLAIN_C)
#define POLICY_CORTEX_M4F 1
#endif
#if defined(__arm__) && defined(__ARM_FEATURE_DSP) && defined(__thumb2__) && !defined(POLICY_PLAIN_C)
#define POLICY_DSP 1 /* a Cortex-M33 may lack it */
#endif

#if defined(__GNUC__)
#define POLICY_UNUSED __attribute__((unused))
#define POLICY_NOINLINE __attribute__((noinline, unused))
#define POLICY_INLINE __attribute__((always_inline, unused)) inline
#else
#define POLICY_UNUSED
#define POLICY_NOINLINE
#define POLICY_INLINE inline
#endif

typedef union {
    float number;
    uint32_t bits;
} policy_word;

/* Not zero when any of the n numbers is infinite or NaN. Looks at the bits: true under -ffast-math too. */
static POLICY_UNUSED uint32_t policy_broken(const float *x, int n) {
    uint32_t found = 0;
    for (int i = 0; i < n; ++i) {
        const policy_word word = {x[i]};
        found |= (word.bits & 0x7fffffffu) + 0x00800000u; /* carries into the top bit when the exponent is all ones */
    }
    return found & 0x80000000u;
}

static POLICY_UNUSED float policy_sqrt(float x) {
#if defined(POLICY_CORTEX_M4F)
    float y;
    __asm__("vsqrt.f32 %0, %1" : "=t"(y) : "t"(x));
    return y;
#elif defined(__SSE2__) && defined(__GNUC__)
    float y;
    __asm__("sqrtss %1, %0" : "=x"(y) : "x"(x));
    return y;
#elif defined(__aarch64__) && defined(__GNUC__)
    float y;
    __asm__("fsqrt %s0, %s1" : "=w"(y) : "w"(x));
    return y;
#elif defined(__riscv_flen) && defined(__GNUC__)
    float y;
    __asm__("fsqrt.s %0, %1" : "=f"(y) : "f"(x));
    return y;
#elif defined(__wasm__)
    return __builtin_sqrtf(x); /* an instruction */
#else
    policy_word y = {x};
    y.bits = (y.bits >> 1) + 0x1fc00000u; /* half the exponent */
    for (int i = 0; i < 4; ++i) y.number = 0.5f * (y.number + x / y.number);
    return x > 0.0f ? y.number : x == 0.0f ? 0.0f : (x - x) / (x - x); /* NaN of what is negative */
#endif
}

/* 2^t = y for t in [-126, 126], relative error 1e-7: on [-1/2, 1/2] a minimax polynomial, the exponent by addition. */
#define POLICY_ROUND 12582912.0f /* 1.5 * 2^23: after adding it, the last bits are the nearest whole number */
#define POLICY_P6 0.0001535336f
#define POLICY_P5 0.0013398877f
#define POLICY_P4 0.009618437f
#define POLICY_P3 0.055503324f
#define POLICY_P2 0.24022648f
#define POLICY_P1 0.6931472f

static POLICY_INLINE float policy_exp2(float t) {
    const policy_word whole = {t + POLICY_ROUND};
    const float r = t - (whole.number - POLICY_ROUND);
    policy_word y = {(POLICY_P6 * r + POLICY_P5) * r + POLICY_P4};
    y.number = ((y.number * r + POLICY_P3) * r + POLICY_P2) * r + POLICY_P1;
    y.number = y.number * r + 1.0f;
    y.bits += whole.bits << 23;
    return y.number;
}

/* e^x, limited to x in [-87, 87]. */
static POLICY_UNUSED float policy_exp(float x) {
    x = x > 87.0f ? 87.0f : x;
    x = x < -87.0f ? -87.0f : x;
    return policy_exp2(1.44269504f * x);
}

/* tanh(x), absolute error below 1.1e-7 (2e-8 rms; rounding the exact value: 1.6e-8), odd, exactly 1 for large x; NaN
 * stays NaN. With e = e^-2|x| it is (1 - e) / (1 + e), or 1 - 2 e / (1 + e) where that rounds something smaller. */
#define POLICY_TANH_SCALE -2.88539008f
#define POLICY_TANH_LIMIT 20.0f
#define POLICY_THIRD 0.33333334f

static POLICY_INLINE float policy_tanh(float x) {
    float a = x < 0.0f ? -x : x;
    a = a > POLICY_TANH_LIMIT ? POLICY_TANH_LIMIT : a;
    const float e = policy_exp2(POLICY_TANH_SCALE * a);
    const float y = (e < POLICY_THIRD ? 1.0f : 0.0f) + (e < POLICY_THIRD ? -2.0f * e : 1.0f - e) / (1.0f + e);
    return x < 0.0f ? -y : y;
}

/* Relative error below 4e-7 for x above -87, so that its logarithm is right, too. */
static POLICY_INLINE float policy_sigmoid(float x) { return 1.0f / (1.0f + policy_exp(-x)); }

static POLICY_UNUSED float policy_clip(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* Absolute error below 4e-7 (Abramowitz and Stegun 7.1.26). */
static POLICY_UNUSED float policy_erf(float x) {
    const float a = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.3275911f * a);
    const float p = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
    const float y = 1.0f - p * t * policy_exp(-a * a);
    return x < 0.0f ? -y : y;
}

/* x tanh(log(1 + e^x)). */
static POLICY_UNUSED float policy_mish(float x) {
    const float e = policy_exp(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

#if defined(POLICY_CORTEX_M4F)
/* tanh of four numbers at once, so that no instruction waits for the one before it. s0-s3: x, s4-s7: t, r, then the
 * numerator, s8-s11: whole, then the denominator, s12-s15: the polynomial, e, then 1 or 0, s16-s27: the constants. */
static const float policy_tanh_constants[12] = {
    POLICY_TANH_SCALE, POLICY_ROUND, POLICY_TANH_LIMIT, POLICY_P6, POLICY_P5, POLICY_P4,
    POLICY_P3, POLICY_P2, POLICY_P1, 1.0f, POLICY_THIRD, 2.0f};
#define POLICY_4(op, y0, y1, y2, y3, a0, a1, a2, a3, b0, b1, b2, b3) \
    op " s" #y0 ", s" #a0 ", s" #b0 "\n\t" op " s" #y1 ", s" #a1 ", s" #b1 "\n\t" \
    op " s" #y2 ", s" #a2 ", s" #b2 "\n\t" op " s" #y3 ", s" #a3 ", s" #b3 "\n\t"
#define POLICY_LIMIT(t) "vcmp.f32 " t ", s18\n\tvmrs APSR_nzcv, fpscr\n\tit gt\n\tvmovgt.f32 " t ", s18\n\t"
#define POLICY_SIGN(x, y) "vcmp.f32 " x ", #0\n\tvmrs APSR_nzcv, fpscr\n\tit mi\n\tvnegmi.f32 " y ", " y "\n\t"
#define POLICY_CHOOSE(e, numerator) \
    "vcmp.f32 " e ", s26\n\tvmrs APSR_nzcv, fpscr\n\titte mi\n\tvnmulmi.f32 " numerator ", " e ", s27\n\t" \
    "vmovmi.f32 " e ", s25\n\tvsubpl.f32 " e ", s25, s25\n\t"
#define POLICY_HORNER(constant) \
    POLICY_4("vadd.f32", 12, 13, 14, 15, 12, 13, 14, 15, constant, constant, constant, constant)
#define POLICY_TIMES_R POLICY_4("vmul.f32", 12, 13, 14, 15, 12, 13, 14, 15, 4, 5, 6, 7)
#define POLICY_EXPONENT(whole, power) \
    "vmov %[i], " whole "\n\tvmov %[j], " power "\n\tadd %[j], %[j], %[i], lsl #23\n\tvmov " power ", %[j]\n\t"
#endif

/* y = tanh(x), element by element; y may be x. */
static POLICY_NOINLINE void policy_tanh_all(float *y, const float *x, int count) {
#if defined(POLICY_CORTEX_M4F)
    int turns = count >> 2, i, j;
    count &= 3;
    if (turns)
        __asm__ volatile(
            "vldmia %[c], {s16-s27}\n"
            "1:\n\tvldmia %[x]!, {s0-s3}\n\t"
            "vabs.f32 s4, s0\n\tvabs.f32 s5, s1\n\tvabs.f32 s6, s2\n\tvabs.f32 s7, s3\n\t"
            POLICY_LIMIT("s4") POLICY_LIMIT("s5") POLICY_LIMIT("s6") POLICY_LIMIT("s7")
            POLICY_4("vmul.f32", 4, 5, 6, 7, 4, 5, 6, 7, 16, 16, 16, 16)
            POLICY_4("vadd.f32", 8, 9, 10, 11, 4, 5, 6, 7, 17, 17, 17, 17)
            POLICY_4("vsub.f32", 12, 13, 14, 15, 8, 9, 10, 11, 17, 17, 17, 17)
            POLICY_4("vsub.f32", 4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15)
            POLICY_4("vmul.f32", 12, 13, 14, 15, 4, 5, 6, 7, 19, 19, 19, 19)
            POLICY_HORNER(20) POLICY_TIMES_R POLICY_HORNER(21) POLICY_TIMES_R POLICY_HORNER(22) POLICY_TIMES_R
            POLICY_HORNER(23) POLICY_TIMES_R POLICY_HORNER(24) POLICY_TIMES_R POLICY_HORNER(25)
            POLICY_EXPONENT("s8", "s12") POLICY_EXPONENT("s9", "s13")
            POLICY_EXPONENT("s10", "s14") POLICY_EXPONENT("s11", "s15")
            POLICY_4("vsub.f32", 4, 5, 6, 7, 25, 25, 25, 25, 12, 13, 14, 15)
            POLICY_4("vadd.f32", 8, 9, 10, 11, 25, 25, 25, 25, 12, 13, 14, 15)
            POLICY_CHOOSE("s12", "s4") POLICY_CHOOSE("s13", "s5") POLICY_CHOOSE("s14", "s6") POLICY_CHOOSE("s15", "s7")
            POLICY_4("vdiv.f32", 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10, 11)
            POLICY_4("vadd.f32", 4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15)
            POLICY_SIGN("s0", "s4") POLICY_SIGN("s1", "s5") POLICY_SIGN("s2", "s6") POLICY_SIGN("s3", "s7")
            "vstmia %[y]!, {s4-s7}\n\tsubs %[turns], %[turns], #1\n\tbne 1b"
            : [x] "+r"(x), [y] "+r"(y), [turns] "+r"(turns), [i] "=&r"(i), [j] "=&r"(j)
            : [c] "r"(policy_tanh_constants)
            : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13",
              "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27");
#endif
#pragma GCC unroll 1
    for (int k = 0; k < count; ++k) y[k] = policy_tanh(x[k]);
}

#if defined(POLICY_CORTEX_M4F)
/* Four inputs times eight (four) weights each are added up in s16-s23 (s16-s19), then to s0-s7 (s0-s3): it rounds less
 * than one long sum. Multiply and add apart: 2 cycles, vfma takes 3. Between a product and its use stand eight (four)
 * instructions, so nothing stalls. */
#define POLICY_TIMES4(a, b, c, d, x) \
    "vmul.f32 s" #a ", s" #a ", " x "\n\tvmul.f32 s" #b ", s" #b ", " x "\n\t" \
    "vmul.f32 s" #c ", s" #c ", " x "\n\tvmul.f32 s" #d ", s" #d ", " x "\n\t"
#define POLICY_ADD4(k, l, m, n, a, b, c, d) POLICY_4("vadd.f32", k, l, m, n, k, l, m, n, a, b, c, d)
#define POLICY_FIRST8(x) POLICY_TIMES4(16, 17, 18, 19, x) POLICY_TIMES4(20, 21, 22, 23, x)
#define POLICY_NEXT8(x) \
    POLICY_TIMES4(24, 25, 26, 27, x) POLICY_TIMES4(28, 29, 30, 31, x) \
    POLICY_ADD4(16, 17, 18, 19, 24, 25, 26, 27) POLICY_ADD4(20, 21, 22, 23, 28, 29, 30, 31)
#define POLICY_TOTAL8 POLICY_ADD4(0, 1, 2, 3, 16, 17, 18, 19) POLICY_ADD4(4, 5, 6, 7, 20, 21, 22, 23)
#define POLICY_FIRST4(x) POLICY_TIMES4(16, 17, 18, 19, x)
#define POLICY_NEXT4(x) POLICY_TIMES4(24, 25, 26, 27, x) POLICY_ADD4(16, 17, 18, 19, 24, 25, 26, 27)
#define POLICY_TOTAL4 POLICY_ADD4(0, 1, 2, 3, 16, 17, 18, 19)
/* How weights come into registers: as they are, or stored as float16, two to a word, and converted. */
#define POLICY_FLOATS(first, last) "vldmia %[w]!, {s" #first "-s" #last "}\n\t"
#define POLICY_PAIR(a, b, word) "vcvtb.f32.f16 s" #a ", s" #word "\n\tvcvtt.f32.f16 s" #b ", s" #word "\n\t"
#define POLICY_HALVES8(a, b, c, d, e, f, g, h) \
    POLICY_FLOATS(e, h) POLICY_PAIR(a, b, e) POLICY_PAIR(c, d, f) POLICY_PAIR(e, f, g) POLICY_PAIR(g, h, h)
#define POLICY_HALVES4(a, b, c, d) POLICY_FLOATS(c, d) POLICY_PAIR(a, b, c) POLICY_PAIR(c, d, d)
/* A block: biases, then four inputs per turn, then the rest. */
#define POLICY_RUN_BLOCK(registers, bias, load, another, first, next, total) \
    __asm__ volatile( \
        bias "lsrs %[turns], %[inputs], #2\n\tbeq 2f\n" \
        "1:\n\tvldmia %[x]!, {s8-s11}\n\t" \
        load first("s8") another next("s9") another next("s10") another next("s11") total \
        "subs %[turns], %[turns], #1\n\tbne 1b\n" \
        "2:\n\tands %[turns], %[inputs], #3\n\tbeq 4f\n" \
        "3:\n\tvldmia %[x]!, {s8}\n\t" load first("s8") total "subs %[turns], %[turns], #1\n\tbne 3b\n" \
        "4:\n\tvstmia %[y]!, {" registers "}\n\t" \
        : [w] "+r"(w), [x] "+r"(from), [y] "+r"(y), [turns] "=&r"(turns) \
        : [inputs] "r"(inputs) \
        : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s16", "s17", \
          "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28", "s29", "s30", "s31")
#define POLICY_RUN8(bias, load, another) \
    POLICY_RUN_BLOCK("s0-s7", bias, load, another, POLICY_FIRST8, POLICY_NEXT8, POLICY_TOTAL8)
#define POLICY_RUN4(bias, load, another) \
    POLICY_RUN_BLOCK("s0-s3", bias, load, another, POLICY_FIRST4, POLICY_NEXT4, POLICY_TOTAL4)
#else
/* The float16 in the lower half of a word; not for infinities. */
static POLICY_INLINE float policy_half(uint32_t half) {
    policy_word y = {0.0f};
    y.bits = (half & 0x7fffu) << 13;
    y.number *= 5.192296858534828e33f; /* 2^112: the difference of the exponents' offsets; right for subnormals too */
    y.bits |= (half & 0x8000u) << 16;
    return y.number;
}

static POLICY_INLINE float policy_weight(const void *w, int halves, int at) {
    return halves ? policy_half(((const uint32_t *)w)[at / 2] >> 16 * (at & 1)) : ((const float *)w)[at];
}

static POLICY_INLINE void policy_dense_plain(float *y, const void *w, int halves, const float *x, int inputs,
                                             int eights, int fours) {
    for (int block = 0, at = 0; block < eights + fours; ++block) {
        const int width = block < eights ? 8 : 4;
        for (int k = 0; k < width; ++k) y[k] = policy_weight(w, halves, at++);
        for (int i = 0, count; i < inputs; i += count, at += count * width) {
            count = inputs - i < 4 ? 1 : 4;
            for (int k = 0; k < width; ++k) {
                float sum = policy_weight(w, halves, at + k) * x[i];
                for (int j = 1; j < count; ++j) sum += policy_weight(w, halves, at + j * width + k) * x[i + j];
                y[k] += sum;
            }
        }
        y += width;
    }
}
#endif

/* y = W x + b in blocks of eight outputs, and at the end perhaps four. w holds, block after block, the biases and then
 * per input the block's weights; y has room for whole blocks. */
static POLICY_NOINLINE void policy_dense(float *y, const float *w, const float *x, int inputs, int eights, int fours) {
#if defined(POLICY_CORTEX_M4F)
    int turns;
#pragma GCC unroll 1
    for (int block = 0; block < eights; ++block) {
        const float *from = x;
        POLICY_RUN8(POLICY_FLOATS(0, 7), POLICY_FLOATS(16, 23), POLICY_FLOATS(24, 31));
    }
    if (fours) {
        const float *from = x;
        POLICY_RUN4(POLICY_FLOATS(0, 3), POLICY_FLOATS(16, 19), POLICY_FLOATS(24, 27));
    }
#else
    policy_dense_plain(y, w, 0, x, inputs, eights, fours);
#endif
}

/* policy_dense with the biases and weights as float16, two to a word, the first in the lower half. */
static POLICY_NOINLINE void policy_dense_half(float *y, const uint32_t *w, const float *x, int inputs, int eights,
                                              int fours) {
#if defined(POLICY_CORTEX_M4F)
    int turns;
#pragma GCC unroll 1
    for (int block = 0; block < eights; ++block) {
        const float *from = x;
        POLICY_RUN8(POLICY_HALVES8(0, 1, 2, 3, 4, 5, 6, 7), POLICY_HALVES8(16, 17, 18, 19, 20, 21, 22, 23),
                    POLICY_HALVES8(24, 25, 26, 27, 28, 29, 30, 31));
    }
    if (fours) {
        const float *from = x;
        POLICY_RUN4(POLICY_HALVES4(0, 1, 2, 3), POLICY_HALVES4(16, 17, 18, 19), POLICY_HALVES4(24, 25, 26, 27));
    }
#else
    policy_dense_plain(y, w, 1, x, inputs, eights, fours);
#endif
}

/* Bytes 0 and 2 of a word as two signed halves; bytes 1 and 3; the sum of two products of halves. */
static POLICY_INLINE uint32_t policy_even(uint32_t w) {
#if defined(POLICY_DSP)
    uint32_t y;
    __asm__("sxtb16 %0, %1" : "=r"(y) : "r"(w));
    return y;
#else
    return (uint32_t)(uint16_t)(int8_t)w | (uint32_t)(uint16_t)(int8_t)(w >> 16) << 16;
#endif
}

static POLICY_INLINE uint32_t policy_odd(uint32_t w) {
#if defined(POLICY_DSP)
    uint32_t y;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(y) : "r"(w));
    return y;
#else
    return policy_even(w >> 8);
#endif
}

static POLICY_INLINE int32_t policy_multiply(uint32_t a, uint32_t b, int32_t sum) {
#if defined(POLICY_DSP)
    int32_t y;
    __asm__("smlad %0, %1, %2, %3" : "=r"(y) : "r"(a), "r"(b), "r"(sum));
    return y;
#else
    return sum + (int16_t)a * (int16_t)b + (int16_t)(a >> 16) * (int16_t)(b >> 16);
#endif
}

/* Two numbers below 2^15, rounded, in a word. */
static POLICY_INLINE uint32_t policy_halves(float low, float high) {
    const policy_word a = {low + POLICY_ROUND}, b = {high + POLICY_ROUND};
    return (a.bits & 0xffffu) | b.bits << 16;
}

/* The largest size of x's elements, at least 1e-30. */
static POLICY_INLINE float policy_most(const float *x, int inputs) {
    policy_word most = {1e-30f};
    for (int i = 0; i < inputs; ++i) {
        const policy_word word = {x[i]};
        const uint32_t size = word.bits & 0x7fffffffu;
        most.bits = size > most.bits ? size : most.bits;
    }
    return most.number;
}

/* x as whole numbers up to `limit`, below 2^15, times the result. Four are two words, x0 and x2, x1 and x3; padded with
 * zeros. */
static POLICY_NOINLINE float policy_rounded(uint32_t *rounded, const float *x, int inputs, float limit) {
    const float most = policy_most(x, inputs), inverse = limit / most;
    for (int i = 0; i < inputs; i += 4, rounded += 2) {
        const float b = i + 1 < inputs ? x[i + 1] : 0.0f, c = i + 2 < inputs ? x[i + 2] : 0.0f;
        const float d = i + 3 < inputs ? x[i + 3] : 0.0f;
        rounded[0] = policy_halves(x[i] * inverse, c * inverse);
        rounded[1] = policy_halves(b * inverse, d * inverse);
    }
    return most / limit;
}

/* 127 * 2^23 tanh(x): straight lines, at most 2.5e-4 from tanh. `table` has a word per sixteenth of x in
 * [-8, 8): the slope in the lower half, minus the value in the upper, so that slope * at + value is one instruction. */
static POLICY_INLINE int32_t policy_tanh_whole(float x, const uint32_t *table) {
    const policy_word word = {x};
    const uint32_t size = word.bits & 0x7fffffffu; /* no compiler option takes NaN out of bits, and indexes outside */
    const int32_t at = size < 0x41000000u   ? (int32_t)(x * 65536.0f) /* below 8 */
                       : size > 0x7f800000u ? 0
                       : word.bits == size  ? 524287
                                            : -524288;
    return policy_multiply(table[128 + (at >> 12)], 0x80000000u | (at & 0xfff), 0);
}

#if defined(POLICY_CORTEX_M4F) && defined(POLICY_DSP)
/* One of them, times `factor` and rounded. `r` has 2^16 x, saturated where that was too large for an int32; NaN became
 * 0. */
#define POLICY_TANH_ONE(r) \
    "ssat " r ", #20, " r "\n\tasr r6, " r ", #12\n\tldr r6, [%[table], r6, lsl #2]\n\tbfi %[at], " r ", #0, #12\n\t" \
    "smuad " r ", r6, %[at]\n\tsmmla " r ", " r ", %[factor], %[half]\n\t"
#endif

/* tanh(x) of 4 `quads` numbers as whole numbers in the order of policy_rounded; factor: 2^32 / 16256 times what stands
 * for 1. */
static POLICY_NOINLINE void policy_tanh_rounded(uint32_t *rounded, const float *x, int quads, const uint32_t *table,
                                                int32_t factor) {
    const int32_t half = 1 << 15;
#if defined(POLICY_CORTEX_M4F) && defined(POLICY_DSP)
    uint32_t at = 0x80000000u;
    table += 128;
    __asm__ volatile(
        "1:\n\tvldmia %[x]!, {s0-s3}\n\tvcvt.s32.f32 s0, s0, #16\n\tvcvt.s32.f32 s1, s1, #16\n\t"
        "vcvt.s32.f32 s2, s2, #16\n\tvcvt.s32.f32 s3, s3, #16\n\t"
        "vmov r2, s0\n\tvmov r3, s1\n\tvmov r4, s2\n\tvmov r5, s3\n\t"
        POLICY_TANH_ONE("r2") POLICY_TANH_ONE("r3") POLICY_TANH_ONE("r4") POLICY_TANH_ONE("r5")
        "pkhtb r4, r4, r2, asr #16\n\tpkhtb r5, r5, r3, asr #16\n\t"
        "strd r4, r5, [%[y]], #8\n\tsubs %[quads], %[quads], #1\n\tbne 1b"
        : [x] "+r"(x), [y] "+r"(rounded), [quads] "+r"(quads), [at] "+r"(at)
        : [table] "r"(table), [factor] "r"(factor), [half] "r"(half)
        : "cc", "memory", "r2", "r3", "r4", "r5", "r6", "s0", "s1", "s2", "s3");
#else
    for (int quad = 0; quad < quads; ++quad, x += 4) {
        uint32_t y[4];
        for (int k = 0; k < 4; ++k)
            y[k] = (uint32_t)((int32_t)((int64_t)policy_tanh_whole(x[k], table) * factor >> 32) + half);
        *rounded++ = y[0] >> 16 | (y[2] & 0xffff0000u);
        *rounded++ = y[1] >> 16 | (y[3] & 0xffff0000u);
    }
#endif
}

#if defined(POLICY_DSP)
/* Four inputs, in r2 and r3, times two outputs, times two: each byte of a word is taken out of it. */
#define POLICY_TWO_BYTES(a, b) \
    "ldmia %[w]!, {r4, r5}\n\tsxtb16 r6, r4\n\tsxtb16 r8, r5\n\tsmlad %[" a "], r6, r2, %[" a "]\n\t" \
    "smlad %[" b "], r8, r2, %[" b "]\n\tsxtb16 r4, r4, ror #8\n\tsxtb16 r5, r5, ror #8\n\t" \
    "smlad %[" a "], r4, r3, %[" a "]\n\tsmlad %[" b "], r5, r3, %[" b "]\n\t"
#define POLICY_FOUR_BYTES "ldmia %[x]!, {r2, r3}\n\t" POLICY_TWO_BYTES("a", "b") POLICY_TWO_BYTES("c", "d")
#define POLICY_RUN_SUMS(text, times) \
    if ((turns = (times)) != 0) \
    __asm__ volatile( \
        "1:\n\t" text "subs %[turns], %[turns], #1\n\tbne 1b" \
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d), [w] "+r"(w), [x] "+r"(from), [turns] "+r"(turns) \
        : \
        : "cc", "memory", "r2", "r3", "r4", "r5", "r6", "r8")
#endif

/* Of four outputs: y = `bias` + factor * scale * sum. */
static POLICY_INLINE void policy_outputs(float *y, const void *bias, const void *factor, float scale, int32_t a,
                                         int32_t b, int32_t c, int32_t d) {
#if defined(POLICY_CORTEX_M4F)
    __asm__ volatile(
        "vldmia %[factor], {s20-s23}\n\tvldmia %[bias], {s16-s19}\n\t"
        "vmov s24, %[a]\n\tvmov s25, %[b]\n\tvmov s26, %[c]\n\tvmov s27, %[d]\n\t"
        "vmul.f32 s20, s20, %[scale]\n\tvmul.f32 s21, s21, %[scale]\n\t"
        "vmul.f32 s22, s22, %[scale]\n\tvmul.f32 s23, s23, %[scale]\n\t"
        "vcvt.f32.s32 s24, s24\n\tvcvt.f32.s32 s25, s25\n\tvcvt.f32.s32 s26, s26\n\tvcvt.f32.s32 s27, s27\n\t"
        POLICY_4("vmul.f32", 20, 21, 22, 23, 20, 21, 22, 23, 24, 25, 26, 27)
        POLICY_4("vadd.f32", 16, 17, 18, 19, 16, 17, 18, 19, 20, 21, 22, 23)
        "vstmia %[y], {s16-s19}"
        :
        : [factor] "r"(factor), [bias] "r"(bias), [y] "r"(y), [scale] "t"(scale), [a] "r"(a), [b] "r"(b), [c] "r"(c),
          [d] "r"(d)
        : "memory", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27");
#else
    const policy_word *biases = (const policy_word *)bias, *factors = (const policy_word *)factor;
    const int32_t sum[4] = {a, b, c, d};
    for (int k = 0; k < 4; ++k) y[k] = biases[k].number + factors[k].number * scale * (float)sum[k];
#endif
}

/* y = W x + b with weights as int8 and a scale per output, and rounded inputs with theirs. Per four outputs w holds
 * their biases, their scales, then per four inputs a word for each output. Sums are exact. */
static POLICY_NOINLINE void policy_dense_int8(float *y, const uint32_t *w, const uint32_t *rounded, int inputs,
                                              int quads, float scale) {
    const int groups = (inputs + 3) >> 2;
    for (int block = 0; block < quads; ++block, y += 4) {
        const uint32_t *head = w, *from = rounded;
        int32_t a = 0, b = 0, c = 0, d = 0;
        w += 8;
#if defined(POLICY_DSP)
        int turns;
        POLICY_RUN_SUMS(POLICY_FOUR_BYTES POLICY_FOUR_BYTES, groups >> 1);
        POLICY_RUN_SUMS(POLICY_FOUR_BYTES, groups & 1);
#else
        for (int group = 0; group < groups; ++group, w += 4, from += 2) {
            a = policy_multiply(policy_odd(w[0]), from[1], policy_multiply(policy_even(w[0]), from[0], a));
            b = policy_multiply(policy_odd(w[1]), from[1], policy_multiply(policy_even(w[1]), from[0], b));
            c = policy_multiply(policy_odd(w[2]), from[1], policy_multiply(policy_even(w[2]), from[0], c));
            d = policy_multiply(policy_odd(w[3]), from[1], policy_multiply(policy_even(w[3]), from[0], d));
        }
#endif
        policy_outputs(y, head, head + 4, scale, a, b, c, d);
    }
}

#if defined(POLICY_CORTEX_M4F) && defined(POLICY_DSP)
/* Four inputs times two outputs, times eight: the inputs in r2 and r3, sums in r4-r11. */
#define POLICY_TWO(a, b) \
    "ldmia r0!, {r12, lr}\n\tsmlad " a ", r12, r3, " a "\n\tsmlad " b ", lr, r3, " b "\n\t" \
    "lsl r12, r12, #8\n\tlsl lr, lr, #8\n\tsmlad " a ", r12, r2, " a "\n\tsmlad " b ", lr, r2, " b "\n\t"
#define POLICY_EIGHT \
    "ldmia r1!, {r2, r3}\n\t" POLICY_TWO("r4", "r5") POLICY_TWO("r6", "r7") POLICY_TWO("r8", "r9") \
        POLICY_TWO("r10", "r11")
#define POLICY_UNTIL(end, text) \
    "vmov r2, " end "\n\tcmp r1, r2\n\tbeq 3f\n2:\n\t" text "vmov r2, " end "\n\tcmp r1, r2\n\tbne 2b\n3:\n\t"
#endif

/* The same where three instructions make four products: a word is two halves, whose upper bytes are the weights of
 * inputs 1 and 3, and after a shift by eight bits those of 0 and 2. The byte below a weight adds a part of a step to
 * it, and the weight was rounded knowing that. Per eight outputs w holds their biases, their scales / 256, then per
 * four inputs a word for each output. Inputs are small enough for sums of 32 bits, which are exact. */
static POLICY_NOINLINE void policy_dense_w8a8(float *y, const uint32_t *w, const uint32_t *rounded, int inputs,
                                              int blocks, float scale) {
    const uint32_t *end = rounded + 2 * ((inputs + 3) >> 2);
#if defined(POLICY_CORTEX_M4F) && defined(POLICY_DSP)
    /* All registers but the stack's. s0-s7: biases, then results, s8-s15: factors, s16-s23: sums, s24: scale, s25: y,
     * s26: the inputs, s27: the end of those that come four times four at a time, s28: of all, s29: blocks. */
    const uint32_t *whole = rounded + (inputs >> 4 << 3);
    __asm__ volatile(
        "push {r4-r11, lr}\n\tvmov.f32 s24, %[scale]\n\tvmov s25, %[y]\n\tvmov s26, %[x]\n\tvmov s27, %[whole]\n\t"
        "vmov s28, %[end]\n\tvmov s29, %[blocks]\n\tmov r0, %[w]\n"
        "1:\n\tvldmia r0!, {s0-s15}\n\tvmov r1, s26\n\t"
        "mov r4, #0\n\tmov r5, #0\n\tmov r6, #0\n\tmov r7, #0\n\t"
        "mov r8, #0\n\tmov r9, #0\n\tmov r10, #0\n\tmov r11, #0\n\t"
        POLICY_UNTIL("s27", POLICY_EIGHT POLICY_EIGHT POLICY_EIGHT POLICY_EIGHT) POLICY_UNTIL("s28", POLICY_EIGHT)
        "vmov s16, r4\n\tvmov s17, r5\n\tvmov s18, r6\n\tvmov s19, r7\n\t"
        "vmov s20, r8\n\tvmov s21, r9\n\tvmov s22, r10\n\tvmov s23, r11\n\t"
        "vcvt.f32.s32 s16, s16\n\tvcvt.f32.s32 s17, s17\n\tvcvt.f32.s32 s18, s18\n\tvcvt.f32.s32 s19, s19\n\t"
        "vcvt.f32.s32 s20, s20\n\tvcvt.f32.s32 s21, s21\n\tvcvt.f32.s32 s22, s22\n\tvcvt.f32.s32 s23, s23\n\t"
        POLICY_4("vmul.f32", 8, 9, 10, 11, 8, 9, 10, 11, 24, 24, 24, 24)
        POLICY_4("vmul.f32", 12, 13, 14, 15, 12, 13, 14, 15, 24, 24, 24, 24)
        POLICY_4("vmul.f32", 16, 17, 18, 19, 8, 9, 10, 11, 16, 17, 18, 19)
        POLICY_4("vmul.f32", 20, 21, 22, 23, 12, 13, 14, 15, 20, 21, 22, 23)
        POLICY_4("vadd.f32", 0, 1, 2, 3, 0, 1, 2, 3, 16, 17, 18, 19)
        POLICY_4("vadd.f32", 4, 5, 6, 7, 4, 5, 6, 7, 20, 21, 22, 23)
        "vmov r2, s25\n\tvstmia r2!, {s0-s7}\n\tvmov s25, r2\n\t"
        "vmov r2, s29\n\tsubs r2, r2, #1\n\tvmov s29, r2\n\tbne 1b\n\tpop {r4-r11, lr}"
        :
        : [y] "r"(y), [w] "r"(w), [x] "r"(rounded), [whole] "r"(whole), [end] "r"(end), [blocks] "r"(blocks),
          [scale] "t"(scale)
        : "cc", "memory", "r0", "r1", "r2", "r3", "r12", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9",
          "s10", "s11", "s12", "s13", "s14", "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24",
          "s25", "s26", "s27", "s28", "s29");
#else
    for (int block = 0; block < blocks; ++block, y += 8) {
        const policy_word *head = (const policy_word *)w;
        int32_t sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        w += 16;
        for (const uint32_t *x = rounded; x < end; x += 2, w += 8)
            for (int k = 0; k < 8; ++k)
                sum[k] = policy_multiply(w[k] << 8, x[0], policy_multiply(w[k], x[1], sum[k]));
        for (int k = 0; k < 8; ++k) y[k] = head[k].number + head[8 + k].number * scale * (float)sum[k];
    }
#endif
}

#endif
