"""Audit of an image table: duplicates, leaks, sizes and colours."""
