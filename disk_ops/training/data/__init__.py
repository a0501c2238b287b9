"""Training data: sources of images whose geometry is known, and their mixture."""
