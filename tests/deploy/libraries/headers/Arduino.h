/* What the example needs of Arduino's core, for the tests: what is printed is kept. */
#pragma once

extern "C" {
extern char said[500];
extern unsigned long clock_us;
}
unsigned long micros();
void delay(unsigned long ms);
void setup();
void loop();

struct HardwareSerial {
    void begin(unsigned long baud);
    void print(const char *text);
    void print(double value, int digits);
    void println(const char *text);
};
extern HardwareSerial Serial;
