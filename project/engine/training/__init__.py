"""Training that resumes bit for bit: order of samples, seeding, checkpoints, steps that are skipped."""
