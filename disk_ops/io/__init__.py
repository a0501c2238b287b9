"""Reading images and masks, naming them, and writing HDF5 files that survive interruptions."""
