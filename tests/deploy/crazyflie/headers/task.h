#pragma once
#include "FreeRTOS.h"

typedef void (*TaskFunction_t)(void *);
typedef struct tskTaskControlBlock *TaskHandle_t;

TickType_t xTaskGetTickCount(void);
void vTaskDelay(const TickType_t ticks);
TaskHandle_t xTaskCreateStatic(TaskFunction_t code, const char *const name, const uint32_t depth, void *const parameters,
                               UBaseType_t priority, StackType_t *const stack, StaticTask_t *const block);
BaseType_t xTaskNotifyGive(TaskHandle_t task);
uint32_t ulTaskNotifyTake(BaseType_t clear, TickType_t ticks);
