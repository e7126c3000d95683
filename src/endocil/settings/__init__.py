"""Settings of a run and of a model: TOML files, presets, and what they may say."""
