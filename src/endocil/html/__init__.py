"""The one HTML library: markup and charts of every page."""
