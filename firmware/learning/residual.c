#include "residual.h"

#include "residual_policy.h" /* generated: what of the policy's signals is seen and judged, and its commands' limits */
#include "streaming.h"

static stream_learner learner;
static float now[STREAM_OBSERVED], before[STREAM_OBSERVED]; /* as the networks see it */
static float action, mean, deviation, distance;             /* distance: its sum since the last decision, m */
static uint32_t tick, last;                                 /* control steps since the beginning; those that learn */
static residual_status status;
static bool decided, alone;

void residual_reset(void) {
    status = RESIDUAL_OFF;
    tick = last = 0u;
    action = mean = deviation = distance = 0.0f;
    decided = alone = false;
    stream_reset(&learner, 0u);
}

void residual_begin(uint32_t seed, uint32_t steps) {
    residual_reset();
    stream_reset(&learner, seed);
    last = steps;
    status = RESIDUAL_LEARNING;
}

/* Everything that was learned or computed is a number. */
static bool sound(void) {
    const float some[4] = {action, mean, deviation, distance};
    return !policy_broken((const float *)&learner.actor, (int)(sizeof learner.actor / sizeof(float))) &&
           !policy_broken((const float *)&learner.critic, (int)(sizeof learner.critic / sizeof(float))) &&
           !policy_broken((const float *)learner.seen, 2 * STREAM_OBSERVED) &&
           !policy_broken((const float *)&learner.returns, 2) && !policy_broken(&learner.sum, 1) &&
           !policy_broken(some, 4);
}

/* What happens now belongs to no step: begin anew. */
static void interrupt(void) {
    stream_forget(&learner);
    decided = false;
    action = mean = deviation = distance = 0.0f;
}

static void decide(const policy_signals *signals) {
    float x[STREAM_OBSERVED];
    const bool learns = status == RESIDUAL_LEARNING;
    residual_features(signals, x);
    if (learns) {
        stream_see(&learner, x, now);
        if (decided) stream_learn(&learner, before, action, -distance / (float)RESIDUAL_PERIOD, now);
    } else {
        for (int i = 0; i < STREAM_OBSERVED; ++i)
            now[i] = (x[i] - learner.seen[i].mean) / stream_deviation(&learner.seen[i], learner.samples);
    }
    mean = stream_distribution(&learner, now, &deviation);
    action = learns ? mean + deviation * stream_normal(&learner) : mean;
    for (int i = 0; i < STREAM_OBSERVED; ++i) before[i] = now[i];
    decided = learns;
    distance = 0.0f;
}

bool residual_step(policy_state *state, const policy_signals *signals, policy_commands *commands) {
    const bool flies = status == RESIDUAL_LEARNING || status == RESIDUAL_KEPT;
    if (!policy_step(state, signals, commands)) {
        interrupt();
        return false;
    }
    if (!flies || ++tick <= RESIDUAL_SETTLE) return true;
    if (status == RESIDUAL_LEARNING && tick > last) {
        status = RESIDUAL_KEPT;
        decided = false;
    }
    const float away = residual_distance(signals);
    alone = !(away <= RESIDUAL_FAR);
    if (alone) {
        interrupt();
        return true;
    }
    distance += away;
    if (tick % RESIDUAL_PERIOD == 0u) decide(signals);
    if (!sound()) {
        interrupt();
        status = RESIDUAL_BROKEN;
        return true;
    }
    residual_add(commands, RESIDUAL_MOST * policy_clip(action, -1.0f, 1.0f));
    return true;
}

residual_report residual_tell(void) {
    const residual_report report = {.status = (uint8_t)status,
                                    .alone = alone,
                                    .updates = learner.updates,
                                    .share = RESIDUAL_MOST * policy_clip(action, -1.0f, 1.0f),
                                    .mean = RESIDUAL_MOST * mean,
                                    .deviation = RESIDUAL_MOST * deviation};
    return report;
}
