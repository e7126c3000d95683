"""A learned model: file format, inference, calibration."""
