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
#else
    policy_word y = {x};
    y.bits = (y.bits >> 1) + 0x1fc00000u; /* half the exponent */
    for (int i = 0; i < 4; ++i) y.number = 0.5f * (y.number + x / y.number);
    return x == 0.0f ? 0.0f : y.number;
#endif
}

/* Several numbers at once, step by step: an instruction never waits for the one before it. */
#define POLICY_LANES 2
#define POLICY_EACH for (int k = 0; k < n; ++k)

/* y[k] = 2^t[k] for t in [-126, 126], relative error 1.6e-7: a minimax polynomial on [-1/2, 1/2], the exponent by
 * addition. n is a constant of at most POLICY_LANES; y may not be t. */
static POLICY_INLINE void policy_exp2(float *y, const float *t, int n) {
    policy_word shifted[POLICY_LANES], power[POLICY_LANES];
    float r[POLICY_LANES];
    POLICY_EACH shifted[k].number = t[k] + 12582912.0f; /* 1.5 * 2^23: its last bits are t, rounded */
    POLICY_EACH r[k] = shifted[k].number - 12582912.0f;
    POLICY_EACH r[k] = t[k] - r[k];
    POLICY_EACH power[k].number = 0.0013264727f * r[k];
    POLICY_EACH power[k].number = power[k].number + 0.009671513f;
    POLICY_EACH power[k].number = power[k].number * r[k];
    POLICY_EACH power[k].number = power[k].number + 0.055507336f;
    POLICY_EACH power[k].number = power[k].number * r[k];
    POLICY_EACH power[k].number = power[k].number + 0.24022242f;
    POLICY_EACH power[k].number = power[k].number * r[k];
    POLICY_EACH power[k].number = power[k].number + 0.693147f;
    POLICY_EACH power[k].number = power[k].number * r[k];
    POLICY_EACH power[k].number = power[k].number + 1.0f;
    POLICY_EACH power[k].bits += shifted[k].bits << 23;
    POLICY_EACH y[k] = power[k].number;
}

/* e^x, limited to x in [-87, 87]. */
static POLICY_UNUSED float policy_exp(float x) {
    float y;
    x = x > 87.0f ? 87.0f : x;
    x = x < -87.0f ? -87.0f : x;
    x *= 1.44269504f;
    policy_exp2(&y, &x, 1);
    return y;
}

static POLICY_INLINE void policy_tanh_lanes(float *y, const float *x, int n) {
    policy_word result[POLICY_LANES];
    float t[POLICY_LANES], e[POLICY_LANES];
    POLICY_EACH t[k] = x[k] < 0.0f ? -x[k] : x[k];
    POLICY_EACH t[k] = t[k] > 20.0f ? 20.0f : t[k];
    POLICY_EACH t[k] *= -2.88539008f;
    policy_exp2(e, t, n);
    POLICY_EACH t[k] = 1.0f - e[k];
    POLICY_EACH e[k] = 1.0f + e[k];
    POLICY_EACH result[k].number = t[k] / e[k];
    POLICY_EACH {
        const policy_word from = {x[k]};
        result[k].bits |= from.bits & 0x80000000u;
    }
    POLICY_EACH y[k] = result[k].number;
}

/* tanh(x), absolute error below 1.4e-7, odd, exactly 1 for large x; NaN stays NaN. */
static POLICY_INLINE float policy_tanh(float x) {
    float y;
    policy_tanh_lanes(&y, &x, 1);
    return y;
}

/* y = tanh(x); y may be x. */
static POLICY_NOINLINE void policy_tanh_all(float *y, const float *x, int count) {
    int i = 0;
#pragma GCC unroll 1
    for (; i + POLICY_LANES <= count; i += POLICY_LANES) policy_tanh_lanes(y + i, x + i, POLICY_LANES);
#pragma GCC unroll 1
    for (; i < count; ++i) y[i] = policy_tanh(x[i]);
}

/* 1 / (1 + e^-x), absolute error below 1.3e-7. */
static POLICY_INLINE float policy_sigmoid(float x) { return 0.5f * policy_tanh(0.5f * x) + 0.5f; }

