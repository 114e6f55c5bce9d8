#pragma once

#define RCLCPP_VERSION_MAJOR 29
