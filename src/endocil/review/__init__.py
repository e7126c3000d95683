"""Images for a physician to name: those unlike what a model has learned, and those it is uncertain about."""
