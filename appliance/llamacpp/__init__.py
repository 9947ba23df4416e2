"""llama.cpp as a second engine, for developers. Never in the image."""
