"""The operating system: signals, memory, files that are read, streams that are written.

Modules:

    critical  sections that no signal handler interrupts
    later     modules that are imported when they are first asked for
    machine   the processor and the memory of this machine
    reading   regular files, opened safely
    platform  what differs on Windows
    printing  text that is safe for a terminal, and streams that may be lost
    series    names of files in shards
"""
