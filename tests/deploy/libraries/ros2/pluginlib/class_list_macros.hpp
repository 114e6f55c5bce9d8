/* The real one registers a factory when the library is loaded; the bench asks for it by name. */
#pragma once

#define PLUGINLIB_EXPORT_CLASS(Class, Base)                                                                   \
    extern "C" __attribute__((visibility("default"))) Base *sim2metal_made();                                 \
    extern "C" __attribute__((visibility("default"))) Base *sim2metal_made() { return new Class; }
