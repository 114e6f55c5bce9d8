/* The rarer functions that generated policies need, beside policy_math.h: as exact as that, infinities and NaN as in C.
 * Only policies that call one of them include this.
 */
#ifndef POLICY_FUNCTIONS_H
#define POLICY_FUNCTIONS_H

#include "policy_math.h"

#if defined(__GNUC__)
#define POLICY_INFINITY __builtin_inff()
#define POLICY_NAN __builtin_nanf("")
#else
#define POLICY_INFINITY (1.0f / 0.0f)
#define POLICY_NAN (0.0f / 0.0f)
#endif
#define POLICY_WHOLE 8388608.0f /* 2^23: from here on every float is a whole number */
#define POLICY_HALF_PI 1.57079637f
#define POLICY_LN2 0.693147182f
#define POLICY_ATAN(z) \
    ((((-0.0645958101f * (z) + 0.10746382f) * (z) - 0.142642439f) * (z) + 0.199995506f) * (z) - 0.333333318f)

static POLICY_UNUSED float policy_size(float x) {
    policy_word word = {x};
    word.bits &= 0x7fffffffu;
    return word.number;
}

static POLICY_UNUSED float policy_nan(float x) {
    const policy_word word = {x};
    return (word.bits & 0x7fffffffu) > 0x7f800000u ? 1.0f : 0.0f;
}

static POLICY_UNUSED float policy_infinite(float x, int negative, int positive) {
    const policy_word word = {x};
    return (positive && word.bits == 0x7f800000u) || (negative && word.bits == 0xff800000u) ? 1.0f : 0.0f;
}

static POLICY_UNUSED float policy_towards_zero(float x) {
    return policy_size(x) < POLICY_WHOLE ? (float)(int32_t)x : x;
}

static POLICY_UNUSED float policy_floor(float x) {
    const float y = policy_towards_zero(x);
    return y > x ? y - 1.0f : y;
}

/* A place among n from an index that may count from the end; -1: there is none. */
static POLICY_UNUSED int policy_index(float x, int n) {
    x = x < 0.0f ? x + (float)n : x;
    return x >= 0.0f && x < (float)n ? (int)x : -1;
}

/* The nearest whole number, of two equally near ones the even one. */
static POLICY_UNUSED float policy_nearest(float x) {
    const float a = policy_size(x), y = a + POLICY_WHOLE - POLICY_WHOLE;
    return !(a < POLICY_WHOLE) ? x : x < 0.0f ? -y : y;
}

/* The rest of a division towards zero (`c`: with x's sign, as in C) or downwards (with y's sign); exact. */
static POLICY_UNUSED float policy_mod(float x, float y, int c) {
    const float d = policy_size(y);
    float r = policy_size(x), s = d;
    if (!(d > 0.0f) || !(r < POLICY_INFINITY)) return POLICY_NAN;
    if (d < POLICY_INFINITY) {
        while (s <= 0.5f * r) s *= 2.0f;
        for (; s >= d && s > 0.0f; s *= 0.5f) r -= r >= s ? s : 0.0f;
    }
    r = x < 0.0f ? -r : r;
    return !c && r != 0.0f && (r < 0.0f) != (y < 0.0f) ? r + y : r;
}

/* e^x, infinite where that is too large; as far as policy_exp goes the same. */
static POLICY_UNUSED float policy_exponential(float x) {
    const float half = policy_exp(0.5f * x);
    return policy_size(x) <= 87.0f ? policy_exp(x) : half * half;
}

/* x > 0 is 2^exponent times the result, which is within [sqrt(1/2), sqrt(2)). */
static POLICY_UNUSED float policy_mantissa(float x, float *exponent) {
    policy_word word = {x};
    int32_t e = 0;
    if (x < 1.17549435e-38f) {
        word.number = x * POLICY_WHOLE;
        e = -23;
    }
    const int32_t bits = (int32_t)(word.bits - 0x3f3504f3u);
    word.bits = ((uint32_t)bits & 0x007fffffu) + 0x3f3504f3u;
    *exponent = (float)(e + (bits >> 23));
    return word.number;
}

