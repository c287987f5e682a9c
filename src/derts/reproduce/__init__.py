"""The paper, to be run again: its numbers, its recipes, its tables."""
