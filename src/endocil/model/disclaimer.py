"""What everything that leaves this program for a clinic's systems says of itself."""

NOTICE = "Research software, not for clinical use."
