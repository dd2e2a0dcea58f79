"""Image files and datasets: scanning, decoding, caching, batches, loader workers."""
