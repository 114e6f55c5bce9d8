#include "track.h"

#include "policy_math.h"

#define CELL 0.1 /* m; between its corners distances are interpolated */
#define PER_METRE 10.0f
#define UNIT 1e-4f    /* m of a whole number in a cell */
#define REACH 1.6     /* m: what is further from all walls is said to be as far */
#define MARGIN 0.8    /* m around a track */
#define LEAP 0.2f     /* m: nearer to a wall a ray goes on to where the gradient says it is, at most so much further */
#define STEEPEST 0.1f /* of the gradient along a ray that counts */
#define CLOSE 0.01f   /* m along a ray from a wall where it has arrived */
#define MOST_STEPS 40
#define BACK 6 /* points before and behind the nearest one of a step ago among which the nearest one is looked for */
#define ON 14

static double line[MOST_POINTS][2], wide[MOST_POINTS][2], heading[MOST_POINTS][2];
static float centre[MOST_POINTS][2], direction[MOST_POINTS][2], barrels[MOST_BARRELS][3];
static float spacing, left_x, low_y, right, top;
static int count, columns, rows;
static double made[MOST_CELLS];
static uint8_t inside[MOST_CELLS];
static int16_t cells[MOST_CELLS], bare[MOST_CELLS]; /* `bare`: without barrels */

double *track_line(void) { return line[0]; }
double *track_wide(void) { return wide[0]; }
float *track_barrels(void) { return barrels[0]; }
float track_length(void) { return count * spacing; }

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

/* A wall's point, m. */
static void wall(int point, int side, double to[2]) {
    const double away = side ? -wide[point][1] : wide[point][0];
    to[0] = line[point][0] - away * heading[point][1];
    to[1] = line[point][1] + away * heading[point][0];
}

/* Distances in cells to a segment, where they are smaller than what is there. */
static void measure(double x0, double y0, double x1, double y1) {
    const int far = (int)(REACH / CELL), reach = far + 1;
    const double dx = x1 - x0, dy = y1 - y0, length = larger(dx * dx + dy * dy, 1e-12);
    const int first_row = (int)larger((int)smaller(y0, y1) - reach, 0), last_row = (int)smaller((int)larger(y0, y1) + reach + 2, rows);
    const int first = (int)larger((int)smaller(x0, x1) - reach, 0), last = (int)smaller((int)larger(x0, x1) + reach + 2, columns);
    for (int row = first_row; row < last_row; ++row)
        for (int column = first; column < last; ++column) {
            double u = column - x0, v = row - y0;
            const double share = smaller(larger((u * dx + v * dy) / length, 0.0), 1.0);
            u -= share * dx;
            v -= share * dy;
            double *to = &made[row * columns + column];
            *to = smaller(*to, __builtin_sqrt(u * u + v * v));
        }
}

/* Even and odd: how many walls are to the left of a corner. */
static void enclose(double x0, double y0, double x1, double y1) {
    if (y1 < y0) {
        const double x = x0, y = y0;
        x0 = x1, y0 = y1, x1 = x, y1 = y;
    }
    const int low = (int)larger(__builtin_ceil(y0), 0), high = (int)smaller(__builtin_ceil(y1), rows);
    for (int row = low; row < high; ++row) {
        const double crossing = x0 + (row - y0) / (y1 - y0) * (x1 - x0);
        for (int column = (int)larger(__builtin_ceil(crossing), 0); column < columns; ++column)
            inside[row * columns + column] ^= 1;
    }
}

bool track_lay(int points) {
    if (points < 8 || points > MOST_POINTS) return false;
    double low[2] = {1e9, 1e9}, high[2] = {-1e9, -1e9}, far = 0.0;
    for (int k = 0; k < points; ++k) {
        const double *before = line[(k + points - 1) % points], *after = line[(k + 1) % points];
        const double x = after[0] - before[0], y = after[1] - before[1], length = __builtin_sqrt(x * x + y * y);
        heading[k][0] = x / length;
        heading[k][1] = y / length;
        far += __builtin_sqrt((after[0] - line[k][0]) * (after[0] - line[k][0]) +
                              (after[1] - line[k][1]) * (after[1] - line[k][1]));
    }
    for (int k = 0; k < 2 * points; ++k) {
        double p[2];
        wall(k / 2, k % 2, p);
        for (int i = 0; i < 2; ++i) {
            low[i] = smaller(low[i], p[i]);
            high[i] = larger(high[i], p[i]);
        }
    }
    low[0] -= MARGIN;
    low[1] -= MARGIN;
    const double across = __builtin_ceil((high[0] + MARGIN - low[0]) / CELL) + 1;
    const double up = __builtin_ceil((high[1] + MARGIN - low[1]) / CELL) + 1;
    if (!(across * up <= MOST_CELLS)) return false;
    columns = (int)across;
    rows = (int)up;
    count = points;
    spacing = (float)(far / points);
    left_x = (float)low[0];
    low_y = (float)low[1];
    right = (float)(columns - 1.001);
    top = (float)(rows - 1.001);
    for (int k = 0; k < points; ++k)
        for (int i = 0; i < 2; ++i) {
            centre[k][i] = (float)line[k][i];
            direction[k][i] = (float)heading[k][i];
        }
    for (int k = 0; k < rows * columns; ++k) {
        made[k] = REACH / CELL;
        inside[k] = 0;
    }
    for (int k = 0; k < 2 * points; ++k) {
        double a[2], b[2];
        wall(k / 2, k % 2, a);
        wall((k / 2 + 1) % points, k % 2, b);
        for (int i = 0; i < 2; ++i) {
            a[i] = (a[i] - low[i]) / CELL;
            b[i] = (b[i] - low[i]) / CELL;
        }
        measure(a[0], a[1], b[0], b[1]);
        enclose(a[0], a[1], b[0], b[1]);
    }
    for (int k = 0; k < rows * columns; ++k)
        bare[k] = (int16_t)__builtin_rint((inside[k] ? made[k] : -made[k]) * CELL / 1e-4);
    track_stand(0);
    return true;
}

