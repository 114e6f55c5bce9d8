#pragma once
void appMain();
