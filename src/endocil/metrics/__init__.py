"""Pure functions of predictions: metrics and statistics."""
