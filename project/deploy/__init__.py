"""Files that classify images without this project: writing them, running them, comparing them with their checkpoint."""
