"""The commands, by what they are about; cli.py puts them together."""
