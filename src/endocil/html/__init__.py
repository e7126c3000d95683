"""The one HTML library: templates, tables and charts of every page."""
