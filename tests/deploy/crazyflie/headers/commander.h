#pragma once
void commanderRelaxPriority(void);
