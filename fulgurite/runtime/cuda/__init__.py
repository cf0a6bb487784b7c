"""Running plans on NVIDIA GPUs, through the driver alone."""