void track_stand(int barrels_on) {
    for (int k = 0; k < rows * columns; ++k) cells[k] = bare[k];
    for (int b = 0; b < barrels_on && b < MOST_BARRELS; ++b)
        for (int k = 0; k < rows * columns; ++k) {
            const float dx = left_x + (float)(k % columns) * 0.1f - barrels[b][0];
            const float dy = low_y + (float)(k / columns) * 0.1f - barrels[b][1];
            const float far = policy_sqrt(dx * dx + dy * dy) - barrels[b][2];
            if (far < 1.6f && far < cells[k] * UNIT) cells[k] = (int16_t)(far / UNIT);
        }
}

/* At a place in cells; also of what is no number. */
static float distance(float u, float v, float gradient[2]) {
    u = u > 0.0f ? u : 0.0f;
    v = v > 0.0f ? v : 0.0f;
    u = u < right ? u : right;
    v = v < top ? v : top;
    const int column = (int)u, row = (int)v;
    const float x = u - column, y = v - row;
    const int16_t *at = cells + row * columns + column;
    const float low = at[0], low_right = at[1], high = at[columns], high_right = at[columns + 1];
    const float below = low + x * (low_right - low), above = high + x * (high_right - high);
    const float slope = (low_right - low) + y * ((high_right - high) - (low_right - low));
    gradient[0] = UNIT * PER_METRE * slope;
    gradient[1] = UNIT * PER_METRE * (above - below);
    return UNIT * (below + y * (above - below));
}

float track_distance(float x, float y, float gradient[2]) {
    return distance((x - left_x) * PER_METRE, (y - low_y) * PER_METRE, gradient);
}

float track_seen(float x, float y, float across, float up, float longest) {
    const float u = (x - left_x) * PER_METRE, v = (y - low_y) * PER_METRE;
    float way = 0.0f, g[2];
    for (int k = 0; k < MOST_STEPS; ++k) {
        const float away = distance(u + way * (PER_METRE * across), v + way * (PER_METRE * up), g);
        float nearing = -(g[0] * across + g[1] * up);
        nearing = nearing > STEEPEST ? nearing : STEEPEST;
        if ((away < 0.0f ? -away : away) < CLOSE * nearing || !(way < longest)) break;
        const float leap = away / nearing;
        way += leap < away + LEAP ? leap : away + LEAP;
    }
    way = way > 0.0f ? way : 0.0f;
    return way < longest ? way : longest;
}

void track_follow(track_place *p, const float position[2]) {
    const bool fresh = p->nearest < 0;
    int found = fresh ? 0 : p->nearest;
    float best = 3.4e38f;
    for (int k = fresh ? 0 : p->nearest - BACK; k < (fresh ? count : p->nearest + ON); ++k) {
        const int point = (k + count) % count;
        const float dx = position[0] - centre[point][0], dy = position[1] - centre[point][1];
        if (dx * dx + dy * dy < best) {
            best = dx * dx + dy * dy;
            found = point;
        }
    }
    const float dx = position[0] - centre[found][0], dy = position[1] - centre[found][1], *h = direction[found];
    const float length = count * spacing, way = found * spacing + dx * h[0] + dy * h[1];
    float moved = fresh ? 0.0f : way - p->way;
    moved -= length * __builtin_floorf(moved / length + 0.5f);
    p->nearest = found;
    p->way = way;
    p->offset = h[0] * dy - h[1] * dx;
    p->moved = moved;
    p->driven += moved;
}

void track_point(int point, float position[2], float heading_there[2]) {
    point = ((point % count) + count) % count;
    for (int i = 0; i < 2; ++i) {
        position[i] = centre[point][i];
        heading_there[i] = direction[point][i];
    }
}
