"""Training that resumes bit for bit: order of samples, checkpoints, steps, logs."""
