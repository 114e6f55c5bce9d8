/* A track as a grid of the signed distance to the nearest wall: sim/engines/car (grids.py, lidar.py, course.py). */
#ifndef TRACK_H
#define TRACK_H

#include <stdbool.h>
#include <stdint.h>

#define MOST_POINTS 1024
#define MOST_CELLS (1 << 18)
#define MOST_BARRELS 16

/* Where a car is along the centreline. `nearest` below 0: not known yet. */
typedef struct {
    int32_t nearest;
    float way, offset, moved, driven; /* m: since point 0, to the left, in the last step, in all */
} track_place;

/* Lay the track of so many points of `track_line` (m, all as far from the next), with the walls' distances from them to
 * the left and to the right in `track_wide`; false: it is too large, and the old one is kept. */
bool track_lay(int points);
double *track_line(void);
double *track_wide(void);
float track_length(void);

/* Stand so many barrels of `track_barrels` (x, y, radius; m) on it. */
void track_stand(int barrels);
float *track_barrels(void);

/* m to the nearest wall, negative behind it, and its gradient. */
float track_distance(float x, float y, float gradient[2]);

/* How far one sees from there in a direction, m, at most `longest`. */
float track_seen(float x, float y, float across, float up, float longest);

/* Follow a car. */
void track_follow(track_place *p, const float position[2]);

/* A point of the centreline, and the direction there. */
void track_point(int point, float position[2], float heading[2]);

#endif
