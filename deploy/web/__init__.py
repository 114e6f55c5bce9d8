"""A policy file as a WebAssembly module, and as a page that flies it."""
