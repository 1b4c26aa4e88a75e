"""File formats that other programs share: GGUF, and Hugging Face's folders."""
