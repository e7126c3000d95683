"""Settings that come with the package, by name."""
