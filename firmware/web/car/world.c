/* The policy in closed loop with a car on a track, and a car that the visitor drives: what the page races. */
#include "car.h"
#include "module.h"
#include "policy_math.h"
#include "settings.h" /* made from the policy file: SUBSTEPS */
#include "track.h"

#define PERIOD (1.0f / POLICY_RATE_HZ) /* s */
#define LINE 16                        /* control periods that a command can be late */
#define RANGE 10.0f                    /* m of the lidar */
#define GRAVITY 9.81f
#define RACERS 2 /* 0: the policy's car; 1: the visitor's, which meets walls, and not the other one */

static car_parameters parameters;
static car_constants constants;
static car_state body[RACERS];
static track_place place[RACERS];
static float line[LINE][2]; /* commands on their way, newest first */
static float late;          /* control periods */

EXPORTED("parameters") car_parameters *world_parameters(void) { return &parameters; }
EXPORTED("body") car_state *world_body(int k) { return &body[k]; }
EXPORTED("place") track_place *world_place(int k) { return &place[k]; }
EXPORTED("line") double *world_line(void) { return track_line(); }
EXPORTED("wide") double *world_wide(void) { return track_wide(); }
EXPORTED("lay") bool world_lay(int points) { return track_lay(points); }
EXPORTED("length") float world_length(void) { return track_length(); }
EXPORTED("barrels") float *world_barrels(void) { return track_barrels(); }
EXPORTED("stand") void world_stand(int barrels) { track_stand(barrels); }

/* m to the nearest wall or barrel, negative behind it. */
EXPORTED("clearance") float world_clearance(float x, float y) {
    float gradient[2];
    return track_distance(x, y, gradient);
}

/* After the parameters were written to. */
EXPORTED("derive") void world_derive(void) { car_derive(&constants, &parameters); }

EXPORTED("car") void world_car(int index) {
    parameters = cars[index];
    world_derive();
}

/* How long a command is on its way, in s; what is kept. */
EXPORTED("latency") float world_latency(float seconds) {
    late = policy_clip(seconds * POLICY_RATE_HZ, 0.0f, LINE - 2);
    return late * PERIOD;
}

/* After the body of a racer was written to: it begins there. */
EXPORTED("begun") void world_begun(int k) {
    place[k].nearest = -1;
    place[k].driven = 0.0f;
    track_follow(&place[k], body[k].position);
    if (k) return;
    for (int i = 0; i < LINE; ++i) line[i][0] = line[i][1] = 0.0f;
    module_reset();
}

/* Stand on the centreline's point, so far to its left, rolling. */
EXPORTED("begin") void world_begin(int k, int point, float aside, float speed) {
    static const car_state nothing;
    body[k] = nothing;
    track_point(point, body[k].position, body[k].heading);
    body[k].position[0] -= aside * body[k].heading[1];
    body[k].position[1] += aside * body[k].heading[0];
    body[k].velocity[0] = speed;
    world_begun(k);
}

#define SENSE(name) static __attribute__((unused)) void sense_##name(float *to, int count)
SENSE(lidar) {
    const float cos = body[0].heading[0], sin = body[0].heading[1];
    const float x = body[0].position[0] + parameters.lidar * cos, y = body[0].position[1] + parameters.lidar * sin;
    for (int k = 0; k < count; ++k) {
        const float *b = beams[k];
        to[k] = track_seen(x, y, cos * b[0] - sin * b[1], sin * b[0] + cos * b[1], RANGE);
    }
}
SENSE(wheel_speed) { /* wheels that push turn faster */
    const float slip = policy_clip(body[0].push / (GRAVITY * parameters.friction), -1.0f, 1.0f);
    for (int k = 0; k < count; ++k) to[k] = body[0].velocity[0] * (1.0f + slip / parameters.longitudinal_stiffness);
}
SENSE(yaw_rate) {
    for (int k = 0; k < count; ++k) to[k] = body[0].turning;
}
SENSE(steering_angle) {
    for (int k = 0; k < count; ++k) to[k] = body[0].steering;
}

EXPORTED("sense") void world_sense(void) {
#define FILL(name, count, type, age) sense_##name(signals.name, count);
    POLICY_SIGNALS(FILL)
}

/* A control period of a racer under a command. */
EXPORTED("drive") void world_drive(int k, float steering, float speed) {
    const float command[2] = {steering, speed};
    car_advance(&body[k], &parameters, &constants, command, PERIOD / SUBSTEPS, SUBSTEPS);
    track_follow(&place[k], body[k].position);
}

/* A control period of the policy's car under `commands`, as late as they are. */
EXPORTED("obey") void world_obey(void) {
    const int whole = (int)late;
    const float part = late - whole;
    for (int k = LINE - 1; k > 0; --k)
        for (int i = 0; i < 2; ++i) line[k][i] = line[k - 1][i];
    line[0][0] = commands.steering[0];
    line[0][1] = commands.speed[0];
    const float *a = line[whole], *b = line[whole + 1];
    world_drive(0, (1.0f - part) * a[0] + part * b[0], (1.0f - part) * a[1] + part * b[1]);
}

/* A control period; false: the policy could not, and nothing has moved. */
EXPORTED("loop") bool world_loop(void) {
    world_sense();
    if (!module_step()) return false;
    world_obey();
    return true;
}
