"""Side-by-side benchmarks of the engine and llama.cpp, interleaved in one run. Never imported by
the appliance."""
