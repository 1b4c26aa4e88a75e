"""When a process that a test waits for has hung; no outcome of a test depends on it."""

HANG = 600  # seconds: of what takes some, on a machine that is a hundred times as busy
