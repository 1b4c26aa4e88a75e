"""toynn: train and fine-tune transformers on the CPU you have."""