/* The logarithm of a mantissa: 2 artanh((m - 1) / (m + 1)) as its series. */
static POLICY_UNUSED float policy_log_mantissa(float m) {
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    return 2.0f * s + s * z * (((0.222222222f * z + 0.285714286f) * z + 0.4f) * z + 0.666666667f);
}

static POLICY_UNUSED float policy_log(float x) {
    float exponent;
    if (!(x > 0.0f)) return x == 0.0f ? -POLICY_INFINITY : POLICY_NAN;
    if (!(x < POLICY_INFINITY)) return x;
    const float m = policy_log_mantissa(policy_mantissa(x, &exponent));
    return exponent * 0.693359375f + (m + exponent * -2.12194440e-4f); /* ln 2 in two parts, the first exact */
}

/* log(1 + x), exact where x is small. */
static POLICY_UNUSED float policy_log1p(float x) {
    const float y = 1.0f + x;
    return y > 1e30f || !(y > 0.0f) ? policy_log(y) : policy_log(y) + (x - (y - 1.0f)) / y;
}

/* log(1 + e^x). */
static POLICY_UNUSED float policy_softplus(float x) {
    return (x < 0.0f ? 0.0f : x) + policy_log1p(policy_exp(-policy_size(x)));
}

/* x^y: 2^(y log2 x), the product of y and the exponent in two parts; relative error below 4e-6, mostly 1e-7. */
static POLICY_UNUSED float policy_pow(float x, float y) {
    y = policy_clip(y, -1e30f, 1e30f);
    const int whole = y == policy_towards_zero(y), odd = whole && 0.5f * y != policy_towards_zero(0.5f * y);
    const float sign = x < 0.0f && odd ? -1.0f : 1.0f;
    float exponent;
    if (y == 0.0f || x == 1.0f) return 1.0f;
    if (policy_nan(x) > 0.0f || policy_nan(y) > 0.0f || (x < 0.0f && !whole && x > -POLICY_INFINITY)) return POLICY_NAN;
    if (x == 0.0f) return y > 0.0f ? (odd ? x : 0.0f) : POLICY_INFINITY;
    if (!(policy_size(x) < POLICY_INFINITY)) return y > 0.0f ? sign * POLICY_INFINITY : 0.0f;
    const float log2 = 1.44269504f * policy_log_mantissa(policy_mantissa(policy_size(x), &exponent));
    policy_word high = {y};
    high.bits &= 0xffff8000u; /* 9 bits: its product with the exponent is exact */
    const float most = high.number * exponent;
    if (!(policy_size(most) < 512.0f)) return most > 0.0f ? sign * POLICY_INFINITY : 0.0f;
    const float near = policy_nearest(most);
    const float t = near + ((most - near) + (y - high.number) * exponent + policy_clip(y * log2, -1024.0f, 1024.0f));
    if (t >= 128.0f) return sign * POLICY_INFINITY;
    if (t < -149.0f) return 0.0f;
    const float whole_power = policy_nearest(t), half = policy_towards_zero(0.5f * whole_power);
    const float rest = (near - whole_power) + ((most - near) + (y - high.number) * exponent + y * log2);
    return sign * policy_exp2(rest) * policy_exp2(half) * policy_exp2(whole_power - half);
}

