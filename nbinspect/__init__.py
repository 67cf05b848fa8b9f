"""nbinspect: look inside PyTorch training from a notebook."""
