"""Images: the table of what there is, the decode-once cache of pixels, and whole-batch augmentation."""
