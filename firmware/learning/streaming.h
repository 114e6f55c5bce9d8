/* Stream AC(lambda) with ObGD (Elsayed, Vasan and Mahmood 2024, arXiv 2410.14606): an actor and a critic that learn from
 * every step as it happens. policies/algorithms/streaming/stream_ac.py is the same in Python, and says it in words.
 *
 * One action; one hidden layer each, with a layer norm before its LeakyReLU; gradients by hand. No allocation, no libm;
 * the same bits on every machine (-ffp-contract=off). Define the STREAM_ names below before this is included.
 */
#ifndef STREAMING_H
#define STREAMING_H

#include <stdbool.h>
#include <stdint.h>

#include "policy_functions.h"

#define STREAM_LEAK 0.01f      /* slope of LeakyReLU below zero */
#define STREAM_SMALLEST 1e-5f  /* added to the variance in a layer norm */
#define STREAM_LEAST 1e-8f     /* added to running variances */

/* A perceptron with two outputs at most: what the critic does not need of it stays zero. */
typedef struct {
    float first[STREAM_HIDDEN][STREAM_OBSERVED], first_bias[STREAM_HIDDEN];
    float last[2][STREAM_HIDDEN], last_bias[2];
} stream_weights;

#define STREAM_WEIGHTS ((int)(sizeof(stream_weights) / sizeof(float)))

typedef struct {
    stream_weights weights, traces;
    float input[STREAM_OBSERVED], normal[STREAM_HIDDEN], hidden[STREAM_HIDDEN], inverse; /* of the last forward pass */
} stream_network;

typedef struct {
    float mean, sum; /* sum: of squared distances from the mean */
} stream_running;

typedef struct {
    stream_network actor, critic;
    stream_running seen[STREAM_OBSERVED], returns;
    float sum; /* of discounted rewards */
    uint32_t samples, rewards, updates, random;
} stream_learner;

