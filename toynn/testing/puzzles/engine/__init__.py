"""What a training program does between its kernels."""
