"""Programs that people point at a service, each at a pinned version and against the real one: part of
`make soak`."""
