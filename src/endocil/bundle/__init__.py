"""A model for years: one file that predicts, learns new classes, and answers for what it holds."""
