"""A run from outside: what its events say, how to follow them, and how to show it."""
