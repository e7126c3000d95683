"""Files, locks, archives and terminal text."""
