#include <Arduino.h>

extern "C" int snprintf(char *to, __SIZE_TYPE__ size, const char *format, ...);

char said[500];
unsigned long clock_us;
HardwareSerial Serial;
static __SIZE_TYPE__ end;

unsigned long micros() { return clock_us += 1000; }
void delay(unsigned long) {}
void HardwareSerial::begin(unsigned long) { end = 0; }
void HardwareSerial::print(const char *text) {
    for (; *text && end + 1 < sizeof said; ++text) said[end++] = *text;
    said[end] = 0;
}
void HardwareSerial::print(double value, int digits) {
    char text[40];
    snprintf(text, sizeof text, "%.*f", digits, value);
    print(text);
}
void HardwareSerial::println(const char *text) {
    print(text);
    print("\n");
}

extern "C" void bench() {
    setup();
    loop();
}
