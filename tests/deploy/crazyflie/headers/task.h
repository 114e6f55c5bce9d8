#pragma once
#include "FreeRTOS.h"

TickType_t xTaskGetTickCount(void);
void vTaskDelay(const TickType_t ticks);