#if defined(POLICY_CORTEX_M4F)
/* One input times eight (four) weights, added to s0-s7 (s0-s3). Multiply and add apart: 2 cycles, vfma takes 3. The
 * products are eight (four) instructions away from their use, so nothing stalls. */
#define POLICY_MULTIPLY4(a, b, c, d, x) \
    "vmul.f32 s" #a ", s" #a ", " x "\n\tvmul.f32 s" #b ", s" #b ", " x "\n\t" \
    "vmul.f32 s" #c ", s" #c ", " x "\n\tvmul.f32 s" #d ", s" #d ", " x "\n\t"
#define POLICY_ADD4(a, b, c, d, k, l, m, n) \
    "vadd.f32 s" #k ", s" #k ", s" #a "\n\tvadd.f32 s" #l ", s" #l ", s" #b "\n\t" \
    "vadd.f32 s" #m ", s" #m ", s" #c "\n\tvadd.f32 s" #n ", s" #n ", s" #d "\n\t"
#define POLICY_INPUT8(x) \
    "vldmia %[w]!, {s16-s23}\n\t" POLICY_MULTIPLY4(16, 17, 18, 19, x) POLICY_MULTIPLY4(20, 21, 22, 23, x) \
    POLICY_ADD4(16, 17, 18, 19, 0, 1, 2, 3) POLICY_ADD4(20, 21, 22, 23, 4, 5, 6, 7)
#define POLICY_INPUT4(x) \
    "vldmia %[w]!, {s16-s19}\n\t" POLICY_MULTIPLY4(16, 17, 18, 19, x) POLICY_ADD4(16, 17, 18, 19, 0, 1, 2, 3)
/* A block: biases, then four inputs per turn, then the rest. */
#define POLICY_BLOCK(registers, input) \
    "vldmia %[w]!, {" registers "}\n\t" \
    "lsrs %[turns], %[inputs], #2\n\tbeq 2f\n" \
    "1:\n\tvldmia %[x]!, {s8-s11}\n\t" input("s8") input("s9") input("s10") input("s11") \
    "subs %[turns], %[turns], #1\n\tbne 1b\n" \
    "2:\n\tands %[turns], %[inputs], #3\n\tbeq 4f\n" \
    "3:\n\tvldmia %[x]!, {s8}\n\t" input("s8") "subs %[turns], %[turns], #1\n\tbne 3b\n" \
    "4:\n\tvstmia %[y]!, {" registers "}\n\t"
#define POLICY_RUN_BLOCK(registers, input) \
    __asm__ volatile(POLICY_BLOCK(registers, input) \
        : [w] "+r"(w), [x] "+r"(from), [y] "+r"(y), [turns] "=&r"(turns) \
        : [inputs] "r"(inputs) \
        : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s16", "s17", \
          "s18", "s19", "s20", "s21", "s22", "s23")
#endif

/* y = W x + b in blocks of eight outputs, and at the end perhaps four. w holds, block after block, the biases and then
 * per input the block's weights; y has room for whole blocks. */
static POLICY_NOINLINE void policy_dense(float *y, const float *w, const float *x, int inputs, int eights, int fours) {
#if defined(POLICY_CORTEX_M4F)
    int turns;
#pragma GCC unroll 1
    for (int block = 0; block < eights; ++block) {
        const float *from = x;
        POLICY_RUN_BLOCK("s0-s7", POLICY_INPUT8);
    }
    if (fours) {
        const float *from = x;
        POLICY_RUN_BLOCK("s0-s3", POLICY_INPUT4);
    }
#else
    for (int block = 0; block < eights + fours; ++block) {
        const int width = block < eights ? 8 : 4;
        for (int k = 0; k < width; ++k) y[k] = w[k];
        w += width;
        for (int i = 0; i < inputs; ++i, w += width)
            for (int k = 0; k < width; ++k) y[k] += w[k] * x[i];
        y += width;
    }
#endif
}

#endif
