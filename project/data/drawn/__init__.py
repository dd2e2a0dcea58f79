"""The built-in dataset: drawn flowers, so that the first run needs no download."""
