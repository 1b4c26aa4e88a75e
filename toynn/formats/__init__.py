"""Files that others read and write too: GGUF, and the folders of Hugging Face."""
