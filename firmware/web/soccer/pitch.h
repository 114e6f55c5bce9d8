/* A football match of two robots, seen from above: the equations of sim/engines/pitch/dynamics.py, in float32.
 *
 * World: x to the goal of team 1, y. Robots: ahead, to the left. */
#ifndef PITCH_H
#define PITCH_H

#define ROBOTS 2

typedef struct {
    float position[2], velocity[2], rolling[2], scored;
} pitch_ball;

typedef struct {
    float position[2], heading[2], velocity[2], turning, pan, charge, touched;
} pitch_robot;

typedef struct {
    pitch_ball ball;
    pitch_robot robot[ROBOTS];
} pitch_state;

#include "robots.h" /* made from sim/robots/wheeled.py: pitch_kind, KINDS, kinds[KINDS] */

typedef struct {
    float radius, mass, sliding, rolling, wall_bounce, inertia;
} pitch_sphere;

typedef struct {
    float half_length, half_width, half_goal, depth;
} pitch_field;

/* Of one against one, as in sim/scenes/pitch.py (a test compares). */
static const pitch_field field __attribute__((unused)) = {2.0f, 1.5f, 0.5f, 0.25f};
static const pitch_sphere sphere __attribute__((unused)) = {0.05f, 0.08f, 0.4f, 0.03f, 0.6f, 0.4f};

typedef struct {
    float forward, left, turn, kick; /* m/s, m/s, rad/s, share of its largest speed */
} pitch_command;

/* A substep of h seconds. */
void pitch_advance(pitch_state *s, const pitch_kind kind[ROBOTS], const pitch_sphere *b, const pitch_command c[ROBOTS],
                   float h);

#endif
