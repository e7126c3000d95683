"""Runs: settings, folder, records, sweeps. Read run.py first."""
