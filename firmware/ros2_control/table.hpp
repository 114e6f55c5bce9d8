/* What interfaces.hpp tells of a policy: its signals and commands, the rules of its guard. SI units. */
#pragma once

namespace policy_controller {

/* Where a signal comes from when no parameter says otherwise. */
enum class Source {
    measured,  /* state interfaces */
    reference, /* this controller's own reference interfaces: a set point */
    last,      /* the command of the step before */
};

struct Signal {
    const char *name;
    int first, size; /* its place among all numbers that are watched */
    float low, high;
    double max_age; /* s */
    Source source;
    int last_of; /* Source::last: the first of the command's numbers */
    const char *const *interfaces;
    int count;
};

struct Command {
    const char *name;
    int first, size;
    float low, high;           /* of the policy's commands */
    float reach_low, reach_high; /* of the robot: for where it stays */
    int place;                 /* index of the signal that says where it stays when stopped, or -1 */
    bool last;                 /* when stopped it keeps doing what it was told last */
    bool offset;               /* it is added to a pose, which a parameter has to give */
    const char *const *interfaces;
    int count;
};

} // namespace policy_controller
