"""Files that others read and write too: GGUF."""
