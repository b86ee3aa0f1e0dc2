"""The lab: what shows that the rules hold. Layers and kernels, models, data, training, sweeps, reports."""
