"""What every page, file and response made for clinical staff says about endocil."""

DISCLAIMER = "Research software, not for clinical use."
