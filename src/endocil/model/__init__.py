"""`Model`, a classifier that keeps learning: its file, inference, calibration, export."""

DISCLAIMER = "Research software, not for clinical use."  # on every page, file and response made for clinical staff
