"""Stage 9: tables and pictures of what was measured."""
