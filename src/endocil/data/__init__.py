"""Images: tables, lists, decoding, cache, splits, scenario and batches."""