/* Uniform in [0, 1), by xorshift32. */
static POLICY_UNUSED float stream_uniform(stream_learner *learner) {
    uint32_t x = learner->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    learner->random = x;
    return (float)(x >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
}

/* Nearly normal: twelve uniform numbers, within +-6. */
static POLICY_UNUSED float stream_normal(stream_learner *learner) {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += stream_uniform(learner);
    return sum;
}

/* Weights into one unit: uniform within +-1 / sqrt(count), but for a share of zeros at random places. */
static POLICY_UNUSED void stream_sparse(stream_learner *learner, float *weights, int count) {
    const float limit = 1.0f / policy_sqrt((float)count);
    int left = count - (int)(STREAM_SPARSITY * (float)count);
    for (int i = 0; i < count; ++i) {
        const bool kept = stream_uniform(learner) * (float)(count - i) < (float)left;
        left -= kept;
        weights[i] = kept ? limit * (2.0f * stream_uniform(learner) - 1.0f) : 0.0f;
    }
}

static POLICY_UNUSED void stream_reset(stream_learner *learner, uint32_t seed) {
    for (int i = 0; i < (int)sizeof *learner; ++i) ((volatile uint8_t *)learner)[i] = 0;
    learner->random = seed * 2654435761u ^ 0x9e3779b9u; /* neighbouring seeds far apart */
    if (!learner->random) learner->random = 1u;
    for (int i = 0; i < 8; ++i) stream_uniform(learner);
    for (int i = 0; i < STREAM_HIDDEN; ++i) {
        stream_sparse(learner, learner->actor.weights.first[i], STREAM_OBSERVED);
        stream_sparse(learner, learner->critic.weights.first[i], STREAM_OBSERVED);
    }
    stream_sparse(learner, learner->critic.weights.last[0], STREAM_HIDDEN);
    learner->actor.weights.last_bias[1] = STREAM_STD; /* log(e^std - 1); the mean begins at zero */
}

static POLICY_UNUSED float stream_deviation(const stream_running *running, uint32_t samples) {
    return policy_sqrt((samples > 1u ? running->sum / (float)(samples - 1u) : 1.0f) + STREAM_LEAST);
}

static POLICY_UNUSED void stream_update(stream_running *running, uint32_t samples, float x) {
    const float away = x - running->mean;
    running->mean += away / (float)samples;
    running->sum += away * (x - running->mean);
}

/* What the networks see of an observation, which from now on counts as usual. */
static POLICY_UNUSED void stream_see(stream_learner *learner, const float *x, float *seen) {
    ++learner->samples;
    for (int i = 0; i < STREAM_OBSERVED; ++i) {
        stream_running *running = &learner->seen[i];
        stream_update(running, learner->samples, x[i]);
        seen[i] = (x[i] - running->mean) / stream_deviation(running, learner->samples);
    }
}

static POLICY_UNUSED float stream_mean(const float *x, int count) {
    float sum = 0.0f;
    for (int i = 0; i < count; ++i) sum += x[i];
    return sum / (float)count;
}

static POLICY_UNUSED float stream_product(const float *x, const float *y, int count) {
    float sum = 0.0f;
    for (int i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
}

static POLICY_UNUSED void stream_forward(stream_network *network, const float *x, float *made, int outputs) {
    const stream_weights *w = &network->weights;
    float *normal = network->normal;
    for (int i = 0; i < STREAM_OBSERVED; ++i) network->input[i] = x[i];
    for (int i = 0; i < STREAM_HIDDEN; ++i)
        normal[i] = stream_product(w->first[i], x, STREAM_OBSERVED) + w->first_bias[i];
    const float mean = stream_mean(normal, STREAM_HIDDEN);
    for (int i = 0; i < STREAM_HIDDEN; ++i) normal[i] -= mean;
    const float variance = stream_product(normal, normal, STREAM_HIDDEN) / (float)STREAM_HIDDEN;
    network->inverse = 1.0f / policy_sqrt(variance + STREAM_SMALLEST);
    for (int i = 0; i < STREAM_HIDDEN; ++i) {
        normal[i] *= network->inverse;
        network->hidden[i] = normal[i] > 0.0f ? normal[i] : STREAM_LEAK * normal[i];
    }
    for (int k = 0; k < outputs; ++k)
        made[k] = stream_product(w->last[k], network->hidden, STREAM_HIDDEN) + w->last_bias[k];
}

/* z = gamma lambda z + the gradient of outputs . change, for the last forward pass; the sum of |z|. */
static POLICY_UNUSED float stream_remember(stream_network *network, const float *change, int outputs) {
    const float kept = STREAM_GAMMA * STREAM_TRACE;
    stream_weights *z = &network->traces;
    float back[STREAM_HIDDEN], size = 0.0f;
    for (int i = 0; i < STREAM_HIDDEN; ++i) {
        float sum = 0.0f;
        for (int k = 0; k < outputs; ++k) sum += network->weights.last[k][i] * change[k];
        back[i] = network->normal[i] > 0.0f ? sum : STREAM_LEAK * sum;
    }
    const float mean = stream_mean(back, STREAM_HIDDEN);
    const float along = stream_product(back, network->normal, STREAM_HIDDEN) / (float)STREAM_HIDDEN;
    for (int i = 0; i < STREAM_HIDDEN; ++i) {
        const float before = network->inverse * (back[i] - mean - network->normal[i] * along);
        for (int j = 0; j < STREAM_OBSERVED; ++j) z->first[i][j] = kept * z->first[i][j] + before * network->input[j];
        z->first_bias[i] = kept * z->first_bias[i] + before;
        for (int k = 0; k < outputs; ++k) z->last[k][i] = kept * z->last[k][i] + change[k] * network->hidden[i];
    }
    for (int k = 0; k < outputs; ++k) z->last_bias[k] = kept * z->last_bias[k] + change[k];
    for (int i = 0; i < STREAM_WEIGHTS; ++i) size += policy_size(((const float *)z)[i]);
    return size;
}

/* ObGD: w += step error z with step = rate / max(1, rate kappa max(|error|, 1) |z|_1). */
static POLICY_UNUSED void stream_step(stream_network *network, float error, float size, float kappa) {
    const float large = policy_size(error) > 1.0f ? policy_size(error) : 1.0f;
    const float bound = STREAM_RATE * kappa * large * size;
    const float step = (bound > 1.0f ? STREAM_RATE / bound : STREAM_RATE) * error;
    float *w = (float *)&network->weights;
    const float *z = (const float *)&network->traces;
    for (int i = 0; i < STREAM_WEIGHTS; ++i) w[i] += step * z[i];
}

/* Traces, and the sum of rewards, end with an episode or a gap in it. */
static POLICY_UNUSED void stream_forget(stream_learner *learner) {
    stream_network *networks[2] = {&learner->actor, &learner->critic};
    for (int k = 0; k < 2; ++k)
        for (int i = 0; i < STREAM_WEIGHTS; ++i) ((float *)&networks[k]->traces)[i] = 0.0f;
    learner->sum = 0.0f;
}

/* m / (1 + |m|): a mean within +-1 that never is stuck there. */
static POLICY_UNUSED float stream_bounded(float mean) { return mean / (1.0f + policy_size(mean)); }

/* The mean of the action, in [-1, 1], and the standard deviation of its exploration. */
static POLICY_UNUSED float stream_distribution(stream_learner *learner, const float *seen, float *deviation) {
    float made[2];
    stream_forward(&learner->actor, seen, made, 2);
    *deviation = policy_softplus(made[1]);
    return stream_bounded(made[0]);
}

/* One update from one step: what was seen, the action as drawn, its reward, what was seen then. The critic's error. */
static POLICY_UNUSED float stream_learn(stream_learner *learner, const float *seen, float action, float reward,
                                        const float *then) {
    const float one = 1.0f;
    float worth, before, made[2];
    learner->sum = STREAM_GAMMA * learner->sum + reward;
    ++learner->rewards;
    stream_update(&learner->returns, learner->rewards, learner->sum);
    const float scaled = reward / stream_deviation(&learner->returns, learner->rewards);
    stream_forward(&learner->critic, then, &worth, 1);
    stream_forward(&learner->critic, seen, &before, 1);
    const float error = scaled + STREAM_GAMMA * worth - before;
    const float size = stream_remember(&learner->critic, &one, 1);
    if (learner->updates + 1u > STREAM_CRITIC_ALONE) {
        stream_forward(&learner->actor, seen, made, 2);
        const float inverse = 1.0f / (1.0f + policy_size(made[0])), deviation = policy_softplus(made[1]);
        const float away = (action - stream_bounded(made[0])) / deviation;
        const float sign = error > 0.0f ? 1.0f : error < 0.0f ? -1.0f : 0.0f;
        const float wider = (away * away - 1.0f + STREAM_ENTROPY * sign) / deviation * policy_sigmoid(made[1]);
        const float change[2] = {away / deviation * inverse * inverse, wider};
        stream_step(&learner->actor, error, stream_remember(&learner->actor, change, 2), STREAM_ACTOR_KAPPA);
    }
    stream_step(&learner->critic, error, size, STREAM_CRITIC_KAPPA);
    ++learner->updates;
    return error;
}

#endif