/* sin(x + quarters pi / 2). x modulo pi / 2 is exact: whole numbers times as many bits of 2 / pi as matter. */
static POLICY_UNUSED float policy_turned(float x, uint32_t quarters) {
    static const uint32_t two_by_pi[8] = {0u,          0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                          0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    policy_word word = {x};
    float r = x;
    if (!(policy_size(x) < POLICY_INFINITY)) return POLICY_NAN;
    if (policy_size(x) > 0.785398185f) {
        const uint32_t m = (word.bits & 0x007fffffu) | 0x00800000u, from = (word.bits >> 23 & 0xffu) - 120u;
        uint32_t part[3];
        for (uint32_t k = 0; k < 3; ++k) {
            const uint32_t *at = two_by_pi + (from >> 5) + k;
            part[k] = at[0] << (from & 31u) | at[1] >> 1 >> (31u - (from & 31u));
        }
        uint64_t turns = ((uint64_t)(m * part[0]) << 32) + (uint64_t)m * part[1] + ((uint64_t)m * part[2] >> 32);
        const uint32_t quarter = (uint32_t)((turns + ((uint64_t)1 << 61)) >> 62);
        turns -= (uint64_t)quarter << 62; /* now a signed share of a quarter, in units of 2^-62 */
        r = (float)(int32_t)(uint32_t)(turns >> 32) * 9.31322575e-10f + (float)(uint32_t)turns * 2.16840434e-19f;
        r *= word.bits >> 31 ? -POLICY_HALF_PI : POLICY_HALF_PI;
        quarters += word.bits >> 31 ? 0u - quarter : quarter;
    }
    const float z = r * r;
    const float sine = r + r * z * (((2.75573192e-6f * z - 1.98412698e-4f) * z + 8.33333333e-3f) * z - 0.166666667f);
    const float cosine = 1.0f - 0.5f * z + z * z * ((2.48015873e-5f * z - 1.38888889e-3f) * z + 0.0416666667f);
    const float y = quarters & 1u ? cosine : sine;
    return quarters & 2u ? -y : y;
}

static POLICY_UNUSED float policy_sin(float x) { return policy_turned(x, 0u); }

static POLICY_UNUSED float policy_cos(float x) { return policy_turned(x, 1u); }

static POLICY_UNUSED float policy_tan(float x) { return policy_turned(x, 0u) / policy_turned(x, 1u); }

/* Turned by a quarter or an eighth to |x| < tan(pi / 8); there a fitted polynomial. */
static POLICY_UNUSED float policy_atan(float x) {
    const float a = policy_size(x);
    const float turned = a > 2.41421356f ? -1.0f / a : a > 0.414213562f ? (a - 1.0f) / (a + 1.0f) : a;
    const float base = a > 2.41421356f ? POLICY_HALF_PI : a > 0.414213562f ? 0.5f * POLICY_HALF_PI : 0.0f;
    const float z = turned * turned;
    const float y = base + (turned + turned * z * POLICY_ATAN(z));
    return x < 0.0f ? -y : y;
}

static POLICY_UNUSED float policy_asin(float x) { return policy_atan(x / policy_sqrt((1.0f - x) * (1.0f + x))); }

static POLICY_UNUSED float policy_acos(float x) { return 2.0f * policy_atan(policy_sqrt((1.0f - x) / (1.0f + x))); }

/* e^|x| / 2, which is finite for a little longer than e^|x|. */
static POLICY_UNUSED float policy_half_exponential(float x) {
    const float half = policy_exp(0.5f * policy_size(x));
    return 0.5f * half * half;
}

static POLICY_UNUSED float policy_sinh(float x) {
    const float z = x * x, e = policy_half_exponential(x), y = e - 0.25f / e;
    const float small = x + x * z * (((2.75573192e-6f * z + 1.98412698e-4f) * z + 8.33333333e-3f) * z + 0.166666667f);
    return policy_size(x) < 1.0f ? small : x < 0.0f ? -y : y;
}

static POLICY_UNUSED float policy_cosh(float x) {
    const float e = policy_half_exponential(x);
    return e + 0.25f / e;
}

static POLICY_UNUSED float policy_asinh(float x) {
    const float a = policy_size(x), z = a * a;
    const float y = a > 1e10f ? policy_log(a) + POLICY_LN2 : policy_log1p(a + z / (1.0f + policy_sqrt(1.0f + z)));
    return x < 0.0f ? -y : y;
}

static POLICY_UNUSED float policy_acosh(float x) {
    const float t = x - 1.0f;
    return x < 1.0f ? POLICY_NAN : x > 1e10f ? policy_log(x) + POLICY_LN2 : policy_log1p(t + policy_sqrt(2.0f * t + t * t));
}

static POLICY_UNUSED float policy_atanh(float x) {
    const float a = policy_size(x), y = 0.5f * policy_log1p(2.0f * a / (1.0f - a));
    return x < 0.0f ? -y : y;
}

static POLICY_UNUSED float policy_gelu(float x) { return 0.5f * x * (1.0f + policy_erf(0.707106781f * x)); }

static POLICY_UNUSED float policy_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + policy_tanh(0.797884561f * (x + 0.044715f * x * x * x)));
}

#endif
