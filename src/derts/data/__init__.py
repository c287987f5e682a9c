"""Stage 1: images and labels, from any source to an ImageTable."""
