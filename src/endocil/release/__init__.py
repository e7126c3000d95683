"""May a new version of a model take the old one's place? Two bundles compared, and the rules of a gate."""
