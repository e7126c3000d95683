"""Models over HTTP: an API for programs and a page for people; only local unless a token protects it."""
