"""Losses, gradients and exemplar selection: they import torch alone."""
