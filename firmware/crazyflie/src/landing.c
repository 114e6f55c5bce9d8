#include "landing.h"

static float ahead(float speed) {
    const float way = speed * (speed < 0.0f ? -speed : speed) / (2.0f * LANDING_BRAKING);
    return way >= LANDING_FURTHEST ? LANDING_FURTHEST : way > -LANDING_FURTHEST ? way : -LANDING_FURTHEST;
}

void landing_begin(landing *l, const float *position, const float *velocity, uint32_t now) {
    for (int i = 0; i < 3; ++i) l->place[i] = position[i] + ahead(velocity[i]);
    l->began = l->restless = now;
    l->down = false;
}

float landing_height(landing *l, const float *position, const float *velocity, uint32_t now) {
    const uint32_t since = now - l->began;
    const float sunk = since > LANDING_HOLD_MS ? 1e-3f * LANDING_SINK * (float)(since - LANDING_HOLD_MS) : 0.0f;
    const float height = l->place[2] - sunk;
    const bool rests = height < position[2] - LANDING_BELOW && velocity[2] > -LANDING_REST && velocity[2] < LANDING_REST;
    if (!rests) l->restless = now;
    l->down = l->down || now - l->restless >= LANDING_REST_MS;
    return height;
}
