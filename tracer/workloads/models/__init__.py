"""Our own models: real PyTorch modules, built on the device they are asked for."""
