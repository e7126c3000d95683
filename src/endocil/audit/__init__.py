"""Audit of an image table: unreadable files, duplicates, what leaks from train to test, sizes and colours."""
