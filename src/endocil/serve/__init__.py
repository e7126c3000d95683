"""Bundles over HTTP: an API, and a page for people, on this machine unless a token guards it."""
