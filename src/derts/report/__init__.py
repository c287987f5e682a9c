"""Stage 11: tables and pictures of what was measured."""
