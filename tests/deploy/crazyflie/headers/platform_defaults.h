#pragma once
#define THRUST_MAX 0.12f /* N: a Crazyflie 2.1+ */
